"""Comparison with PyTorch: requests, answers, timing, options and the report."""

from __future__ import annotations

import functools
import importlib.util
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from felix import workloads
from felix.cli import main, report
from felix.cli.commands import tune
from felix.cli.comparison import libraries, torch_child
from felix.measure import locks
from felix.processes import child
from felix.runner import protocol
from felix.runner.calls import cpu_calls, cuda_calls
from felix.tuning import pacing, results
from tests.support import tuning_fakes as fakes

CONV = "conv2d:1,6,6,4,8,3,padding=1,epilogue=bias"
GEMM = "gemm:16,16,16"
CPU = "llvm -num-cores 3"
Request = dict[str, Any]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, int | None, float]]:
    """What children are started with; they answer 5 us."""
    started: list[tuple[Request, int | None, float]] = []

    def timed(request: Request, threads: int | None, timeout_s: float) -> libraries.LibraryTime:
        started.append((json.loads(json.dumps(request)), threads, timeout_s))
        return libraries.LibraryTime(5.0, "a note")

    monkeypatch.setattr(libraries, "timed", timed)
    return started


def _answer(
    answer: Callable[[Mapping[str, Any]], libraries.LibraryTime],
    request: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> libraries.LibraryTime:
    """A child's answer, run in this process with few repeats."""
    monkeypatch.setattr(cpu_calls, "MAX_REPEATS", 2)
    monkeypatch.setattr(cpu_calls, "PAUSE_S", 0.0)
    return answer(request)


def test_children_get_the_target_s_threads_and_the_program(requests: Any) -> None:
    task = workloads.parse(GEMM, CPU)
    times = libraries.measure(task, GEMM, ["torch", "inductor"])
    assert {time.latency_us for time in times.values()} == {5.0}
    assert [limits for _, *limits in requests] == [[3, 60.0], [3, 600.0]]
    eager, compiled = (request for request, _, _ in requests)
    assert [a["name"] for a in eager["arguments"] if a["is_input"]] == ["A", "B"]
    assert (eager["device"], eager["compiled"], compiled["compiled"]) == ("cpu", False, True)
    assert (eager["operator"], eager["params"]) == ("gemm", {"m": 16, "n": 16, "k": 16})


def test_what_has_no_form_says_why(requests: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = workloads.parse(CONV, CPU)
    times = libraries.measure(task, None, libraries.DEFAULT)
    assert times["torch"].latency_us is None and "catalogue" in times["torch"].note
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    without = libraries.measure(task, CONV, ["torch"])
    assert without == {"torch": libraries.LibraryTime(None, "PyTorch is not installed")}
    assert requests == []


def test_types_that_a_library_lacks_say_why(
    requests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "gemm:16,16,16,dtype=bfloat16"
    libraries.measure(workloads.parse(text, CPU), text, ["torch"])
    text = "conv2d:1,6,6,4,8,3,dtype=int8"
    libraries.measure(workloads.parse(text, CPU), text, ["torch"])
    of_bfloat16, of_int8 = (request for request, _, _ in requests)
    timed = _answer(torch_child.answer, of_bfloat16, monkeypatch)
    assert timed.latency_us is not None and "bfloat16 between its calls" in timed.note
    refused = _answer(torch_child.answer, of_int8, monkeypatch)
    assert refused.latency_us is None and "PyTorch's convolutions are of floats" in refused.note


def test_on_gpus_threads_are_pytorchs(requests: list[Any]) -> None:
    task = workloads.parse(CONV, "h100")
    assert list(libraries.measure(task, CONV, libraries.DEFAULT)) == ["torch"]
    ((request, threads, _),) = requests
    assert request["device"] == "cuda" and threads is None


@pytest.mark.parametrize(
    ("answer", "latency_us", "note"),
    [
        ({"latency_us": 2.5, "note": "how"}, 2.5, "how"),
        (child.Unanswered("ValueError: why", 1), None, "it failed: ValueError: why"),
        (TimeoutError(), None, "it took over 7 s"),
    ],
)
def test_a_process_answers_fails_or_takes_too_long(
    answer: Any, latency_us: float | None, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(module: str, request: Request, timeout_s: float, environment: Any) -> Any:
        assert module == "felix.cli.comparison.torch_child"
        assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "4"
        assert request == {"a": 1} and timeout_s == 7.0
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(child, "ask", ask)
    time = libraries.timed({"a": 1}, 4, 7.0)
    assert time == libraries.LibraryTime(latency_us, note)


@pytest.mark.parametrize("text", [CONV, GEMM])
def test_pytorch_is_timed_on_the_cpu(
    text: str, requests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = workloads.parse(text, CPU)
    libraries.measure(task, text, ["torch"])
    ((request, _, _),) = requests
    answer = _answer(torch_child.answer, request, monkeypatch)
    assert answer.latency_us is not None and 0 < answer.latency_us < 1e6
    assert answer.note.startswith(f"{torch.__version__} (") and "thread" in answer.note
    assert ("channels last" in answer.note) == (text == CONV)


def test_inputs_are_flushed_before_each_call_and_the_median_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    # A timed call, the end of timing, then a look at the clock before each further call.
    clock = iter([0.0, 9e-6, 0.0, 0.0, 1.0, 1.0 + 5e-6, 0.0, 2.0, 2.0 + 4e-6, 99.0])
    monkeypatch.setattr(
        cpu_calls.cpu_timing, "flusher", lambda size: lambda *a: log.append(f"{a}")
    )
    fake = types.SimpleNamespace(
        perf_counter=lambda: next(clock), sleep=lambda seconds: log.append("pause")
    )
    monkeypatch.setattr(cpu_calls, "time", fake)
    monkeypatch.setattr(cpu_calls, "BURST", 2)
    median_us = cpu_calls.median_us(lambda: log.append("call"), ["x"])
    assert median_us == pytest.approx(5.0)
    assert log == ["call", *["('x',)", "call"] * 2, "pause", "('x',)", "call"]


def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU whose events are 2 us apart; returns what is queued."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, end: Any) -> float:
            return 0.002  # milliseconds

    def zeros(count: int, **kwargs: Any) -> Any:
        assert count * 4 == 2 * 1024
        return types.SimpleNamespace(sum=lambda: log.append("read"))

    device = types.SimpleNamespace(L2_cache_size=1024)
    monkeypatch.setattr(torch, "zeros", zeros)
    calls = {
        "_sleep": lambda cycles: log.append(f"delay {cycles}"),
        "Event": Event,
        "current_device": lambda: 0,
        "get_device_name": lambda: "H999",
        "get_device_properties": lambda index: device,
        "is_available": lambda: True,
        "synchronize": lambda: log.append("wait"),
    }
    for name, fake in calls.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return log


def test_gpu_calls_wait_behind_a_delay_and_a_read_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _fake_gpu(monkeypatch)
    assert cuda_calls.median_us(lambda: log.append("call")) == 2.0
    assert log[-6:] == ["delay 1000000", "read", "event", "call", "event", "wait"]
    delays = [entry for entry in log if entry.startswith("delay")]
    assert len(delays) == cuda_calls.CALLS
    monkeypatch.setattr(cuda_calls, "_queueing_s", lambda call: 1e-3)
    cuda_calls.median_us(lambda: None)
    assert log[-5] == "delay 4000000"  # the CPU needs 1 ms to queue the call


def test_gpu_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _fake_gpu(monkeypatch)
    calls = {name: functools.partial(log.append, name) for name in ("a", "b")}
    latencies_us = cuda_calls.in_turns_us(calls, turns=2, burst=3)
    assert latencies_us == {"a": [2.0] * 6, "b": [2.0] * 6}
    timed = [entry for entry in log if entry in ("a", "b")]
    assert "".join(timed[-12:]) == "aaabbbaaabbb"


def test_the_note_of_a_gpu_says_what_was_timed(
    requests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries.measure(workloads.parse(CONV, CPU), CONV, ["torch"])
    request = {**requests[0][0], "device": "cuda"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = _answer(torch_child.answer, request, monkeypatch)
    assert answer == libraries.LibraryTime(None, f"{torch.__version__} has no GPU here")
    log = _fake_gpu(monkeypatch)
    inputs = torch_child.random_inputs
    monkeypatch.setattr(torch_child, "random_inputs", lambda *of: inputs(*of[:2], "cpu"))
    lock = types.SimpleNamespace(
        acquire=lambda: log.append("acquired"), release=lambda: log.append("released")
    )
    monkeypatch.setattr(locks, "for_gpu", lambda: lock)
    answer = _answer(torch_child.answer, request, monkeypatch)
    assert answer.latency_us == 2.0
    assert (log[0], log[-1]) == ("acquired", "released") and "event" in log
    for words in ("H999", "TF32 off", "cold L2", "channels last", "without launch overhead"):
        assert words in answer.note
    assert not torch.backends.cudnn.allow_tf32
    allowed = _answer(torch_child.answer, request | {"allow_tf32": True}, monkeypatch)
    assert "TF32 allowed" in allowed.note
    assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32


def test_libraries_may_use_the_arithmetic_of_the_task(requests: list[Any]) -> None:
    for task in (workloads.parse(CONV, "h100"), workloads.parse(CONV, "h100").allowing_tf32()):
        libraries.measure(task, CONV, ["torch"])
    assert [request["allow_tf32"] for request, _, _ in requests] == [False, True]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ("torch",)),
        (["--compare", "torch+inductor"], ("torch", "inductor")),
        (["--compare", "none"], ()),
    ],
)
def test_options_choose_the_libraries(
    options: list[str], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = main._parser().parse_args(["tune", GEMM, "file.json", GEMM, *options])
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(libraries, "measure", lambda *args: calls.append(args) or {"torch": 1})
    network = types.SimpleNamespace(
        results=[
            types.SimpleNamespace(task=i, best_or_none=best) for i, best in enumerate([1, 2, None])
        ]
    )
    compared = tune._compared(network, arguments)
    assert calls == [(0, GEMM, expected), (1, None, expected)]
    assert compared == [{"torch": 1}, {"torch": 1}, {}]


def test_an_unknown_library_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["tune", GEMM, "--compare", "torch+cublas"])
    assert "'cublas' is none of torch, inductor, none" in capsys.readouterr().err


def _result(text: str, target: str, best_us: float | None) -> results.TuneResult:
    task = workloads.parse(text, target)
    best = best_us and results.Unscheduled(task, protocol.Measurement.timed([best_us]))
    return results.TuneResult(
        task=task,
        records=(),
        curve=(),
        best_or_none=best or None,
        unscheduled_us=None,
        reason="trials",
        breakdown=pacing.Breakdown(),
    )


def test_the_report_has_a_column_and_a_note_for_each_library() -> None:
    tasks = [_result(GEMM, CPU, 2.0), _result(CONV, CPU, 4.0), _result(GEMM, CPU, None)]
    compiled, torch_time = (
        libraries.LibraryTime(3.0, "3 threads"),
        libraries.LibraryTime(7.0, "how"),
    )
    compared = [
        {"inductor": compiled, "torch": torch_time},
        {"inductor": libraries.LibraryTime(None, "no form"), "torch": torch_time},
        {},
    ]
    text = fakes.report_text(tasks, compared)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head, _, *rows = lines
    assert head.split("   ")[-2:] == ["vs PyTorch", "vs inductor"]
    cells = [row.split()[-2:] for row in rows[:3]]
    assert cells == [["3.50x", "1.50x"], ["1.75x", "-"], ["-", "-"]]
    notes = ["PyTorch: how", "inductor: 3 threads", "inductor: no form"]
    assert [line for line in lines if line in notes] == notes  # each once
    network = results.network(tasks, "trials", pacing.Breakdown())
    first, second, third = report.to_json(network, compared, [None] * 3)["tasks"]
    assert (first["torch_us"], first["torch_speedup"], first["torch_note"]) == (7.0, 3.5, "how")
    of_inductor = [second[f"inductor_{each}"] for each in ("us", "speedup", "note")]
    assert of_inductor == [None, None, "no form"]
    assert third["torch_note"] == third["inductor_note"] == "not timed"
