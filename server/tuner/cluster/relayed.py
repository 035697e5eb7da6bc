"""A cluster as an engine sees it, by the link of its tuner."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from felix import errors
from felix.measure import work
from felix.measure.cluster import pool, remote
from server.tuner.cluster import calls

#: Between two questions whether a node is back, in seconds.
_AGAIN_S = 1.0


class RelayedCluster(pool.Cluster):
    """The nodes that the link knows."""

    def __init__(self, link: calls.Calls) -> None:
        self._calls = link

    @property
    def ended(self) -> bool:
        """Whether the link is gone, for good."""
        return self._calls.ended.is_set()

    def devices(self) -> list[dict[str, Any]]:
        """The devices that are there, as `server.parsing.devices.described` says them."""
        listed, _ = self._ask("devices")
        return list(listed)

    def members(self) -> Sequence[pool.Member]:
        """All nodes that answer."""
        listed, _ = self._ask("members")
        return [pool.Member.of(fields) for fields in listed]

    def link(self, member: pool.Member, closed: threading.Event) -> RelayedLink:
        """The way to a node."""
        return RelayedLink(self._calls, member.name, closed)

    def _ask(self, verb: str) -> calls.Value:
        try:
            return self._calls.ask(verb)
        except calls.Gone as gone:
            raise errors.MeasureError(str(gone)) from None


class RelayedLink(remote.Link):
    """The way to a node through the link."""

    def __init__(self, link: calls.Calls, name: str, closed: threading.Event) -> None:
        self._calls, self._name, self._closed = link, name, closed

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the node; a list of bytes goes along as binaries."""
        binaries = [content for each in args if isinstance(each, list) for content in each]
        texts = [each for each in args if isinstance(each, str)]
        try:
            value, made = self._calls.ask(
                "call", self._name, method, *texts, binaries=binaries, unwanted=self._closed
            )
        except calls.Gone as gone:
            raise work.WorkerGone(str(gone)) from None
        return (value, made[0]) if made else value

    def await_return(self) -> bool:
        """Wait until the node answers; False: it never will, or the pool is closed."""
        while not self._closed.is_set():
            try:
                answers, _ = self._calls.ask("answers", self._name, unwanted=self._closed)
            except (calls.Gone, errors.MeasureError):
                return False
            if answers is not False:
                return bool(answers)
            self._closed.wait(_AGAIN_S)
        return False
