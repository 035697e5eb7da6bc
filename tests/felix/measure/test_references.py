"""References in a pool: built once for all devices, before their candidates run, and again."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import tvm

from felix.measure import building, device_thread, rights, staged, work
from felix.runner import protocol
from tests.felix.measure import contract
from tests.felix.measure import test_several_devices as several
from tests.support import pool_programs as programs

GEMM = tvm.IRModule({"main": programs.gemm})
MADE = work.Built("reference.so", "a description")
FAILED = work.Built(error=protocol.ErrorClass.BUILD, message="no compiler")
TOO_LONG = work.Built(error=protocol.ErrorClass.TIMEOUT, message="building: no answer")


class Builder:
    """Builds everything at once, but references as it is told to."""

    def __init__(self, *references: work.Built | Exception) -> None:
        self.references = list(references)
        self.asked: list[str] = []
        self.may_make = threading.Event()
        self.may_make.set()

    def build(self, payload: str, name: str) -> work.Built:
        return work.Built("candidate.so")

    def reference(self, payload: str, name: str) -> work.Built:
        self.asked.append(name)
        assert self.may_make.wait(10)
        made = self.references.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    def await_return(self) -> bool:
        return True


class Runner(several.Runner):
    """Notes in which order tasks and candidates come."""

    def prepare(self, state: work.TaskState) -> None:
        self.ran.append("prepare")
        state.failure = state.reference.failure

    def run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        if state.failure == work.NOT_COMPUTED:
            self.prepare(state)
        if state.failure is not None:
            return candidate.failed(protocol.ErrorClass.INFRASTRUCTURE, state.failure)
        return super().run(candidate, state)


class Pool(staged.StagedPool):
    """Stages over builders and run workers that are no processes."""

    def __init__(self, folder: pathlib.Path, builders: list[Builder], runs: list[Runner]) -> None:
        devices = [work.Device("cpu", "a CPU", 0, index) for index in range(len(runs))]
        super().__init__("llvm", rights.Folders.make(folder, 1 << 20), devices)
        self._builds = building.Builders(builders, self._references.built, self._settle)
        self._stages = [
            device_thread.DeviceThread(index, each, self._queues, self._finish, "")
            for index, each in enumerate(runs)
        ]
        self._start()
        self._task = self._task_of(contract.task())

    def _end(self) -> None:
        pass


@pytest.fixture
def make(tmp_path: pathlib.Path, ends: several.Ends) -> Callable[..., Pool]:
    def made(builders: list[Builder], runs: list[Runner]) -> Pool:
        return ends.enter_context(Pool(tmp_path, builders, runs))

    return made


def test_several_devices_have_one_reference(make: Callable[..., Pool]) -> None:
    builder, runs = Builder(MADE), [Runner(), Runner(), Runner()]
    pool = make([builder], runs)
    assert pool.submit(GEMM).result(10).ok
    assert all(each.ok for each in pool.measure([GEMM] * 30))
    assert builder.asked == ["reference-0"]
    assert {id(state.reference) for state in pool._task.states} == {id(pool._task.reference)}


def test_candidates_wait_for_their_reference(make: Callable[..., Pool]) -> None:
    slow, other, runs = Builder(MADE), Builder(), Runner()
    slow.may_make.clear()
    pool = make([slow], [runs])
    time.sleep(0.1)  # the slow one has it
    pool._builds.add(other)
    futures = [pool.submit(GEMM) for _ in range(3)]
    time.sleep(0.2)
    assert len(pool._references._early[pool._task]) == 3 and runs.ran == []
    slow.may_make.set()
    assert all(future.result(10).ok for future in futures)
    assert runs.ran[0] == "prepare" and runs.ran.count("prepare") == 1


def test_no_candidate_overtakes_its_task() -> None:
    """Its reference is there, and the builder has not yet said so."""
    handed: list[Any] = []
    waiting: list[work.PoolTask] = []
    between = building.References(waiting.append, handed.append)
    state = work.TaskState(several.GPU, "", work.Reference())
    task = work.PoolTask(0, [state])
    candidate = work.QueuedProgram(task, "", "candidate", Future())
    between.ask(task)
    task.reference.settle(MADE)
    between.built(candidate)
    assert handed == [] and waiting == [task]
    between.built(task)
    assert handed == [task, candidate]


def test_a_reference_that_failed_is_built_once_more(make: Callable[..., Pool]) -> None:
    pool = make([Builder(FAILED, MADE)], [Runner()])
    assert pool.submit(GEMM).result(10).ok


@pytest.mark.parametrize(
    ("tries", "message"),
    [
        ([FAILED, FAILED], "no compiler"),
        ([TOO_LONG], "no answer"),
        ([work.WorkerGone("it is gone")] * 3, "building: it is gone"),
    ],
)
def test_without_a_reference_candidates_fail(
    tries: list[Any], message: str, make: Callable[..., Pool]
) -> None:
    builder = Builder(*tries)
    pool = make([builder], [Runner()])
    failed = pool.measure([GEMM] * 3)
    assert {each.error for each in failed} == {protocol.ErrorClass.INFRASTRUCTURE}
    assert all(each.message.endswith(message) for each in failed)
    assert builder.references == []
    builder.references.append(MADE)  # whoever asks anew gets another one
    assert pool.for_task(contract.task()).measure([GEMM])[0].ok


def test_an_interrupted_pool_makes_references_when_they_are_needed(
    make: Callable[..., Pool],
) -> None:
    pool = make([], [Runner()])
    future = pool.submit(GEMM)
    pool.interrupt()
    assert future.cancelled()
    builder = Builder(MADE)
    pool._builds.add(builder)
    time.sleep(0.1)
    assert builder.asked == []
    assert pool.submit(GEMM).result(10).ok
    assert builder.asked == ["reference-0"]


def test_a_pool_that_is_closed_leaves_no_candidate(make: Callable[..., Pool]) -> None:
    slow = Builder(MADE)
    slow.may_make.clear()
    pool = make([slow], [Runner()])
    time.sleep(0.1)
    pool._builds.add(Builder())
    future = pool.submit(GEMM)
    while not pool._references._early:
        time.sleep(0.01)
    threading.Timer(0.2, slow.may_make.set).start()
    pool.close()
    assert future.result(0).error is protocol.ErrorClass.INFRASTRUCTURE
