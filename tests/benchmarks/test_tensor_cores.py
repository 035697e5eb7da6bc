"""The benchmark of tensor cores and the fuzzer of generated kernels: what they make of pieces."""

from __future__ import annotations

import json
import pathlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import template_fuzz, tensor_cores
from benchmarks.support import fuzzing, random_workloads, subgraphs
from benchmarks.support.searches import first_choice, winners
from felix import errors
from felix.measure import local
from felix.runner import protocol
from felix.runner.cuda import nvrtc
from felix.templates import spec
from felix.workloads import catalogue
from tests.support import share
from tests.support.templates import made_up_data


def _pieces(
    name: str, felix_us: float, eager_us: float, inductor_us: float, first_us: float | None = None
) -> list[Any]:
    common = {"name": name, "workload": "gemm:8,8,8", "seed": 0, "date": "2030-01-01"}
    felix = {
        "strategy": "felix",
        "curve": [(1, 2.0, 12.0), (9, 4.0, felix_us)],
        "wall_s": 6.0,
        "n_measured": 9,
        "variant": "gemm-wgmma",
        "flops": 2_000_000,
    }
    us = {"felix": felix_us, "eager": eager_us, "inductor": inductor_us}
    pieces = [common | felix, common | {"strategy": "vendor", "latency_us": us}]
    if first_us is None:
        return pieces
    us["first"], pieces[0]["build_s"] = first_us, 0.25
    return [*pieces, common | {"strategy": "first", "us": first_us}]


RUNS = [
    *_pieces("square-512", 10.0, 9.0, 11.0),
    *_pieces("square-1024", 10.0, 20.0, 40.0),
    *_pieces("bert-up-16-gelu", 5.0, 20.0, 6.0),
]


def test_the_faster_library_counts() -> None:
    rows = {row["name"]: row for row in tensor_cores.shapes(RUNS)}
    ratios = {name: row["ratio"] for name, row in rows.items()}
    assert ratios == {"square-512": 0.9, "square-1024": 2.0, "bert-up-16-gelu": 1.2}
    assert rows["square-512"]["tflops"] == pytest.approx(0.2)
    assert rows["square-512"]["sketch"] == "gemm-wgmma" and rows["square-512"]["near_s"] == 4.0


def test_a_shape_with_one_piece_has_no_row() -> None:
    assert tensor_cores.shapes(RUNS[:1]) == [] and tensor_cores.render({"runs": RUNS[:1]}) == ""


def test_the_table_has_geometric_means_and_the_picture_a_bar_a_shape(
    tmp_path: pathlib.Path,
) -> None:
    text = tensor_cores.render({"runs": RUNS})
    assert "| gemms |      2 | 1.34 (0.90 to 2.00)" in text and "| 2.00 (square-1024) " in text
    assert "gemm-wgmma" in tensor_cores.table_of_pieces({"runs": RUNS})
    tensor_cores.picture({"runs": RUNS}, tmp_path / "bars.svg")
    drawn = (tmp_path / "bars.svg").read_text()
    assert all(name in drawn for name in ("square-512", "square-1024", "bert-up-16-gelu"))


def test_the_first_choice_is_beside_the_best_and_building_is_counted() -> None:
    runs = [*RUNS, *_pieces("odd", 10.0, 9.0, 11.0, 15.0), *_pieces("primes", 9.0, 9.0, 9.0, 8.0)]
    rows = {row["name"]: row for row in tensor_cores.shapes(runs)}
    ratios = {name: row["first_ratio"] for name, row in rows.items()}
    assert ratios["odd"] == 1.5 and ratios["primes"] == 1.0 and ratios["square-512"] is None
    text = tensor_cores.render({"runs": runs})
    assert "| 1 of 2 " in text


def test_without_libraries_the_pool_of_felix_says_what_is_best(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run for run in _pieces("odd", 10.0, 9.0, 11.0, 15.0) if run["strategy"] != "vendor"]
    runs[0] |= {"finals": [(1, 2.0, 11.0), (9, 4.0, 12.0)]}
    (row,) = tensor_cores.shapes(runs)
    assert row["felix_us"] == 11.0 and row["first_ratio"] == 15.0 / 11.0
    assert row["ratio"] is None
    text = tensor_cores.render({"runs": runs})
    assert "library" not in text and "| 0 of 1 " in text

    command = ["tensor_cores.py", "--without-libraries", "--work", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    assert tensor_cores._arguments().strategies == ("felix", "first")


def test_sets_take_turns() -> None:
    few = tensor_cores.in_turns(["r3d18", "fused"])[:4]
    ours, theirs = list(tensor_cores.SETS["r3d18"]), list(tensor_cores.SETS["fused"])
    assert few == [ours[0], theirs[0], ours[1], theirs[1]]


def test_the_first_choice_is_the_best_predicted_of_the_templates() -> None:
    task = catalogue.parse(subgraphs.TENSOR_GEMMS["square-512"], target="h200")
    chosen = first_choice.choose(task, seed=0)
    assert chosen is not None
    sketch, candidate = chosen
    assert "__global__" in sketch.program(candidate.decisions).source
    rows = sketch.formulas.exact(sketch.sample(256, seed=3))
    times_us = (np.exp2(rows[..., spec.NAMES.index("analytic_us")]) - 1).sum(axis=1)
    assert candidate.predicted_us is not None
    assert candidate.predicted_us <= times_us.min() * 1.25
    wide = catalogue.parse("gemm:64,64,64,dtype=float64", target="h200")
    assert first_choice.choose(wide, seed=0) is None


def test_the_shapes_are_many_and_build() -> None:
    assert len(subgraphs.TENSOR_GEMMS) >= 32
    assert len(subgraphs.TENSOR_RESNET50) == 46 and len(subgraphs.TENSOR_R3D18) == 11
    convolutions = subgraphs.TENSOR_RESNET50 | subgraphs.TENSOR_R3D18
    assert len(set(convolutions.values())) == len(convolutions)
    for text in convolutions.values():
        operator, params = catalogue.parse_params(text)
        assert operator in ("conv2d", "conv3d") and params["dtype"] == "bfloat16"
    for text in list(convolutions.values())[::8]:
        assert catalogue.parse(text, target="cuda").flops > 1e7
    for text in (subgraphs.TENSOR_GEMMS | subgraphs.TENSOR_FUSED).values():
        operator, params = catalogue.parse_params(text)
        assert operator == "gemm" and params["dtype"] == "bfloat16"
    some = catalogue.parse(subgraphs.TENSOR_FUSED["bert-up-197-gelu"], target="cuda")
    assert some.flops > 2 * 197 * 3072 * 768


def test_the_piece_of_a_first_choice_has_its_latency_or_its_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [made_up_data.Pool(), made_up_data.Pool(lambda _: protocol.ErrorClass.WRONG_RESULT)]
    waiting = iter(pools)
    monkeypatch.setattr(local, "LocalPool", lambda task, options: next(waiting))
    text = subgraphs.TENSOR_GEMMS["square-512"]
    request = {"workload": text, "target": "h200", "seed": 0, "path": str(tmp_path / "a.json")}
    right = first_choice.piece(request)
    assert right == {"us": made_up_data.latency_us(pools[0].submitted[0])}
    assert winners.read_one(tmp_path / "a.json") == pools[0].submitted
    wrong = first_choice.piece(request | {"path": str(tmp_path / "b.json")})
    assert wrong == {"us": None} and winners.read_one(tmp_path / "b.json") == []
    wide = request | {"workload": "gemm:64,64,64,dtype=float64", "path": str(tmp_path / "c.json")}
    assert first_choice.piece(wide) == {} and winners.read_one(tmp_path / "c.json") == []


# ---------------------------------------------------------------- the fuzzer of generated kernels


TARGET = "h200"
PRODUCT = "gemm:100,72,64,transpose_b=true,dtype=bfloat16"


def _fuzz(
    pool: made_up_data.Pool, settings: int = 60, seconds: float = 60.0, seed: int = 0
) -> fuzzing.Outcome:
    rng = random.Random(seed)
    drawn = iter(lambda: random_workloads.draw(rng), None)
    limits = fuzzing.Limits(settings, seconds, per_workload=6, in_flight=8)
    return fuzzing.fuzz(drawn, pool.for_task, TARGET, limits, random.Random(seed))


@pytest.mark.slow("makes a hundred tasks")
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


@pytest.mark.slow("fuzzes all generators twice")
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
    answers = iter([20.0, error] * 6)
    outcome = _fuzz(made_up_data.Pool(lambda program: next(answers)), 12)
    assert outcome.totals == {"ok": 6, error.value: 6} and outcome.is_right is is_right
    assert len(outcome.failures) == 6
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
    _fuzz(pool, share.rounds(24, 48), seed=3)
    for program in pool.submitted[::8]:
        assert nvrtc.compile_cubin(program.source, program.arch)
