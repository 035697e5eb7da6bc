"""An `engine.Engine` in a process of its own, so that no job can hold its tuner.

    tuner's process                       engine's process
    lease, heartbeat, database  <-pipe->  felix.tune, cost model  ->  measuring processes
    limits, kill

The engine asks for every write (`messages`), so a record is in the database before the search
learns it, whatever ends the engine then. An engine that does not stop when it is told to, or
passes a limit (`limits`), is killed, and the next one becomes warm in the background.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

from felix.measure import readings, rights
from server import errors, logs, settings, states
from server.store import artifacts, networks, tuners
from server.tuner import claimed_job, engine, reports
from server.tuner.cluster import link
from server.tuner.process import engine_child, messages
from server.tuner.process import limits as job_limits
from server.tuner.process import rights as process_rights

_log = logs.of(__name__)
_Verb = messages.Verb

#: The last message of an engine by what it writes.
_LAST = {"export": _Verb.EXPORTED, "network": _Verb.BUILT}
#: The engine that is served.
FACTORY = "server.tuner.felix_engine:FelixEngine"
#: Longest wait between two looks at limits and instructions, in seconds.
POLL_S = 0.1


class EngineProcess(engine.Engine):
    """The engine's process, replaced if it dies or is killed.

    Args:
        chosen: has the limits of each job, and whether engines are confined beside a GPU.
        factory: `module:name` of what makes the engine.
        cluster: the link to the cluster that it measures on; None: this machine.

    Raises:
        EngineDied: no engine can be made here.
        SettingsError: see `process_rights.choose`.
    """

    def __init__(
        self,
        chosen: settings.Settings,
        factory: str = FACTORY,
        cluster: link.RelayProcess | None = None,
    ) -> None:
        self._limits = chosen
        self._server = engine_child.fork_server_of(factory, chosen.log_json)
        self._start = process_rights.Start(True, chosen.gpu_confinement)
        self._cluster, self._generation = cluster, 0
        self._child = self._forked()
        self._is_ready = False
        #: whether it had a job; what it holds since then is of no use
        self._has_worked = False
        self._devices: list[dict[str, Any]] = []
        self._versions: dict[str, str] = {}
        self._conditions: dict[str, readings.Condition] = {}
        try:
            self._begin()
        except (engine_child.EngineDied, errors.SettingsError):
            self.close()
            raise

    def devices(self) -> list[dict[str, Any]]:
        """See `engine.Engine`; of a cluster those that are there now."""
        return [{**each, "now": None} for each in self._described()]  # it changes every second

    def reports(self) -> list[tuners.Seen]:
        """See `engine.Engine`."""
        return reports.seen(self._described(), self._conditions, self._versions)

    def _described(self) -> list[dict[str, Any]]:
        """The devices, with the reason where nothing can be measured now."""
        if self._cluster is None:
            listed = process_rights.described(self._devices, self._start)
        else:
            listed = self._cluster.devices()
        return reports.with_faults(listed, self._conditions)

    def versions(self) -> dict[str, str]:
        """See `engine.Engine`."""
        return self._versions

    def make_ready(self) -> bool:
        """See `engine.Engine`; an engine that died, or lost its link, meanwhile is replaced."""
        if self._cluster is not None and self._cluster.generation != self._generation:
            self._replace()
        if self._has_worked and self._child.rss_bytes() > self._limits.engine_bytes / 2:
            self._replace()
        try:
            self._is_ready = self._take_ready(0.0) or self._is_ready
        except engine_child.EngineDied as error:
            _log.error("%s: another one begins", error, action="engine_died")
            self._replace()
        return self._is_ready

    def run(self, claimed: claimed_job.ClaimedJob) -> engine.Outcome:
        """See `engine.Engine`."""
        try:
            ended = self._converse(claimed, ("run", claimed.job))
        except errors.Cancelled:
            return engine.Outcome(reason="interrupted", failure=None, result=None)
        reason, failure = ended.arguments
        return engine.Outcome(reason=reason, failure=failure, result=None)

    def export(
        self, claimed: claimed_job.ClaimedJob, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[artifacts.Code]:
        """See `engine.Engine`; the engine writes in its folder, from which the file is taken."""
        made = self._child.folder / path.name
        exported = self._converse(claimed, ("export", claimed.job, made))
        messages.copy_untrusted(made, path)
        (codes,) = exported.arguments
        return [artifacts.Code(**fields) for fields in codes]

    def build_network(
        self, claimed: claimed_job.ClaimedJob, outcome: engine.Outcome, path: pathlib.Path
    ) -> networks.Built:
        """See `engine.Engine`; the engine has read a client's file and run it, so it ends."""
        made = self._child.folder / path.name
        try:
            built = self._converse(claimed, ("network", claimed.job, made))
            messages.copy_untrusted(made, path)
        finally:
            if self._has_worked:
                self._replace()
        return networks.checked(*built.arguments)

    def close(self) -> None:
        """End all processes."""
        self._child.kill()
        self._server.close()
        if self._cluster is not None:
            self._cluster.close()

    def _converse(
        self, claimed: claimed_job.ClaimedJob, request: tuple[Any, ...]
    ) -> messages.Message:
        """Send a request and serve the engine until its last message, which is returned.

        An engine that does not come to one is replaced.

        Raises:
            LeaseLost, Cancelled: it was told to stop, and did not: it was killed.
            TimeLimit, MemoryLimit: it was killed.
            EngineDied
            Exception: what the engine reported, or what ended its run here.
        """
        conversation = _Conversation(self._child, claimed, self._limits, request, self._hear)
        try:
            ended = conversation.run()
        except Exception as error:  # of any kind: the engine is replaced, the error goes on
            self._replace()
            if conversation.raised is None and isinstance(error, job_limits.Unresponsive):
                is_lost = claimed.instruction is states.Instruction.LEASE_LOST
                raise (errors.LeaseLost() if is_lost else errors.Cancelled()) from None
            raise conversation.raised or error from None
        self._has_worked = True
        if conversation.raised is not None:
            raise conversation.raised
        if ended.verb == _Verb.FAILED:
            raise messages.error_of(*map(str, ended.arguments))
        return ended

    def _begin(self) -> None:
        """Make the first engine; beside a GPU it is the one that `process_rights.choose` says."""
        if rights.nvidia_devices() and self._cluster is None:
            chosen = process_rights.choose(self._start.run_workers, self._refused)
            if chosen == self._start and self._is_ready:
                return
            self._start = chosen
            self._replace()
        self._wait_until_ready()

    def _refused(self, start: process_rights.Start) -> str | None:
        """Why an engine that starts so is of no use beside the GPU; None if it is."""
        if start != self._start:
            self._start = start
            self._replace()
        try:
            self._wait_until_ready()
        except engine_child.EngineDied as error:
            return str(error)
        return process_rights.fault(self._devices)

    def _forked(self) -> engine_child.Child:
        if self._cluster is None:
            return engine_child.fork(self._server, self._start)
        self._generation = self._cluster.generation
        return engine_child.fork(self._server, self._start, self._cluster.connect())

    def _replace(self) -> None:
        self._child.kill()
        self._child = self._forked()
        self._is_ready = self._has_worked = False

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + engine_child.START_S
        while not self._take_ready(POLL_S):
            if time.monotonic() > deadline_s:
                raise engine_child.EngineDied(
                    f"no engine is ready after {engine_child.START_S:g} s"
                )
        self._is_ready = True

    def _take_ready(self, timeout_s: float) -> bool:
        message = self._child.take(timeout_s)
        if message is not None and message.verb == _Verb.FAILED:
            raise engine_child.EngineDied(
                "no engine can be made: {}: {}".format(*message.arguments)
            )
        if message is not None and message.verb == _Verb.ALIVE:
            self._hear(message)
        if message is None or message.verb != _Verb.READY:
            return False
        self._devices, self._versions = message.arguments
        return True

    def _hear(self, alive: messages.Message) -> None:
        """Keep what the engine says of its devices; anything else counts as nothing."""
        try:
            (said,) = alive.arguments
            self._conditions = reports.checked(said)
        except (ValueError, TypeError, KeyError):
            self._conditions = {}


class _Conversation:
    """One request to an engine, until it is done, the engine dies or has to be killed."""

    def __init__(
        self,
        child: engine_child.Child,
        claimed: claimed_job.ClaimedJob,
        limits: settings.Settings,
        request: tuple[Any, ...],
        hear: Callable[[messages.Message], None],
    ) -> None:
        self._child, self._claimed, self._hear = child, claimed, hear
        is_export = request[0] in _LAST
        self._monitor = job_limits.EngineMonitor(limits, claimed, child, is_export)
        self._may_yield = self._can_stop = not is_export
        self._last = _LAST.get(request[0], _Verb.ENDED)
        #: what ended the run here
        self.raised: Exception | None = None
        child.send(*request)

    def run(self) -> messages.Message:
        """Serve until the last message.

        Raises:
            Unresponsive, TimeLimit, MemoryLimit, EngineDied
        """
        while True:
            self._instruct()
            message = self._child.take(POLL_S)
            if message is not None:
                if message.verb in (self._last, _Verb.FAILED):
                    return message
                self._serve(message)
                self._monitor.heard()
            self._monitor.check()

    def _instruct(self) -> None:
        """Tell the engine what it has to do, once."""
        instruction = self._claimed.instruction
        if self._may_yield and instruction is states.Instruction.YIELD:
            self._child.send("yield")
            self._may_yield = False
        stops = instruction is states.Instruction.STOP or self._monitor.must_end()
        if self._can_stop and stops:
            self._child.send("stop")
            self._can_stop = False

    def _serve(self, message: messages.Message) -> None:
        if message.verb == _Verb.ALIVE:
            self._hear(message)
            return
        if message.verb == _Verb.STEP:
            self._monitor.begin_step(str(message.arguments[0]))
            return
        try:
            value = answer(self._claimed, message)
        except Exception as error:  # the edge between the engine and the database
            self.raised = error
            self._monitor.end_now()
            self._child.send("refused", str(error))
        else:
            self._child.send("value", value)


def answer(claimed: claimed_job.ClaimedJob, message: messages.Message) -> Any:
    """Do what an engine's process asks for; the value to reply with.

    Raises:
        LeaseLost, MeasureError: see `job_access.JobAccess`.
        EngineFailure: there is no such verb.
    """
    if message.verb not in claimed_job.VERBS:
        raise messages.EngineFailure(f"the engine's process asked for {message.verb[:50]!r}")
    return getattr(claimed, message.verb)(*messages.decoded(message))
