"""The measurer of a tuner whose builders and devices are nodes of a cluster.

Nodes may come and go while it is open. A candidate whose node is lost goes to another one. A
device that joins is compared with the one that began a task before it measures any of its
candidates, as a second GPU of this machine is (`measure.device_thread`).
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from felix import errors
from felix.measure import building, device_thread, noise_probe, rights, staged, work
from felix.measure.cluster import messages, remote
from felix.processes import child
from felix.task import Task

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Of a `ClusterPool`; times in seconds."""

    #: How long a pool waits for the first builder and the first device of its kind.
    wait_s: float = 60.0
    #: How often it asks who is there.
    watch_s: float = 1.0
    #: Time a noise probe on each device (`measure.noise_probe`).
    noise_probe: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A node that is there: how many programs it builds at a time, and its device.

    `name` is that of one process: a node that was started anew has another one. `unfit` says why
    it cannot be used, `about` what others want to know of its device (`node.Node.facts`), `key` is
    the digest of the key that it states.
    """

    name: str
    builders: int
    device: work.Device | None
    kind: str
    unfit: str | None = None
    about: Mapping[str, Any] | None = None
    key: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Member:
        """The member of which `dataclasses.asdict` made these fields."""
        device = fields["device"]
        return cls(**{**fields, "device": work.Device(**device) if device else None})


class Cluster(Protocol):
    """Who is there, and the ways to them."""

    def members(self) -> Sequence[Member]:
        """All nodes that answer."""
        ...

    def link(self, member: Member, closed: threading.Event) -> remote.Link:
        """The way to a node, for a pool that is open until `closed`."""
        ...


class ClusterPool(staged.StagedPool):
    """A `measurer.Measurer` for candidates of `task`; `for_task` serves others as well.

    Raises:
        NoDevice: no builder or no device of the target's kind came in time.
    """

    def __init__(
        self, task: Task, cluster: Cluster, options: ClusterOptions | None = None
    ) -> None:
        self._cluster, self._options = cluster, options or ClusterOptions()
        self._kind = messages.of(task.target)
        self._device_kind = "cuda" if task.target.kind.name == "cuda" else "cpu"
        self._arch = str(task.target.attrs["arch"]) if self._device_kind == "cuda" else ""
        self._stopped = threading.Event()
        self._known: set[str] = set()
        self._warned: set[str] = set()
        self._client = uuid.uuid4().hex
        self._remotes: list[remote.RemoteRunner] = []
        self._probe = (
            noise_probe.NoiseProbe(self._device_kind) if self._options.noise_probe else None
        )
        self._places: dict[int, str] = {}
        self._work_dir = pathlib.Path(tempfile.mkdtemp(prefix="felix-cluster-"))
        super().__init__(task.target.kind.name, rights.Folders.make(self._work_dir, None), ())
        self._stages = []
        self._builds = building.Builders((), self._references.built, self._settle)
        try:
            self._await_first()
        except errors.MeasureError:
            child.remove_tree(self._work_dir)
            raise
        self._task = self._task_of(task)
        if self._probe is not None:
            self._arm_probe(self._probe, task.target)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _is_working(self) -> bool:
        """Whether a node runs something; one that builds soon ends."""
        return any(runs.is_called for runs in self._remotes)

    def _place(self, index: int) -> str:
        return self._places[index]

    def _await_first(self) -> None:
        until_s = time.monotonic() + self._options.wait_s
        while True:
            members = self._join()
            if self._devices and self._builds.n_builders:
                return
            if time.monotonic() > until_s:
                raise errors.NoDevice(self._nobody(members))
            time.sleep(min(self._options.watch_s, 0.5))

    def _nobody(self, members: Sequence[Member]) -> str:
        """What is missing, and what to do."""
        what = "builds programs" if self._devices else f"measures on {self._kind}"
        there = sorted({member.kind or "builders only" for member in members})
        unfit = [f"{member.name}: {member.unfit}" for member in members if member.unfit]
        return (
            f"no node of the cluster {what}; there are: {', '.join(there) or 'none'}"
            + (f" ({'; '.join(unfit)})" if unfit else "")
            + ". Start `felix worker` on such a machine"
        )

    def _watch(self) -> None:
        while not self._stopped.wait(self._options.watch_s):
            try:
                self._join()
            except errors.MeasureError as error:
                _log.warning(
                    "the cluster does not say who is there: %s",
                    error,
                    extra={"action": "cluster_silent"},
                )

    def _join(self) -> Sequence[Member]:
        """Let new nodes take part; all that are there."""
        members = self._cluster.members()
        for member in members:
            if member.unfit is not None:
                if member.name not in self._warned:
                    self._warned.add(member.name)
                    _log.warning(
                        "node %s takes no part: %s",
                        member.name,
                        member.unfit,
                        extra={"action": "node_unfit"},
                    )
            elif member.name not in self._known:
                self._known.add(member.name)
                self._take_in(member)
        return members

    def _take_in(self, member: Member) -> None:
        link = self._cluster.link(member, self._stopped)
        for _ in range(member.builders):
            self._builds.add(
                remote.RemoteBuilder(link, self._folders.libraries, self._device_kind)
            )
        if member.device is None or member.kind != self._kind:
            return
        runs = remote.RemoteRunner(link, self._client)
        self._remotes.append(runs)
        index = self._add_device(member.device)
        self._places[index] = member.name
        stage = device_thread.DeviceThread(
            index, runs, self._queues, self._finish, self._arch, self._probe
        )
        self._stages.append(stage)
        stage.start()

    def _interrupt(self) -> None:
        for runs in self._remotes:
            try:
                runs.interrupt()
            except (work.WorkerGone, errors.MeasureError):
                pass  # what ran there has ended

    def _end(self) -> None:
        self._stopped.set()
        self._interrupt()
        self._watcher.join()
        child.remove_tree(self._work_dir)


def from_facts(name: str, facts: Mapping[str, Any], ours: Mapping[str, Any]) -> Member:
    """The member that a node's `facts` describe; unfit if its versions are not ours."""
    wrong = [
        f"{key} {facts.get(key)!r}, not {value!r}"
        for key, value in ours.items()
        if facts.get(key) != value
    ]
    device = facts.get("device")
    return Member(
        name,
        int(facts.get("builders", 0)),
        work.Device(**device) if device else None,
        str(facts.get("kind", "")),
        f"it has {', '.join(wrong)}" if wrong else None,
        facts.get("about"),
        str(facts.get("key", "")),
    )
