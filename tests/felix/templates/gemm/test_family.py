"""Which GEMM templates a program gets, or why none; sketches of convolutions; scales."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

import felix
from benchmarks.support import fuzzing
from felix import target, workloads
from felix.builder import task_program
from felix.features.kind import FeatureKind
from felix.runner.checking import reference
from felix.runner.cuda import nvrtc
from felix.space import sketch as sketching
from felix.space.template_sketch import TemplateSketch
from felix.templates import registry, spec
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Matching
from felix.tuning import task_search
from tests.support import share, tuning_fakes
from tests.support.templates import host_gpu

TARGET = target.parse("cuda -arch sm_86")


def _generator(arch: str, reason: str | None, made: list[Any]) -> registry.Generator:
    def templates(problem: GemmProblem, hardware: target.Hardware, arch: str) -> list[Any]:
        made.append((problem, hardware, arch))
        return [f"a template for {arch}"]

    return registry.Generator(lambda one: one == arch, lambda problem: reason, templates)


def _matching(
    monkeypatch: pytest.MonkeyPatch, *generators: registry.Generator, dtype: str = "float16"
) -> Matching:
    monkeypatch.setattr(registry, "GENERATORS", generators)
    task = workloads.gemm(32, 48, 64, dtype=dtype, target=TARGET)
    return registry.templates_of(task.mod, task.target, target.hardware(task.target))


def test_the_first_that_suits_makes_the_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    matching = _matching(
        monkeypatch,
        _generator("sm_90", None, made),
        _generator("sm_86", "its dtypes are others", made),
        _generator("sm_86", None, made),
        _generator("sm_86", None, made),
    )
    assert matching == Matching(("a template for sm_86",), ())  # type: ignore[arg-type]
    ((problem, hardware, arch),) = made
    assert (problem.m, problem.n, problem.k, arch) == (32, 48, 64, "sm_86")
    assert hardware == target.hardware(TARGET)


def test_reasons_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [_generator("sm_86", reason, []) for reason in ("it is odd", "it is odd", "it is big")]
    assert _matching(monkeypatch, *every).reasons == ("it is odd", "it is big")


def test_a_generator_without_templates_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = registry.Generator(lambda arch: True, lambda problem: None, lambda *_: ())
    assert _matching(monkeypatch, nothing, _generator("sm_86", None, [])).templates
    reasons = _matching(monkeypatch, nothing).reasons
    assert reasons == ("there is no template of it for sm_86",)


def _of_text(text: str, machine: target.Target) -> Matching:
    task = workloads.parse(text, machine)
    return registry.templates_of(task.mod, machine, target.hardware(machine))


def test_float32_is_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    rounds = ("tensor cores would round its operands of float32",)
    generator = _generator("sm_86", None, made)
    assert _matching(monkeypatch, generator, dtype="float32").reasons == rounds
    x, y, bias = (
        te.placeholder(shape, name=name, dtype=dtype)
        for shape, name, dtype in (
            ((32, 64), "x", "float32"),
            ((48, 64), "y", "float32"),
            ((48,), "bias", "float16"),
        )
    )
    product = topi.add(topi.nn.dense(x, y), topi.cast(bias, "float32"))
    task = felix.Task.from_te([x, y, bias, product], TARGET)
    matching = registry.templates_of(task.mod, task.target, target.hardware(task.target))
    assert not made and not matching.templates and matching.reasons == rounds
    exact = dataclasses.replace(generator, rounds=False)
    assert _matching(monkeypatch, generator, exact, dtype="float32").templates


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_float32_is_multiplied_without_tensor_cores(arch: str) -> None:
    machine = target.parse(f"cuda -arch {arch}")
    for text in ("gemm:64,48,32", "gemm:7,9,33,batch=3,transpose_a=true,epilogue=bias+gelu"):
        matching = _of_text(text, machine)
        assert [made.name for made in matching.templates] == ["gemm-simt"]
        assert not matching.reasons
    half = _of_text("gemm:64,48,32,dtype=float16", machine)
    assert "gemm-simt" not in [made.name for made in half.templates]


def test_wide_operands_and_convolutions_of_float32_have_none() -> None:
    assert _of_text("gemm:64,48,32,dtype=float64", TARGET) == Matching()
    reasons = _of_text("conv2d:1,14,14,32,48,3,padding=1", TARGET).reasons
    assert reasons[-1] == "convolutions in float32 have no template"


@pytest.mark.parametrize("arch", ["sm_86", "sm_90"])
def test_float32_is_rounded_where_the_user_allows_tf32(arch: str) -> None:
    machine = target.parse(f"cuda -arch {arch}")
    matching = _of_text("gemm:64,48,32,transpose_b=true,allow_tf32=true", machine)
    assert matching.templates and not matching.reasons
    assert "gemm-simt" not in [made.name for made in matching.templates]
    wide = workloads.gemm(64, 48, 32, dtype="float64", target=machine).allowing_tf32()
    hardware = target.hardware(machine)
    assert not registry.templates_of(wide.mod, machine, hardware).templates


@pytest.mark.parametrize(
    "text, names",
    [
        ("gemm:64,48,32,transpose_a=true,allow_tf32=true", ["gemm-mma", "gemm-simt"]),
        ("gemm:4,48,32,allow_tf32=true", ["gemm-mma", "gemm-simt"]),
        ("gemm:64,48,32,dtype=int8", ["gemm-mma"]),
        ("gemm:64,48,32,dtype=int8,transpose_a=true,transpose_b=true,batch=2", ["gemm-mma"]),
    ],
)
def test_any_layout_has_tensor_cores(text: str, names: list[str]) -> None:
    """Operands that are not contiguous along k are copied; float32 is read as it lies, too."""
    matching = _of_text(text, TARGET)
    assert [made.name for made in matching.templates] == names
    assert not matching.reasons


def test_what_is_no_product_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "GENERATORS", (_generator("sm_86", None, []),))
    task = workloads.softmax((8, 64), dtype="float16", target=TARGET)
    matching = registry.templates_of(task.mod, task.target, target.hardware(task.target))
    assert not matching.templates and len(matching.reasons) == 1


def test_other_architectures_have_none_and_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _matching(monkeypatch, _generator("sm_90", "it is odd", [])) == Matching()
    task = workloads.gemm(32, 48, 64, target="llvm")
    assert registry.templates_of(task.mod, task.target, target.hardware(task.target)) == Matching()


# -------------------------------------------------- convolutions from the task to compiled kernels


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


#: And how many kernels they have.
CONVOLUTIONS = {
    "conv2d:2,14,14,32,48,3,padding=1,epilogue=bias+relu,dtype=bfloat16": 2,
    "conv2d:1,28,28,3,32,7,padding=3,stride=2,dtype=float16": 3,
    "conv2d:2,14,14,32,48,3,padding=1,layout=NCHW,dtype=bfloat16": 3,
    "conv_transpose2d:2,7,7,32,48,epilogue=bias+relu,dtype=bfloat16": 3,
    "conv_transpose2d:2,7,7,32,48,3,layout=NCHW,dtype=float16": 3,
}


@pytest.mark.parametrize("text", share.of(CONVOLUTIONS, 1))
def test_sketches_have_formulas_and_programs_that_compile(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    made, n_rows = _sketch(text), CONVOLUTIONS[text]
    rows = made.sample(6, seed=0)
    values = made.formulas.raw(rows)
    assert values.shape == (6, n_rows, len(spec.NAMES))
    assert np.isfinite(values).all() and (values >= 0).all()
    analytic = values[:, :, spec.NAMES.index("analytic_us")].sum(axis=1)
    assert (analytic > 1).all() and (analytic < 10_000).all()
    for row in rows[:2]:
        program = made.program(row.tolist())
        assert nvrtc.compile_cubin(program.source, program.arch)


MEASURED = [
    "conv2d:2,14,14,32,48,3,padding=1,stride=2,epilogue=bias,dtype=bfloat16",
    "conv_transpose2d:2,7,7,32,48,epilogue=bias,dtype=bfloat16",
]


@pytest.mark.parametrize("text", share.of(MEASURED, 1))
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
    "text, reason", [("depthwise_conv2d:1,14,14,32,3,padding=1,dtype=float16", "one channel")]
)
def test_what_is_left_to_traces_is_said(text: str, reason: str) -> None:
    task = workloads.parse(text, "cuda -arch sm_86")
    matching = registry.templates_of(task.mod, task.target, target.hardware(task.target))
    assert not matching.templates
    (sentence,) = matching.reasons
    assert reason in sentence


# ---------------------------------------------------------------- scales of quantised products


A100 = target.hardware(target.parse("cuda -arch sm_80"))
TEXTS = [
    "gemm:33,40,64,transpose_b=true,dtype=int8,epilogue=scale+bias+gelu",
    "gemm:17,24,64,batch=2,transpose_b=true,dtype=int8,epilogue=bias+scale+relu,out_dtype=float16",
    "gemm:33,40,96,transpose_b=true,dtype=int8,epilogue=scalar_scale,out_dtype=float32",
    "conv2d:1,5,6,16,24,3,padding=1,dtype=int8,epilogue=scale+bias+relu,out_dtype=float32",
    "conv2d:2,4,5,16,24,3,padding=1,groups=2,layout=NCHW,dtype=int8,epilogue=scale+residual",
    "conv_transpose2d:2,4,3,16,24,4,dtype=int8,epilogue=scalar_scale+scale+bias",
    "gemm:33,24,40,dtype=bfloat16,epilogue=scale+bias+gelu+scalar_scale",
]
FLOAT8 = [
    "gemm:33,40,64,transpose_b=true,dtype=float8_e4m3fn,epilogue=scalar_scale+scale+bias",
    "gemm:64,40,64,dtype=float8_e5m2,epilogue=scale,out_dtype=float16",
    "conv2d:2,8,9,16,24,3,padding=1,dtype=float8_e4m3fn,epilogue=scale+bias+relu",
]


@pytest.mark.parametrize("text", share.of(TEXTS, 2))
def test_text_of_a_kernel_computes_the_program(text: str, tmp_path: pathlib.Path) -> None:
    """With a split sum and without; `on_cpu` is what TVM builds of the program."""
    task = workloads.parse(text, "cuda -arch sm_80")
    problem = recognise(task.mod)
    assert isinstance(problem, GemmProblem) and template.unsuited(problem) is None
    made = template.AmpereGemm(problem, A100, "sm_80")
    args = task_program.arguments(task.mod)
    (expected,) = task_program.on_cpu(task.mod, task.target, args)(1, False).values()
    settings = fuzzing.legal(made, 200, random.Random(1))
    small = [each for each in settings if each[0]["warps_m"] * each[0]["warps_n"] <= 2]
    whole = next(program for values, program in small if values["split_k"] == 1)
    split = next((program for values, program in small if values["split_k"] > 1), whole)
    for number, program in enumerate((whole, split)):
        folder = tmp_path / str(number)
        folder.mkdir()
        library = host_gpu.build(program, problem, folder)
        arrays = reference.inputs(args, 1, positive=False)
        assert host_gpu.run(library, program, arrays, late=True) == 0
        limit = task_program.tolerance(task.mod)
        assert reference.mismatch(arrays[-1].reshape(expected.shape), expected, limit) is None


@pytest.mark.parametrize("text", share.of([*TEXTS, *FLOAT8], 2))
def test_templates_take_scales_and_compile(text: str) -> None:
    task = workloads.parse(text, "h200")
    templates, reasons = fuzzing.suited(task, target.hardware(task.target))
    names = {made.name for made in templates}
    assert "gemm-wgmma" in names or "transposed convolutions" in reasons[0]
    for made in templates:
        for _, program in fuzzing.legal(made, 1, random.Random(2)):
            assert nvrtc.compile_cubin(program.source, program.arch)


def test_inputs_of_a_float16_output_do_not_overflow() -> None:
    text = "gemm:64,64,512,dtype=int8,epilogue=scale,out_dtype={}"
    for out, is_full in (("float16", False), ("bfloat16", True)):
        args = task_program.arguments(workloads.parse(text.format(out)).mod)
        assert args[0].is_full_range is is_full
        task = workloads.parse(text.format(out))
        (values,) = task_program.on_cpu(task.mod, task.target, args)(0, False).values()
        assert np.isfinite(values.astype(np.float64)).all()
