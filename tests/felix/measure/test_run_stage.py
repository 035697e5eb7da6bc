"""What the pool makes of the run worker's answers: whose fault, who tries again, who ends."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import Future
from typing import Any

import pytest
import tvm
from tvm.script import tirx as T

from felix import errors
from felix.measure import local, locks, running, work, worker_main
from felix.measure import worker as pool_worker
from felix.processes import policy
from felix.runner import protocol
from felix.task import Task
from tests.support import tir_programs

GOOD = {"latencies_us": [2.0, 3.0, 4.0], "seconds": 0.1}
BROKEN = {"error": "infrastructure", "message": "broken", "seconds": 0.1}
DEVICE = work.Device("cuda", "a GPU", 1 << 20)


class Worker:
    """Answers from a list, after it has asked for quiet; notes what happened while it was."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.verbs: list[str] = []
        self.kills = 0
        self.is_quiet = False
        self.pid: int | None = None
        self.is_confined = True
        self.confined_calls: list[bool] = []

    def call(self, request: dict[str, Any], timeout_s: float, begin: Any) -> dict[str, Any]:
        self.verbs.append(request["verb"])
        self.confined_calls.append(self.is_confined)
        self.pid = 4711
        begin()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        assert self.is_quiet, "ending a context disturbs who measures"
        self.kills += 1
        self.pid = None

    def acquire(self) -> None:
        self.is_quiet = True

    def release(self) -> None:
        self.is_quiet = False


def _runs(
    scripted: Any, confine_gpu: policy.ConfineGpu = policy.ConfineGpu.AUTO
) -> running.LocalRunner:
    quiet = running.Quiet(scripted, ())
    options = work.LocalOptions(confine_gpu=confine_gpu)
    return running.LocalRunner(scripted, quiet, options, DEVICE)


def _candidate(state: work.TaskState) -> work.QueuedProgram:
    task = work.PoolTask(0, [state])
    return work.QueuedProgram(task=task, payload="", name="", future=Future(), build_s=1.5)


@pytest.fixture
def state() -> work.TaskState:
    return work.TaskState(DEVICE, "folder", work.Reference("a task", "reference.cubin"))


@pytest.mark.parametrize(
    ("answers", "kills", "message"),
    [
        ([BROKEN, {"seconds": 0.1}, GOOD, GOOD], 1, ""),
        ([BROKEN, BROKEN], 2, "no reference: broken"),
        ([pool_worker.WorkerTimeout("no answer within 120 s", 0.0)], 0, "no answer within 120 s"),
    ],
    ids=["it fails once", "it fails twice", "it takes too long"],
)
def test_a_failed_reference_costs_the_worker_and_is_tried_once_more(
    state: work.TaskState, answers: list[Any], kills: int, message: str
) -> None:
    """And not for every candidate."""
    scripted = Worker(*answers)
    runs = _runs(scripted)
    runs.prepare(state)
    results = [runs.run(_candidate(state), state) for _ in range(2)]
    error, latency_us = (protocol.ErrorClass.INFRASTRUCTURE, None) if message else (None, 3.0)
    assert {(each.error, each.latency_us) for each in results} == {(error, latency_us)}
    assert all(message in each.message for each in results)
    assert scripted.verbs == ["prepare", "prepare", "run", "run"][: len(answers)]
    assert scripted.kills == kills


@pytest.mark.parametrize(
    ("answer", "error", "kills"),
    [
        ({"error": "launch", "message": "refused", "reusable": True}, "launch", 0),
        ({"error": "launch", "message": "crashed", "reusable": False}, "launch", 1),
        ({"error": "launch", "message": "raised"}, "launch", 1),
        ({"error": "wrong_result", "message": "output c"}, "wrong_result", 1),
        ({"error": "infrastructure", "message": "no memory"}, "infrastructure", 1),
        (pool_worker.WorkerTimeout("no answer", 0.0), "timeout", 0),
        (pool_worker.WorkerDied(11, "", 0.0), "launch", 0),
        (pool_worker.WorkerDied(9, "", 0.0), "infrastructure", 0),
        (errors.MeasureError("cannot open felix-device.lock"), "infrastructure", 0),
    ],
)
def test_errors_have_a_class_and_may_cost_the_worker(
    state: work.TaskState, answer: dict[str, Any] | Exception, error: str, kills: int
) -> None:
    is_reply = isinstance(answer, dict)
    scripted = Worker({"seconds": 0.1}, answer | {"seconds": 0.2} if is_reply else answer)
    runs = _runs(scripted)
    runs.prepare(state)
    result = runs.run(_candidate(state), state)
    assert result.error == error and scripted.kills == kills
    assert result.message.endswith(answer["message"] if is_reply else str(answer))
    assert result.build_s == 1.5 and result.device == "a GPU"
    assert not scripted.is_quiet


def test_quiet_ends_with_the_request_whatever_comes_of_it(state: work.TaskState) -> None:
    scripted = Worker(pool_worker.WorkerDied(11, "", 0.0))
    _runs(scripted).prepare(state)
    assert not scripted.is_quiet and state.failure is not None
    shared = locks.ReadWriteLock()
    with pytest.raises(ValueError), running.Quiet(shared, ()).until_end() as begin:
        begin()
        begin()  # a worker may ask more than once
        raise ValueError
    with shared.shared():  # does not wait
        pass


# ---------------------------------------------------------------- the other end


@pytest.mark.parametrize(
    ("verb", "raised", "error"),
    [
        ("build", ValueError("no"), "build"),
        ("build_cuda", ValueError("no"), "build"),
        ("run", ValueError("no"), "launch"),
        ("prepare", ValueError("no"), "infrastructure"),
        ("build_cuda", errors.MeasureError("no NVRTC"), "infrastructure"),
        ("run", errors.MeasureError("no driver"), "infrastructure"),
    ],
)
def test_what_a_verb_raises_has_a_class(verb: str, raised: Exception, error: str) -> None:
    def raises() -> dict[str, Any]:
        raise raised

    reply = worker_main._answer(verb, raises, {})
    assert reply["error"] == error and str(raised) in reply["message"]
    assert json.dumps(reply)


@pytest.mark.parametrize(
    ("verb", "seconds"), [("build", 0.0), ("build_cuda", 0.0), ("run", 0.2), ("prepare", 0.2)]
)
def test_seconds_of_a_build_are_those_of_the_cpu(
    verb: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it waits for 0.2 s."""
    clocks = {"perf_counter": iter([1.0, 1.2]), "process_time": iter([5.0, 5.0])}
    for name, ticks in clocks.items():
        monkeypatch.setattr(worker_main.time, name, lambda ticks=ticks: next(ticks))
    assert worker_main._answer(verb, dict, {})["seconds"] == pytest.approx(seconds)


# ---------------------------------------------------------------- real processes


double = tir_programs.mapped(lambda a: a + a, (64,), names="a")


@tir_programs.prim_func(s_tir=True)
def too_large(a: T.Buffer((1 << 50,), "float32"), c: T.Buffer((1 << 50,), "float32")):
    for i in T.serial(T.int64(1 << 50)):
        with T.sblock("c"):
            vi = T.axis.spatial(T.int64(1 << 50), i)
            c[vi] = a[vi] + a[vi]


def test_a_worker_that_failed_to_prepare_a_task_does_not_serve_the_next() -> None:
    mod, broken = (
        tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        for func in (double, too_large)
    )
    good = Task.from_prim_func(double, "llvm -num-cores 2")
    bad = dataclasses.replace(good, mod=broken)  # which is refused where tasks are made
    with local.LocalPool(good, work.LocalOptions(builders=1)) as pool:
        assert pool.measure([mod])[0].ok
        pid = pool.worker_pids()["runner"]
        (result,) = pool.for_task(bad).measure([mod])
        assert result.error is protocol.ErrorClass.INFRASTRUCTURE
        assert "Unable to allocate" in result.message
        assert pool.measure([mod])[0].ok
        assert pool.worker_pids()["runner"] != pid


# ---------------------------------------------------------------- opening a GPU

OPENED = {"seconds": 0.1}
REFUSED = {"error": "infrastructure", "message": "304 in cuInit", "seconds": 0.1}
MISSING = {"error": "infrastructure", "message": "no CUDA driver here", "seconds": 0.1}
CRASH = pool_worker.WorkerDied(11, "", 0.0)


def test_a_driver_that_works_confined_is_opened_once() -> None:
    scripted = Worker(OPENED)
    runs = _runs(scripted)
    runs.open("sm_90")
    assert scripted.verbs == ["open"] and scripted.kills == 0
    assert scripted.is_confined and runs.unconfined is None


@pytest.mark.parametrize("refusal", [REFUSED, CRASH], ids=["an error", "a crash"])
def test_a_driver_that_needs_more_rights_gets_them_and_it_is_said(
    refusal: dict[str, Any] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    scripted = Worker(refusal, OPENED, refusal)
    runs = _runs(scripted)
    runs.open("sm_90")
    assert scripted.confined_calls == [True, False, True]
    assert not scripted.is_confined and runs.unconfined is not None
    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert runs.unconfined in line.getMessage() and "not confined" in line.getMessage()


def test_a_fault_that_has_passed_leaves_the_worker_confined() -> None:
    scripted = Worker(MISSING, OPENED, OPENED)
    runs = _runs(scripted)
    runs.open("sm_90")
    assert scripted.is_confined and runs.unconfined is None


def test_a_broken_gpu_is_told_as_it_is_and_nothing_runs_unconfined(state: work.TaskState) -> None:
    scripted = Worker(REFUSED, MISSING, REFUSED, OPENED, GOOD)
    runs = _runs(scripted)
    runs.open("sm_90")
    assert scripted.is_confined and runs.unconfined is None
    runs.prepare(state)
    assert state.failure == "no CUDA driver here"
    assert runs.run(_candidate(state), state).ok  # it is there again
    assert scripted.confined_calls == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([REFUSED, OPENED, REFUSED], "does not work in a confined process: 304 in cuInit"),
        ([REFUSED, MISSING], "cannot be used: no CUDA driver here"),
    ],
)
def test_where_confinement_is_required_a_gpu_that_needs_more_is_refused(
    answers: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(errors.MeasureError, match=message):
        _runs(Worker(*answers), policy.ConfineGpu.ON).open("sm_90")


def test_without_confinement_nothing_is_tried() -> None:
    scripted = Worker()
    runs = _runs(scripted, policy.ConfineGpu.OFF)
    runs.open("sm_90")
    assert not scripted.is_confined and scripted.verbs == []
