"""Which GEMM templates a program gets, and the reasons where it gets none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tvm import te, topi

import felix
from felix import target, workloads
from felix.templates import registry
from felix.templates.gemm.problem import GemmProblem
from felix.templates.template import Matching

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
