"""Template sketches: variables, legality, formulas, programs, their place among a task's."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
import torch

import felix
from felix import errors
from felix.features.kind import FeatureKind
from felix.runner.cuda import nvrtc
from felix.space import formula_cache, legality, template_sketch
from felix.space import sketch as sketching
from felix.symbolic import expr
from felix.target import hardware
from felix.templates import registry, spec
from felix.templates.template import Matching
from tests.support.templates import naive_gemm

SKETCH = naive_gemm.sketch()


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    return tmp_path


def _every() -> np.ndarray:
    return np.asarray(list(itertools.product(*(v.domain for v in SKETCH.variables))))


def _launches(row: np.ndarray) -> list[tuple[int, int]]:
    """(blocks, threads of a block) of each launch of the program that is generated."""
    launches = SKETCH.program(row.tolist()).plan.launches
    return [(int(np.prod(each.extents[:3])), int(np.prod(each.extents[3:]))) for each in launches]


def test_parameters_are_independent_choices() -> None:
    assert [v.name for v in SKETCH.variables] == ["threads_i", "threads_j", "splits", "unroll"]
    assert all(v.kind == "choice" and not v.structural for v in SKETCH.variables)
    assert [v.log_scale for v in SKETCH.variables] == [True, True, False, False]
    assert len({v.group for v in SKETCH.variables}) == 4
    assert SKETCH.variables[2].label == "parts of the sum"
    assert len(SKETCH.formulas.space.trainable) == 4
    assert (SKETCH.is_gpu, SKETCH.variant) == (True, "naive-gemm")


def test_samples_are_the_legal_rows() -> None:
    rows = SKETCH.sample(200, seed=3)
    np.testing.assert_array_equal(rows, SKETCH.sample(200, seed=3))
    assert not np.array_equal(rows, SKETCH.sample(200, seed=4))
    assert len(np.unique(rows, axis=0)) == 200
    assert (rows[:, 0] * rows[:, 1] <= 1024).all()
    every = _every()
    legal = legality.is_legal(SKETCH.formulas.constraints_exact(every))
    np.testing.assert_array_equal(legal, every[:, 0] * every[:, 1] <= 1024)
    exhausted = SKETCH.sample(1000, seed=1)
    assert {tuple(row) for row in exhausted} == {tuple(row) for row in every[legal]}


def test_legality_is_that_of_the_generator() -> None:
    for row in _every()[::7].tolist():
        if SKETCH.is_applicable(row):
            assert SKETCH.program(row).arch == "sm_90"
        else:
            with pytest.raises(felix.InvalidSchedule, match="naive-gemm: no program has"):
                SKETCH.program(row)


def test_rows_outside_of_the_domains_are_refused() -> None:
    for row, message in (([1, 1, 1], "4 decisions"), ([3, 1, 1, 1], "threads_i = 3")):
        for function in (SKETCH.program, SKETCH.is_applicable, SKETCH.values):
            with pytest.raises(errors.DecisionError, match=message):
                function(row)


def test_a_template_without_legal_decisions_says_so() -> None:
    @dataclasses.dataclass(frozen=True)
    class Impossible(naive_gemm.NaiveGemm):
        def constraints(self):  # type: ignore[no-untyped-def]
            return (("threads", self._symbols[0] + 2048 - self._symbols[1]),)

    task = naive_gemm.task()
    sketch = template_sketch.TemplateSketch(task, 0, Impossible(8, 8, 8), hardware(task.target))
    with pytest.raises(felix.InvalidSchedule, match="no legal decisions"):
        sketch.sample(4)


def test_features_are_what_the_program_launches() -> None:
    formulas = SKETCH.formulas
    assert formulas.kind is FeatureKind.TEMPLATE and formulas.names == spec.NAMES
    assert [row.block for row in formulas.rows] == ["partial", "combine"]
    rows = SKETCH.sample(60, seed=5)
    raw = formulas.raw(rows)
    blocks, threads = (spec.NAMES.index(n) for n in ("grid_blocks", "block_threads"))
    for row, values in zip(rows, raw, strict=True):
        launches = _launches(row)
        expected = [*launches, (0, 0)][:2]
        assert [(v[blocks], v[threads]) for v in values] == expected
        assert values[1].any() == (len(launches) == 2)
    is_log = np.asarray(spec.LOG)
    np.testing.assert_allclose(formulas.exact(rows)[..., is_log], np.log2(1 + raw)[..., is_log])


def test_formulas_have_gradients() -> None:
    formulas = SKETCH.formulas
    x = formulas.space.encode(SKETCH.sample(16, seed=1)).requires_grad_(True)
    time = formulas.smooth(x, 0.2)[..., spec.NAMES.index("analytic_us")].sum()
    (gradient,) = torch.autograd.grad(time, x)
    assert torch.isfinite(gradient).all() and (gradient[:, :2] != 0).any()
    (excess,) = torch.autograd.grad(formulas.constraints(x).sum(), x)
    assert (excess[:, :2] != 0).all() and (excess[:, 3] == 0).all()


def test_formulas_are_read_from_disk(cache: pathlib.Path) -> None:
    rows = naive_gemm.sketch().sample(8)
    first = naive_gemm.sketch().formulas.raw(rows)
    (written,) = cache.rglob("*.bin")
    assert written.parent == formula_cache.folder()

    @dataclasses.dataclass(frozen=True)
    class Silent(naive_gemm.NaiveGemm):
        def rows(self):  # type: ignore[no-untyped-def]
            raise AssertionError("extracted again")

        @property
        def key(self) -> str:
            return naive_gemm.NaiveGemm(self.m, self.n, self.k).key

    again = naive_gemm.sketch()
    again.template = Silent(96, 80, 64)
    np.testing.assert_array_equal(again.formulas.raw(rows), first)
    naive_gemm.sketch(of=naive_gemm.task(m=32)).formulas.raw(rows)
    assert len(list(cache.rglob("*.bin"))) == 2


def test_a_change_of_templates_is_another_version(tmp_path: pathlib.Path) -> None:
    root = pathlib.Path(felix.__file__).parent
    assert formula_cache.code_digest(formula_cache.TEMPLATE_SOURCES) == formula_cache.digest_of(
        root, formula_cache.TEMPLATE_SOURCES
    )
    assert "templates" in formula_cache.TEMPLATE_SOURCES
    assert "templates" not in formula_cache.SOURCES  # traces do not depend on them


def test_an_unknown_feature_is_a_defect_with_a_name(cache: pathlib.Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Misspelt(naive_gemm.NaiveGemm):
        def rows(self):  # type: ignore[no-untyped-def]
            return {"partial": {"grid_blokcs": expr.variable("threads_i")}}

    sketch = naive_gemm.sketch()
    sketch.template = Misspelt(96, 80, 64, version=2)
    with pytest.raises(errors.UnforeseenForm, match="grid_blokcs"):
        sketch.formulas.raw(np.asarray([[1, 1, 1, 1]]))


def test_keys_know_task_template_and_version() -> None:
    keys = [SKETCH.key, naive_gemm.sketch(of=naive_gemm.task(m=32)).key]
    other = naive_gemm.sketch()
    other.template = naive_gemm.NaiveGemm(96, 80, 64, version=2)
    assert len({*keys, other.key}) == 3
    assert naive_gemm.sketch(index=5).key == SKETCH.key


def test_programs_compile_and_equal_ones_have_one_fingerprint() -> None:
    rows = [[8, 32, 1, 4], [4, 16, 3, 1]]
    programs = [SKETCH.program(row) for row in rows]
    for program in programs:
        cubin = nvrtc.compile_cubin(program.source, program.arch)
        assert len(cubin) > 1000
    assert programs[0].fingerprint == SKETCH.program(rows[0]).fingerprint
    assert programs[0].fingerprint != programs[1].fingerprint


@pytest.mark.parametrize("target", ["cuda -arch sm_90", "llvm"])
def test_templates_follow_the_traces_of_a_task(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(registry, "of_program", naive_gemm.of_program)
    task, lines = naive_gemm.task(16, 16, 16, target=target), []
    traces = sketching.trace_sketches(task)
    every = sketching.sketches(task, on_left_out=lines.append)
    assert [s.key for s in every[: len(traces)]] == [s.key for s in traces]
    assert not lines
    if target == "llvm":
        assert len(every) == len(traces)
        return
    (made,) = every[len(traces) :]
    assert made.variant == "naive-gemm" and made.index > traces[-1].index
    assert [s.key for s in felix.sketches(task)] == [s.key for s in every]
    assert [s.key for s in felix.trace_sketches(task)] == [s.key for s in traces]


def test_what_no_template_recognises_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "of_program", naive_gemm.of_program)
    task, lines = felix.workloads.softmax((8, 32), target="cuda -arch sm_90"), []
    every = sketching.sketches(task, on_left_out=lines.append)
    assert all(s.formulas.kind is FeatureKind.TRACE for s in every)
    assert lines == [
        f"{task.name}: no generated kernel: the program is no product of two matrices"
    ]


def test_a_template_suffices_where_no_trace_can_be_modelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise errors.UnsupportedSchedule("the test refuses it")

    monkeypatch.setattr(sketching, "TraceSketch", refuse)
    task = naive_gemm.task(16, 16, 16)
    monkeypatch.setattr(registry, "of_program", lambda *_: Matching())
    with pytest.raises(errors.UnsupportedSchedule, match="the test refuses it"):
        sketching.sketches(task)
    monkeypatch.setattr(registry, "of_program", naive_gemm.of_program)
    (made,) = sketching.sketches(task)
    assert made.variant == "naive-gemm"


def test_what_a_trace_alone_has_raises_one_error() -> None:
    sketch = naive_gemm.sketch()
    trace = felix.trace_sketches(felix.workloads.gemm(16, 16, 16))[0]
    public = {name for name in (*vars(trace), *dir(trace)) if not name.startswith("_")}
    ours = {name for name in (*vars(sketch), *dir(sketch)) if not name.startswith("_")}
    assert public - ours == template_sketch.TRACE_ONLY
    for name in template_sketch.TRACE_ONLY:
        with pytest.raises(errors.UnsupportedSchedule, match=f"no {name}: .*trace_sketches"):
            getattr(sketch, name)
    with pytest.raises(AttributeError, match="no attribute 'shedule'"):
        _ = sketch.shedule
