"""Convolutions from the task to compiled kernels: template sketches and their formulas."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import felix
from felix import target, workloads
from felix.features.kind import FeatureKind
from felix.measure.cuda.building import nvrtc
from felix.sketch import sketch as sketching
from felix.sketch.template_sketch import TemplateSketch
from felix.templates import registry, spec
from felix.templates.generated import GeneratedProgram
from felix.tuning.opening import task_search
from tests.support import tuning_fakes


def _sketch(text: str) -> TemplateSketch:
    """Of the templates of a convolution on sm_86."""
    task = workloads.parse(text, "cuda -arch sm_86")
    lines: list[str] = []
    (made,) = [
        each
        for each in sketching.sketches(task, on_left_out=lines.append)
        if each.formulas.kind is FeatureKind.TEMPLATE
    ]
    assert isinstance(made, TemplateSketch) and not lines
    return made


@pytest.mark.parametrize(
    "text, n_rows",
    [
        ("conv2d:2,14,14,32,48,3,padding=1,epilogue=bias+relu,dtype=bfloat16", 2),
        ("conv2d:1,28,28,3,32,7,padding=3,stride=2,dtype=float16", 3),
        ("conv2d:2,14,14,32,48,3,padding=1,layout=NCHW,dtype=bfloat16", 3),
        ("conv_transpose2d:2,7,7,32,48,epilogue=bias+relu,dtype=bfloat16", 3),
        ("conv_transpose2d:2,7,7,32,48,3,layout=NCHW,dtype=float16", 3),
    ],
)
def test_sketches_have_formulas_and_programs_that_compile(
    text: str,
    n_rows: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path_factory.getbasetemp()))
    made = _sketch(text)
    rows = made.sample(6, seed=0)
    values = made.formulas.raw(rows)
    assert values.shape == (6, n_rows, len(spec.NAMES))
    assert np.isfinite(values).all() and (values >= 0).all()
    analytic = values[:, :, spec.NAMES.index("analytic_us")].sum(axis=1)
    assert (analytic > 1).all() and (analytic < 10_000).all()
    for row in rows[:2]:
        program = made.program(row.tolist())
        assert nvrtc.compile_cubin(program.source, program.arch)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:2,14,14,32,48,3,padding=1,stride=2,epilogue=bias,dtype=bfloat16",
        "conv_transpose2d:2,7,7,32,48,epilogue=bias,dtype=bfloat16",
    ],
)
def test_a_run_measures_generated_convolutions(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Search, generator, records: measured here by a function of the program's launches."""
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    made = _sketch(text)
    task = workloads.parse(text, "cuda -arch sm_86")
    monkeypatch.setattr(task_search, "sketches_of", lambda *_: [made])

    def latency_us(program: object) -> float:
        if not isinstance(program, GeneratedProgram):
            return 1000.0
        return 10.0 + abs(program.plan.launches[-1].extents[0] - 16)

    result = felix.tune(
        task, trials=48, options=tuning_fakes.small(tuning_fakes.Pool(latency_us)), seed=0
    )
    assert isinstance(result, felix.TuneResult) and result.best is not None
    assert {record.variant for record in result.records} == {"gemm-mma"}
    assert result.best.template_text.startswith("gemm-mma: warp_m=")
    assert result.best.latency_us < 16


@pytest.mark.parametrize(
    "text, reason",
    [
        ("depthwise_conv2d:1,14,14,32,3,padding=1,dtype=float16", "one channel"),
    ],
)
def test_what_is_left_to_traces_is_said(text: str, reason: str) -> None:
    task = workloads.parse(text, "cuda -arch sm_86")
    matching = registry.templates_of(task.mod, task.target, target.hardware(task.target))
    assert not matching.templates
    (sentence,) = matching.reasons
    assert reason in sentence
