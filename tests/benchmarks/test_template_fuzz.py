"""The fuzzer of generated kernels: what it draws, counts and returns, with a pool that is none."""

from __future__ import annotations

import json
import pathlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks import template_fuzz
from benchmarks.support import fuzzing, random_workloads
from felix import errors
from felix.measure import protocol
from felix.measure.cuda.building import nvrtc
from tests.support.templates import made_up_data

TARGET = "h200"
PRODUCT = "gemm:100,72,64,transpose_b=true,dtype=bfloat16"


def _fuzz(
    pool: made_up_data.Pool, settings: int = 60, seconds: float = 60.0, seed: int = 0
) -> fuzzing.Outcome:
    rng = random.Random(seed)
    drawn = iter(lambda: random_workloads.draw(rng), None)
    limits = fuzzing.Limits(settings, seconds, per_workload=6, in_flight=8)
    return fuzzing.fuzz(drawn, pool.for_task, TARGET, limits, random.Random(seed))


def test_draws_have_every_family_and_type() -> None:
    rng = random.Random(0)
    tasks: list[Any] = []
    operators: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for _ in range(150):
        drawn = random_workloads.draw(rng)
        try:
            tasks.append(drawn.task(TARGET))
        except errors.WorkloadError:
            continue
        operators[drawn.operator] += 1
        dtypes[drawn.text.partition(",dtype=")[2].partition(",")[0]] += 1
        assert tasks[-1].allows_tf32 == drawn.allows_tf32 == (",dtype=float32" in drawn.text)
        assert tasks[-1].flops <= 2.5 * random_workloads.MAX_WORK
    assert set(operators) == {"gemm", "conv1d", "conv2d", "conv3d", "conv_transpose2d"}
    assert set(dtypes) == set(random_workloads._DTYPES) and len(tasks) >= 100


def test_settings_of_all_generators_are_measured_the_same_for_a_seed() -> None:
    pools = [made_up_data.Pool(), made_up_data.Pool()]
    outcomes = [_fuzz(pool, 120) for pool in pools]
    sources = [[program.source for program in pool.submitted] for pool in pools]
    assert sources[0] == sources[1] and len(set(sources[0])) == len(sources[0]) == 120
    assert outcomes[0].totals == {"ok": 120} and outcomes[0].is_right
    assert outcomes[0].workloads >= 20 and not outcomes[0].failures
    templates = {group.partition(" ")[0] for group in outcomes[0].counts}
    assert templates == {"gemm-mma", "gemm-simt", "gemm-wgmma", "gemm-wgmma-swapped", "gemv"}
    other = made_up_data.Pool()
    _fuzz(other, 12, seed=1)
    assert other.submitted[0].source != sources[0][0]


@pytest.mark.parametrize(
    "error, is_right",
    [
        (protocol.ErrorClass.WRONG_RESULT, False),
        (protocol.ErrorClass.LAUNCH, False),
        (protocol.ErrorClass.BUILD, True),
        (protocol.ErrorClass.INFRASTRUCTURE, True),
    ],
)
def test_wrong_results_and_faults_are_told_from_what_did_not_run(
    error: protocol.ErrorClass, is_right: bool
) -> None:
    answers = iter([20.0, error] * 30)
    outcome = _fuzz(made_up_data.Pool(lambda program: next(answers)))
    assert outcome.totals == {"ok": 30, error.value: 30} and outcome.is_right is is_right
    assert len(outcome.failures) == 30
    failure = outcome.failures[0]
    assert failure["outcome"] == error.value and failure["decisions"]
    assert random_workloads.Drawn(failure["workload"], failure["allows_tf32"]).task(TARGET)


def test_a_build_that_takes_too_long_is_no_hang() -> None:
    setting = fuzzing.Setting(PRODUCT, False, "gemm-mma", {"block_m": 64})
    slow = {"error": protocol.ErrorClass.TIMEOUT, "build_s": 6.0}
    outcome = fuzzing.Outcome()
    outcome.note(setting, protocol.Measurement.timed([1.0], checked=True))
    outcome.note(setting, protocol.Measurement(**slow))
    assert outcome.is_right and outcome.totals == {"ok": 1, "build_timeout": 1}
    outcome.note(setting, protocol.Measurement(**slow, run_s=5.0))
    assert not outcome.is_right and outcome.totals["timeout"] == 1
    assert not fuzzing.Outcome().is_right


def test_drawing_ends_with_its_seconds() -> None:
    def answer(program: Any) -> float:
        time.sleep(0.05)
        return 20.0

    pool = made_up_data.Pool(answer)
    assert 0 < _fuzz(pool, 10_000, seconds=1.0).totals.total() < 100


def _opened(pool: made_up_data.Pool) -> Callable[..., Any]:
    return lambda task, builders: pool


@pytest.mark.parametrize("error", [None, protocol.ErrorClass.WRONG_RESULT])
def test_the_command_prints_writes_and_returns(
    error: protocol.ErrorClass | None,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers: Iterator[Any] = iter([20.0, error or 20.0] * 20)
    pool = made_up_data.Pool(lambda program: next(answers))
    monkeypatch.setattr(template_fuzz, "open_pool", _opened(pool))
    path = tmp_path / "fuzz.json"
    arguments = ["--settings", "12", "--workload", PRODUCT, "--target", TARGET]
    monkeypatch.setattr("sys.argv", ["template_fuzz.py", *arguments, "--out", str(path)])
    assert template_fuzz.main() == (0 if error is None else 1)
    data = json.loads(path.read_text())
    assert data["settings"] == 12 and data["is_right"] is (error is None)
    assert {group.partition(" ")[2] for group in data["counts"]} == {"gemm bfloat16"}
    output = capsys.readouterr().out
    assert "12 settings of" in output
    assert output.count(f"wrong_result: {PRODUCT} gemm-") == (0 if error is None else 6)


def test_random_settings_compile() -> None:
    pool = made_up_data.Pool()
    _fuzz(pool, 48, seed=3)
    for program in pool.submitted[::8]:
        assert nvrtc.compile_cubin(program.source, program.arch)
