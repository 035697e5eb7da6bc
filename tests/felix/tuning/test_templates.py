"""A whole run whose winner a template generates: records, resuming, results, reports."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

import felix
from felix import errors, events
from felix.cli import report
from felix.cli.commands import compile as compile_command
from felix.database import records, session
from felix.runner import protocol
from felix.space import sketch as sketching
from felix.templates import registry, spec
from felix.templates.generated import GeneratedProgram
from felix.tuning import results, task_search
from tests.support import tuning_fakes as fakes
from tests.support.templates import naive_gemm


def template_us(program: GeneratedProgram) -> float:
    """Best with blocks of 8 x 32 threads and no split; what the formula says is something else."""
    first = program.plan.launches[0]
    threads_j, threads_i = first.extents[3:5]
    distance = abs(math.log2(threads_i / 8)) + abs(math.log2(threads_j / 32))
    return 4.0 * len(program.plan.launches) * (1 + 0.3 * distance)


def latency_of(program: Any) -> float | protocol.ErrorClass:
    if isinstance(program, GeneratedProgram):
        return template_us(program)
    return 10 * fakes.latency_us(program)  # at least 100 us


def sketches(task: Any, *_: Any) -> list[Any]:
    """Two synthetic traces, then the template."""
    return [*fakes.sketches(fakes.task()), naive_gemm.sketch(2, task)]


@pytest.fixture(autouse=True)
def _both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_search, "sketches_of", sketches)


def tune(pool: fakes.Pool | None = None, **arguments: Any) -> felix.TuneResult:
    options = fakes.small(pool or fakes.Pool(latency_of), **arguments.pop("options", {}))
    arguments = {"trials": 24, "model": fakes.Model(), **arguments}
    result: felix.TuneResult = felix.tune(naive_gemm.task(), options=options, **arguments)
    return result


def test_the_fastest_kernel_of_a_template_is_the_result(tmp_path: pathlib.Path) -> None:
    emitted: list[events.Event] = []
    result = tune(out=tmp_path, on_event=emitted.append, options={"n_remeasured": 2})
    best = result.best
    assert isinstance(best, results.Best) and best.sketch_index == 2
    assert 4.0 <= best.latency_us <= 8.0
    assert best.latency_us == min(r.latency_us or 0 for r in result.records)
    assert best.variant == "naive-gemm"
    threads_i, threads_j, splits, unroll = best.decisions
    assert best.template_text == (
        f"naive-gemm: threads_i={threads_i}, threads_j={threads_j}, splits={splits}, "
        f"unroll={unroll}"
    )
    assert best.program == best.generated == naive_gemm.sketch(2).program(best.decisions)
    assert best.mod.same_as(result.task.mod)
    with pytest.raises(errors.TuningError, match="naive-gemm is a template"):
        _ = best.schedule
    kinds = {record.variant for record in result.records}
    assert kinds == {"stock", "naive-gemm"}
    assert records.read(tmp_path / "tuning" / "records.jsonl") == [
        *result.records,
        *result.repeats,
    ]
    assert all(r.variant == "naive-gemm" for r in result.repeats)
    (opened,) = (event for event in emitted if isinstance(event, events.Opened))
    assert opened.n_sketches == 3
    assert opened.decisions[2][:2] == (
        ("generated kernel naive-gemm", 0),
        ("threads of a block along i", 1),
    )
    trained = [event for event in emitted if isinstance(event, events.Trained)]
    assert len(trained) > result.records[-1].round  # rounds with both kinds train both models
    for event in emitted:
        json.dumps(events.to_json(event))


def test_both_kinds_are_corrected_by_their_own_measurements() -> None:
    result = tune(trials=40)
    late = [r for r in result.records if r.round >= 3 and r.sketch_index == 2]
    rows = np.asarray([record.decisions for record in late])
    column = spec.NAMES.index("analytic_us")
    formula_us = naive_gemm.sketch().formulas.raw(rows)[..., column].sum(axis=1)
    predicted_us = np.asarray([record.predicted_us for record in late])
    measured_us = np.asarray([record.latency_us for record in late])
    plain, corrected = (
        np.median(np.abs(np.log(each / measured_us))) for each in (formula_us, predicted_us)
    )
    assert plain > 0.5 and corrected < 0.5 * plain


def test_failed_kernels_are_recorded_by_class() -> None:
    def latency(program: Any) -> float | protocol.ErrorClass:
        is_generated = isinstance(program, GeneratedProgram)
        return protocol.ErrorClass.WRONG_RESULT if is_generated else latency_of(program)

    result = tune(fakes.Pool(latency))
    wrong = [r for r in result.records if r.variant == "naive-gemm"]
    assert wrong and all(str(r.measured.error) == "wrong_result" for r in wrong)
    assert isinstance(result.best, results.Best) and result.best.variant == "stock"
    assert result.best.generated is None and result.best.template_text is None
    assert isinstance(result.best.program, fakes.Program)


def test_a_run_resumes_with_both_models(tmp_path: pathlib.Path) -> None:
    options = {"lookahead": 0.0}
    whole = tune(trials=32, options=options)
    half = tune(trials=16, out=tmp_path, options=options)
    state = json.loads((tmp_path / "tuning" / "state.json").read_text())
    assert state["model"]["kind"] == state["model"]["template"]["kind"] == "correction"
    resumed = tune(trials=32, out=tmp_path, resume=True, options=options)
    assert resumed.records[:16] == half.records
    assert fakes.keys(resumed) == fakes.keys(whole)


def test_a_session_of_a_version_without_templates_goes_on(tmp_path: pathlib.Path) -> None:
    tune(trials=8, out=tmp_path)
    path = tmp_path / "tuning" / "session.json"
    content = json.loads(path.read_text())
    assert (
        content.pop("template_features_version")
        == session.identity([], "gradient", 0).template_features_version
    )
    path.write_text(json.dumps(content))
    result = tune(trials=16, out=tmp_path, resume=True)
    assert len(result.records) == 16 == len(set(fakes.keys(result)))


def test_the_report_names_the_template_and_its_parameters() -> None:
    result = tune()
    text = result.best.template_text
    assert text is not None and text.startswith("naive-gemm: threads_i=")
    assert f"{result.task.name}: generated kernel {text}" in fakes.report_text([result])
    network = results.network([result], "trials", result.breakdown)
    (task,) = report.to_json(network, [{}], [None])["tasks"]
    assert task["best"]["variant"] == "naive-gemm"
    assert task["best"]["decisions"] == list(result.best.decisions)


def test_a_stored_result_is_made_again(tmp_path: pathlib.Path) -> None:
    result = tune(out=tmp_path)
    ((again,), _) = compile_command._results(tmp_path)
    assert again.best.template_text == result.best.template_text  # type: ignore[union-attr]
    assert again.best.program == result.best.program


@pytest.mark.parametrize("templates", [True, False])
def test_a_search_has_traces_alone_if_wished(
    templates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(registry, "of_program", naive_gemm.of_program)
    task = naive_gemm.task()
    monkeypatch.setattr(sketching, "sketches", lambda *_, **__: [naive_gemm.sketch(0, task)])
    monkeypatch.setattr(sketching, "trace_sketches", lambda *_, **__: fakes.sketches(fakes.task()))
    result = tune(options={"templates": templates})
    assert {record.variant == "naive-gemm" for record in result.records} == {templates}
