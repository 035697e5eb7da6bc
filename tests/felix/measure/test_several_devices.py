"""Pools of several devices: primaries, help, calibration, thorough turns, devices taken out."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
import tvm

from felix import errors, workloads
from felix.measure import device_thread, dispatch, local, noise_probe, running, work
from felix.runner import protocol
from felix.runner.cuda import devices
from tests.support import waiting

TARGET = tvm.target.Target("llvm")
GPU = work.Device("cuda", "a GPU", 1 << 20)


class Runner(running.Runner):
    """One whose device takes `slowness` us for every candidate."""

    def __init__(self, slowness: float = 1.0, broken: str | None = None) -> None:
        self.slowness, self.broken = slowness, broken
        self.ran: list[str] = []
        self.together: threading.Barrier | None = None
        self.held = threading.Event()
        self.held.set()

    def prepare(self, state: work.TaskState) -> None:
        state.failure = self.broken

    def run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        assert self.held.wait(10)
        self.ran.append(candidate.name)
        if self.together is not None and candidate.name != "fastest":
            self.together.wait(10)  # which raises if the others never run at the same time
            self.together = None
        return protocol.Measurement.timed([10.0 * self.slowness] * 3, device=state.device.name)

    def open(self, arch: str) -> None:
        raise AssertionError("nothing is opened for one task")

    def await_return(self) -> bool:
        return False


class Pool:
    """Stages over run workers, without builders."""

    def __init__(self, *runs: Runner, watch: noise_probe.NoiseProbe | None = None) -> None:
        self.queues = dispatch.Dispatch(len(runs))
        self.stages = [
            device_thread.DeviceThread(i, each, self.queues, self._settle, "", watch)
            for i, each in enumerate(runs)
        ]
        self.n_devices = len(runs)

    def task(self) -> work.PoolTask:
        states = [
            work.TaskState(dataclasses.replace(GPU, index=index), "", work.Reference())
            for index in range(self.n_devices)
        ]
        task = work.PoolTask(self.queues.device_of_next_task(), states)
        self.queues.put(task)
        return task

    def submit(
        self, task: work.PoolTask, name: str = "", thorough: bool = False
    ) -> Future[protocol.Measurement]:
        future: Future[protocol.Measurement] = Future()
        self.queues.put(work.QueuedProgram(task, "", name, future, thorough, binary="library"))
        return future

    def start(self) -> None:
        for stage in self.stages:
            stage.start()

    def close(self) -> None:
        self.queues.close()
        for stage in self.stages:
            stage.join()

    @staticmethod
    def _settle(candidate: work.QueuedProgram, measurement: protocol.Measurement) -> None:
        candidate.future.set_result(measurement)


def _results(futures: list[Future[protocol.Measurement]]) -> list[protocol.Measurement]:
    return [future.result(10) for future in futures]


Ends = contextlib.ExitStack


def made(ends: Ends, *runs: Runner) -> Pool:
    """A pool that is closed at the end."""
    pool = Pool(*runs)
    ends.callback(pool.close)
    return pool


def begun(ends: Ends, *runs: Runner) -> tuple[Pool, work.PoolTask]:
    """A running pool and a task of which its primary has measured one candidate."""
    pool = made(ends, *runs)
    task = pool.task()
    pool.start()
    pool.submit(task).result(10)
    return pool, task


def move(pool: Pool, task: work.PoolTask) -> None:
    """The first device is gone, and the second one is the task's primary."""
    assert pool.queues.retire(0, "gone")
    task.move_to(1)


@pytest.mark.parametrize("n_devices", [2, 4])
def test_all_devices_run_candidates_of_one_task_at_the_same_time(
    ends: Ends, n_devices: int
) -> None:
    runs = [Runner() for _ in range(n_devices)]
    pool, task = begun(ends, *runs)
    together = threading.Barrier(n_devices)
    for each in runs:
        each.together = together
    results = _results([pool.submit(task) for _ in range(3 * n_devices)])
    assert [each.latency_us for each in results] == [10.0] * len(results)
    assert all(each.together is None for each in runs)


def test_latencies_of_a_helper_are_those_of_the_home(ends: Ends) -> None:
    primary, helper = Runner(1.0), Runner(1.1)
    pool, task = begun(ends, primary, helper)
    primary.held.clear()
    futures = [pool.submit(task, str(number)) for number in range(6)]
    helped = _results(futures[1:4])  # while the primary is held up by another one
    primary.held.set()
    assert [each.latency_us for each in helped] == pytest.approx([10.0] * 3)
    assert [each.latency_us for each in _results(futures)] == pytest.approx([10.0] * 6)
    assert helper.ran[0] == "fastest" and helper.ran.count("fastest") == 1


def test_thorough_measurements_are_of_the_primary_alone(ends: Ends) -> None:
    primary, helper = Runner(), Runner()
    pool, task = begun(ends, primary, helper)
    _results([pool.submit(task, "final", thorough=True) for _ in range(8)])
    assert primary.ran.count("final") == 8 and "final" not in helper.ran


def test_a_throttled_device_measures_nothing_of_a_task(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    primary, slow = Runner(1.0), Runner(1.5)
    pool, task = begun(ends, primary, slow)
    results = _results([pool.submit(task, "c") for _ in range(20)])
    assert [each.latency_us for each in results] == [10.0] * 20
    assert set(slow.ran) <= {"fastest"} and primary.ran.count("c") == 20
    assert all("1.50 times as long" in text for text in task.refused.values())


def test_a_calibration_that_is_interrupted_says_nothing_about_the_device(ends: Ends) -> None:
    primary, helper = Runner(), Runner()
    pool, task = begun(ends, primary, helper)
    run = helper.run

    def interrupted(candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        pool.queues.drain()
        return candidate.failed(protocol.ErrorClass.LAUNCH, "killed")

    helper.run = interrupted  # type: ignore[method-assign]
    move(pool, task)
    failed = pool.submit(task).result(10)
    assert failed.error is protocol.ErrorClass.INFRASTRUCTURE
    assert failed.message == "the pool was interrupted" and not task.refused
    helper.run = run  # type: ignore[method-assign]
    assert pool.submit(task).result(10).ok


def test_a_broken_device_is_taken_out_with_its_reason_and_loses_nothing(ends: Ends) -> None:
    fine, broken = Runner(), Runner(broken="error 999 in cuInit")
    pool = made(ends, broken, fine)
    tasks = [pool.task() for _ in range(4)]
    futures = [pool.submit(task) for task in tasks for _ in range(5)]
    pool.start()
    assert all(each.ok for each in _results(futures))
    assert not broken.ran and pool.queues.faults == {0: "error 999 in cuInit"}
    assert {task.primary for task in tasks} == {1}
    assert pool.task().primary == 1


def test_the_last_device_stays_and_says_what_is_wrong() -> None:
    pool = Pool(Runner(broken="broken"))
    assert not pool.queues.retire(0, "broken")
    assert pool.queues.faults == {} and pool.task().primary == 0


def test_a_task_that_moves_is_calibrated_against_its_first_home(ends: Ends) -> None:
    """By more than a helper may differ."""
    first, second = Runner(1.0), Runner(2.0)
    pool, task = begun(ends, first, second)
    task.refused[1] = "it differed when it was to help"
    move(pool, task)
    again = pool.submit(task, "c", thorough=True).result(10)
    assert again.latency_us == pytest.approx(10.0) and second.ran == ["fastest", "c"]


def test_a_helper_that_becomes_the_home_while_it_is_compared(ends: Ends) -> None:
    first, second = Runner(1.0), Runner(2.0)
    pool, task = begun(ends, first, second)
    run = second.run

    def moved(candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        if candidate.name == "fastest" and task.primary == 0:
            move(pool, task)
        return run(candidate, state)

    second.run = moved  # type: ignore[method-assign]
    first.held.clear()
    futures = [pool.submit(task, "c") for _ in range(3)]
    helped = [future.result(10) for future in futures[1:]]
    assert [each.latency_us for each in helped] == pytest.approx([10.0] * 2)
    first.held.set()
    futures[0].result(10)


def test_a_task_whose_new_home_differs_much_fails_with_the_reason(ends: Ends) -> None:
    first, second = Runner(1.0), Runner(4.0)
    pool, task = begun(ends, first, second)
    move(pool, task)
    failed = pool.submit(task).result(10)
    assert failed.error is protocol.ErrorClass.INFRASTRUCTURE
    assert "4.00 times as long" in failed.message
    assert second.ran == ["fastest"] * device_thread.PRIMARY_TRIES


def test_a_new_home_is_as_fast_as_it_is_where_the_first_was_busy(ends: Ends) -> None:
    pool, task = begun(ends, Runner(8.0), Runner(1.0))
    move(pool, task)
    assert pool.submit(task).result(10).latency_us == 80.0  # as the first primary would have it
    assert task.scales[1] == 8.0


def test_devices_are_compared_by_the_fastest_candidate(ends: Ends) -> None:
    first, second = Runner(8.0), Runner(1.0)
    pool, task = begun(ends, first, second)  # while it was busy
    first.slowness = 1.0
    pool.submit(task, "later", thorough=True).result(10)
    assert task.fastest == work.Fastest("library", 10.0)
    move(pool, task)
    assert pool.submit(task).result(10).latency_us == 10.0


def test_a_new_home_that_is_busy_for_a_moment_measures(ends: Ends) -> None:
    class BusyOnce(Runner):
        def run(self, *args: Any) -> protocol.Measurement:
            measurement = super().run(*args)
            self.slowness = 1.0
            return measurement

    second = BusyOnce(4.0)
    pool, task = begun(ends, Runner(1.0), second)
    move(pool, task)
    assert pool.submit(task, "later").result(10).latency_us == 10.0
    assert second.ran == ["fastest", "fastest", "later"]


def _queued(queues: dispatch.Dispatch, number: int) -> work.PoolTask:
    """A task whose primary is device 0, with so many candidates that wait."""
    state = work.TaskState(GPU, "", work.Reference())
    task = work.PoolTask(0, [state] * 4)
    for each in range(number):
        queues.put(work.QueuedProgram(task, "", str(each), Future()))
    return task


def test_a_helper_takes_its_share_and_leaves_the_home_something() -> None:
    queues = dispatch.Dispatch(2)
    _queued(queues, 6).fastest = work.Fastest("", 1.0)
    first = queues.take(1)
    assert isinstance(first, work.QueuedProgram) and first.name == "0"
    assert [each.name for each in queues.take_more(1, 7)] == ["1", "2", "3"]
    assert [each.name for each in queues.take_more(1, 7)] == ["4"]
    assert queues.take_more(1, 7) == []
    assert isinstance(queues.take(0), work.QueuedProgram) and queues.is_empty


def test_one_batch_takes_a_share_of_what_waits() -> None:
    queues = dispatch.Dispatch(2)
    _queued(queues, 9)
    assert [each.name for each in queues.take_more(0, 7)] == ["0", "1", "2", "3", "4"]
    assert len(queues.take_more(0, 1)) == 1


def test_one_candidate_that_comes_wakes_as_many_helpers_as_have_something_to_do() -> None:
    queues = dispatch.Dispatch(4)
    task = _queued(queues, 5)
    taken: list[dispatch.Item | None] = []
    helpers = [
        threading.Thread(target=lambda index=index: taken.append(queues.take(index)))
        for index in (1, 2, 3)
    ]
    for helper in helpers:
        helper.start()
    # nobody may help before one is timed
    waiting.until(lambda: len(queues._idle) == 3)
    task.fastest = work.Fastest("", 1.0)
    queues.put(work.QueuedProgram(task, "", "5", Future()))
    for helper in helpers:
        helper.join(10)
        assert not helper.is_alive()
    assert {each.name for each in taken if isinstance(each, work.QueuedProgram)} == set("012")


# ------------------------------------------------------------ a pool with real processes


def test_a_pool_of_two_devices_measures_two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [workloads.gemm(n, n, n, target="llvm -num-cores 1") for n in (32, 48)]
    cpu = local.of(tasks[0].target)
    pair = (cpu, dataclasses.replace(cpu, index=1))
    monkeypatch.setattr(local, "chosen", lambda target, indices: pair)
    options = local.LocalOptions(builders=1, devices="all")
    with local.LocalPool(tasks[0], options) as pool:
        assert pool.n_devices == 2
        views = [pool.for_task(task) for task in tasks]
        futures = [
            view.submit(task.mod)
            for _ in range(3)
            for view, task in zip(views, tasks, strict=True)
        ]
        results = [future.result(60) for future in futures]
        assert all(each.ok and each.checked for each in results), results
        assert {task.primary for task in pool._tasks.values()} == {0, 1}
        pids = pool.worker_pids()
        assert pids["runner-0"] and pids["runner-1"] and pids["runner-0"] != pids["runner-1"]


# ------------------------------------------------------------ which devices


class _Driver:
    """Of devices whose UUIDs are their numbers."""

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetUuid(self, content: Any, device: Any) -> int:
        content.raw = device.value.to_bytes(16, "big")
        return 0


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models of the GPUs of this machine."""
    models = ["H200", "H200", "H200"]
    monkeypatch.setattr(local, "of", lambda target: GPU)
    monkeypatch.setattr(devices, "count", lambda: len(models))
    monkeypatch.setattr(devices, "name", lambda index: models[index])
    monkeypatch.setattr(devices, "_library", _Driver)
    return models


def test_the_chosen_gpus_are_seen_one_by_each_worker(gpus: list[str]) -> None:
    chosen = local.chosen(TARGET, "all")
    assert [device.index for device in chosen] == [0, 1, 2]
    assert chosen[2].visible == "GPU-00000000-0000-0000-0000-000000000002"
    assert [device.index for device in local.chosen(TARGET, (2, 0))] == [2, 0]
    assert local.chosen(TARGET, (0,)) == (GPU,)


@pytest.mark.parametrize(
    ("indices", "message"),
    [((3,), "no GPU 3 here: they are 0 to 2"), ((), "name one GPU"), ((1, 1), "different ones")],
)
def test_gpus_that_are_not_there_are_refused(gpus: list[str], indices: Any, message: str) -> None:
    with pytest.raises(errors.MeasureError, match=message):
        local.chosen(TARGET, indices)


def test_gpus_of_two_models_are_refused(gpus: list[str]) -> None:
    gpus[1] = "L4"
    with pytest.raises(errors.MeasureError, match="GPU 1 is a L4 and GPU 0 a H200"):
        local.chosen(TARGET, "all")
    assert len(local.chosen(TARGET, (0, 2))) == 2


def test_homes_are_balanced() -> None:
    """After a device is out, too."""
    queues = dispatch.Dispatch(3)
    assert [queues.device_of_next_task() for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert queues.retire(1, "gone")
    assert Counter(queues.device_of_next_task() for _ in range(6)) == {0: 3, 2: 3}
