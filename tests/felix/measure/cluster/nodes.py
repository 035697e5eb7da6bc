"""A cluster in this process: nodes that are called, lost and found again without a network."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any

from felix.measure import work
from felix.measure.cluster import messages, node, pool


class Link:
    """Calls a node, unless it is cut or dead."""

    def __init__(self, made: node.Node, closed: threading.Event) -> None:
        self._node, self._closed = made, closed
        self.cut, self.dead = threading.Event(), threading.Event()
        #: whether a link that is cut mends itself as soon as somebody waits for it
        self.mends = False
        self.calls: list[str] = []
        #: arguments of calls as text, by method
        self.said: dict[str, list[str]] = collections.defaultdict(list)
        self.before: Callable[[str], None] = lambda method: None

    def call(self, method: str, *args: Any) -> Any:
        """Call the node."""
        self.calls.append(method)
        self.said[method] += map(str, args)
        self.before(method)
        if self.cut.is_set() or self.dead.is_set():
            raise work.WorkerGone("nobody answers")
        reply = getattr(self._node, method)(*args)
        if self.cut.is_set() or self.dead.is_set():  # while it worked
            raise work.WorkerGone("nobody answers")
        return reply

    def await_return(self) -> bool:
        """Wait until it is not cut."""
        while not self._closed.wait(0.01):
            if self.dead.is_set():
                return False
            if self.mends:
                self.cut.clear()
            if not self.cut.is_set():
                return True
        return False


class Cluster:
    """Nodes by name; tests add some and cut their links."""

    def __init__(self) -> None:
        self.nodes: dict[str, node.Node] = {}
        self.links: dict[str, Link] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def add(
        self, name: str, options: work.LocalOptions | None = None, **settings: Any
    ) -> node.Node:
        """Start a node."""
        made = node.Node(node.Settings(**settings), options)
        self.nodes[name] = made
        self.facts[name] = messages.read(made.facts())
        return made

    def part(self, *names: str) -> Cluster:
        """A cluster where only these are there at first; the nodes are the same."""
        made = Cluster()
        made.nodes = dict(self.nodes)
        made.facts = {name: self.facts[name] for name in names}
        return made

    def members(self) -> Sequence[pool.Member]:
        """All nodes that are not dead."""
        dead = {name for name, link in self.links.items() if link.dead.is_set()}
        ours = {"version": messages.VERSION, "felix": "0.1.0"}
        return [
            pool.from_facts(name, facts, ours)
            for name, facts in self.facts.items()
            if name not in dead
        ]

    def link(self, member: pool.Member, closed: threading.Event) -> Link:
        """The way to a node."""
        self.links[member.name] = Link(self.nodes[member.name], closed)
        return self.links[member.name]

    def close(self) -> None:
        """End all nodes."""
        for made in self.nodes.values():
            made.close()
