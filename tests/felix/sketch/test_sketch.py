"""Sketches as users see them: variables, decisions, schedules, formulas and their cache."""

from __future__ import annotations

import functools
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

import felix
from felix import errors, workloads
from felix.features import spec, table
from felix.sketch import coordinates, formula_cache, formulas, legality, sampling, variables
from felix.sketch import sketch as sketching
from felix.symbolic import interpret

COLUMN = {name: i for i, name in enumerate(spec.NAMES)}


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    return tmp_path


def gemm(target: Any = "cuda", index: int = 0) -> sketching.Sketch:
    return sketching.trace_sketches(workloads.gemm(64, 48, 32, target=target))[index]


#: The same sketch again, for tests that leave it as it is.
shared_gemm = functools.cache(gemm)


@functools.cache
def pool(target: str = "llvm") -> sketching.Sketch:
    """One with compute locations."""
    return sketching.trace_sketches(workloads.pool2d(1, 15, 15, 16, 3, padding=1, target=target))[
        0
    ]


# ---------------------------------------------------------------- variables


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_variables_describe_the_trace(target: str) -> None:
    for sketch in sketching.trace_sketches(workloads.gemm(64, 48, 30, target=target)):
        names = [v.name for v in sketch.variables]
        assert len(set(names)) == len(names)
        samples = [i for i in sketch.trace.insts if i.kind.name.startswith("Sample")]
        groups = {v.group: [w for w in sketch.variables if w.group == v.group]
                  for v in sketch.variables}  # fmt: skip
        assert len(groups) == len(samples)
        for parts in groups.values():
            assert [v.part for v in parts] == list(range(len(parts)))
            for v in parts:
                assert v.domain == tuple(sorted(set(v.domain)))
                if v.kind == "tile":
                    assert v.extent in (64, 48, 30) and not v.structural and v.log_scale
                    assert all(v.extent % d == 0 for d in v.domain)
                else:
                    assert len(parts) == 1 and v.extent is None
            if parts[0].kind == "tile":
                assert max(parts[-1].domain) <= 64
                assert parts[0].domain == tuple(
                    d for d in range(1, 65) if parts[0].extent % d == 0
                )


def test_choices_are_the_values_themselves() -> None:
    choices = [v.domain for v in shared_gemm("cuda").variables if v.kind == "choice"]
    assert choices == [(1, 2, 3, 4), (1, 2, 3, 4), (0, 16, 32, 64, 128, 256, 512, 1024)]
    (unroll,) = (v for v in shared_gemm("llvm").variables if v.kind == "choice")
    assert unroll.domain == (0, 16, 64, 512) and not unroll.structural


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_decisions_have_labels_in_their_order(target: str) -> None:
    sketch = shared_gemm(target)
    groups = variables.labels(sketch.variables)
    assert sum(n for _, n in groups) == len(sketch.variables)
    labels = [label for label, n in groups for _ in range(n)]
    assert labels == [variable.label for variable in sketch.variables]
    assert [label for label, n in groups if n > 1] == [
        "tile of i0 in matmul", "tile of i1 in matmul", "tile of k in matmul"
    ]  # fmt: skip
    assert {label for label, n in groups if n == 1} >= {"unroll_explicit"}
    assert "location of pad" in dict(variables.labels(pool().variables))


def test_compute_locations_are_structural() -> None:
    structural = [v for v in pool().variables if v.structural]
    assert structural and all(v.domain[:3] == (-2, -1, 0) for v in structural)


@pytest.mark.parametrize("limit", [1, 2])
def test_samples_keep_to_so_many_structures(limit: int) -> None:
    sketch = pool()
    columns = [i for i, v in enumerate(sketch.variables) if v.structural]
    rows = sketch.sample(64, seed=3, max_structures=limit)
    assert len(np.unique(rows[:, columns], axis=0)) == limit
    assert len(np.unique(sketch.sample(64, seed=3)[:, columns], axis=0)) > limit


def test_formulas_of_users_have_no_shared_subexpressions() -> None:
    sketch = pool()
    names = {v.name for v in sketch.variables}
    values = [value for row in sketch.formulas.expressions for value in row]
    assert {str(s) for value in values for s in value.free_symbols} <= names
    decisions = sketch.sample(1, seed=0, max_structures=1)
    point = dict(zip((v.name for v in sketch.variables), decisions[0].tolist(), strict=True))
    raw = sketch.formulas.raw(decisions)[0].ravel()
    for value, want in list(zip(values, raw.tolist(), strict=True))[::7]:
        numbers = {s: int(point[str(s)]) for s in value.free_symbols}
        assert float(value.subs(numbers)) == pytest.approx(want, rel=1e-9)


# ---------------------------------------------------------------- rows and schedules


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_samples_are_legal_distinct_and_deterministic(target: str) -> None:
    sketch = shared_gemm(target)
    rows = sketch.sample(200, seed=4)
    assert rows.shape == (200, len(sketch.variables)) and rows.dtype == np.int64
    assert len(np.unique(rows, axis=0)) == 200
    np.testing.assert_array_equal(rows, gemm(target).sample(200, seed=4))
    assert (rows != sketch.sample(200, seed=5)).any()
    for v, column in zip(sketch.variables, rows.T, strict=True):
        assert set(column.tolist()) <= set(v.domain)
        if v.kind == "tile":
            parts = [i for i, w in enumerate(sketch.variables) if w.group == v.group]
            assert (rows[:, parts].prod(axis=1) == v.extent).all()
    assert legality.is_legal(sketch.formulas.constraints_exact(rows)).all()


def test_samples_cover_the_domains() -> None:
    sketch = shared_gemm("llvm")
    rows = sketch.sample(2000, seed=0)
    for v, column in zip(sketch.variables, rows.T, strict=True):
        assert set(column.tolist()) == set(v.domain), v.name


def test_few_samples_need_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a sketch asks for one sample, which says whether there are legal decisions."""
    drawn: list[int] = []
    random_rows = sampling.random_rows

    def recorded(variables: Any, structure: Any, n: int, rng: Any) -> Any:
        drawn.append(n)
        return random_rows(variables, structure, n, rng)

    monkeypatch.setattr(sampling, "random_rows", recorded)
    sketch = shared_gemm("llvm")
    assert len(sketch.sample(1, seed=1)) == 1 and max(drawn) == sampling.CHUNK_SHARE
    drawn.clear()
    assert len(sketch.sample(64, seed=1)) == 64 and drawn[0] == sampling.CHUNK


def test_a_small_space_is_repeated_not_refused() -> None:
    sketch = sketching.trace_sketches(workloads.softmax((48, 128), target="cuda"))[0]
    rows = sketch.sample(500, seed=0)
    assert len(rows) == 500
    assert len(np.unique(rows, axis=0)) <= np.prod([len(v.domain) for v in sketch.variables])


def test_a_sketch_without_decisions_has_one_row() -> None:
    (sketch,) = sketching.trace_sketches(workloads.elementwise((32, 64), ("relu",), target="llvm"))
    assert sketch.variables == ()
    rows = sketch.sample(3, seed=0)
    assert rows.shape == (3, 0)
    assert sketch.formulas.raw(rows)[:, 0, COLUMN["trip_count"]].tolist() == [2048] * 3
    assert sketch.schedule(()).mod is not None


def test_an_impossible_sketch_says_so() -> None:
    """A software pipeline needs a reduction loop of at least two iterations."""
    sketch = sketching.trace_sketches(workloads.gemm(32, 48, 1, target="cuda"))[1]
    with pytest.raises(errors.InvalidSchedule, match="no legal decisions"):
        sketch.sample(1)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_schedules_hold_the_decisions(target: str) -> None:
    for sketch in sketching.trace_sketches(workloads.gemm(64, 48, 32, target=target)):
        for row in sketch.sample(5, seed=9):
            schedule = sketch.schedule(row)
            assert sketch.decisions_of(schedule.trace) == tuple(row)
            assert sketch.decisions_of(sketch.with_decisions(row)) == tuple(row)


def test_locations_round_trip_too() -> None:
    sketch = pool()
    structures = set()
    for row in sketch.sample(12, seed=2):
        assert sketch.decisions_of(sketch.schedule(row).trace) == tuple(row)
        structures.add(coordinates.structure(sketch.variables, row))
    assert len(structures) > 1


def test_wrong_decisions_are_refused() -> None:
    sketch = shared_gemm()
    row = sketch.sample(1, seed=0)[0].tolist()
    with pytest.raises(errors.DecisionError, match="16 decisions needed, 15 given"):
        sketch.schedule(row[:-1])
    with pytest.raises(errors.DecisionError, match="is not one of"):
        sketch.schedule([*row[:-1], 3])
    with pytest.raises(errors.DecisionError, match="multiply to"):
        sketch.schedule([1, 1, 1, 1, 1, *row[5:]])


def test_what_tvm_rejects_is_invalid() -> None:
    sketch = shared_gemm()
    row = sketch.sample(1, seed=0)[0]
    row[:13] = [64, 1, 1, 1, 1, 48, 1, 1, 1, 1, 32, 1, 1]  # one thread a block
    assert not legality.is_legal(sketch.formulas.constraints_exact(row[None])).any()
    with pytest.raises(errors.InvalidSchedule, match="rejects the decisions"):
        sketch.schedule(row)


def test_an_error_of_tvm_is_an_invalid_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def apply_to_schedule(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("the trace does not apply")

    sketch = gemm("llvm")
    monkeypatch.setattr(sketch, "with_decisions", lambda decisions: Broken())
    row = sketch.sample(1, seed=0)[0].tolist()
    with pytest.raises(errors.InvalidSchedule, match="the trace does not apply"):
        sketch.apply(row)
    assert not sketch.is_applicable(row)


def test_a_location_that_tvm_does_not_have_is_invalid() -> None:
    sketch = pool()
    row = sketch.sample(1, seed=0)[0]
    for i, v in enumerate(sketch.variables):
        if v.structural:
            row[i] = max(v.domain)
    with pytest.raises(errors.InvalidSchedule):
        sketch.schedule(row)


ACCEPTED = [
    ("gemm_197", "cuda"),
    ("gemm_bias_relu", "llvm"),
    ("batch_gemm_tb_bias", "cuda"),
    ("conv2d_rectangular", "cuda"),
    ("conv2d", "llvm"),
    ("conv_transpose2d_nchw", "cuda"),
    ("depthwise_conv2d_nchw", "cuda"),
    ("max_pool2d_padded", "llvm"),
    ("avg_pool2d_valid", "cuda"),
    ("softmax_middle", "llvm"),
    ("softmax_197", "cuda"),
    ("layer_norm", "llvm"),
    ("sum_middle", "cuda"),
    ("sum_all", "llvm"),
    ("add_relu", "cuda"),
]


@pytest.mark.parametrize(("name", "target"), ACCEPTED)
def test_tvm_accepts_nearly_every_sampled_row(name: str, target: str) -> None:
    """At least 95 % of each sketch; uniform sampling: 7 % for a GEMM, 2 % for a convolution."""
    for sketch in sketching.trace_sketches(workloads.CHECK_SUITE[name](target)):
        rows = sketch.sample(20, seed=6)
        rejected = 0
        for row in rows:
            try:
                sketch.schedule(row)
            except errors.InvalidSchedule:
                rejected += 1
        assert rejected <= 1, f"{rejected} of 20 rows of {sketch!r}"


# ---------------------------------------------------------------- formulas


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_formulas_have_the_shapes_they_say(target: str) -> None:
    sketch = shared_gemm(target)
    f = sketch.formulas
    rows = sketch.sample(7, seed=1)
    raw, exact = f.raw(rows), f.exact(rows)
    assert f.names == spec.NAMES
    assert raw.shape == exact.shape == (7, f.n_rows, f.n_features)
    assert raw.dtype == exact.dtype == np.float64
    log = np.array(spec.LOG)
    np.testing.assert_array_equal(exact[..., ~log], raw[..., ~log])
    np.testing.assert_allclose(exact[..., log], np.log2(1 + raw[..., log]), rtol=1e-12)
    assert (raw >= 0).all() and np.isfinite(raw).all()


def test_expressions_are_what_is_compiled() -> None:
    sketch = shared_gemm("cuda")
    f = sketch.formulas
    row = sketch.sample(1, seed=1)
    values = {v.name: int(x) for v, x in zip(sketch.variables, row[0], strict=True)}
    raw = f.raw(row)[0]
    assert len(f.expressions) == f.n_rows
    for expressions, expected in zip(f.expressions, raw, strict=True):
        for name in ("trip_count", "shared_bytes", "buf1.unique_bytes", "occupancy"):
            expression = expressions[COLUMN[name]]
            at = expression.subs({s: values[s.name] for s in expression.free_symbols})
            assert float(at) == pytest.approx(expected[COLUMN[name]])


def test_rows_follow_the_program() -> None:
    assert [tuple(r) for r in shared_gemm("cuda").formulas.rows] == [
        ("matmul_init", "matmul_local"),
        ("A_shared", "A_shared"),
        ("B_shared", "B_shared"),
        ("matmul_update", "matmul_local"),
        ("matmul_local", "matmul"),
    ]


def test_a_block_that_is_inlined_has_a_row_of_zeros() -> None:
    sketch = pool()
    names = [r.block for r in sketch.formulas.rows]
    row = sketch.sample(1, seed=0)[0]
    location = [i for i, v in enumerate(sketch.variables) if v.structural]
    for value in (interpret.ROOT, interpret.INLINE):
        row[location] = interpret.ROOT
        row[location[0]] = value
        raw = sketch.formulas.raw(row[None])[0]
        gone = [n for n, values in zip(names, raw, strict=True) if not values.any()]
        assert gone == ([] if value == interpret.ROOT else ["pad"])
        made = sketch.concrete(row)
        assert ("pad" in [b.name for _, b in made.walk()]) == (value == interpret.ROOT)


# ---------------------------------------------------------------- keys and the cache


@pytest.mark.slow
def test_keys_tell_sketches_apart_and_are_stable() -> None:
    def keys(**options: Any) -> list[str]:
        task = workloads.gemm(64, 48, 32, **options)
        return [s.key for s in sketching.trace_sketches(task)]

    cores = {"kind": "llvm", "num-cores": 7}
    different = [*keys(target="llvm"), *keys(target="cuda"), *keys(target=cores),
                 *keys(target="llvm", transpose_b=True)]  # fmt: skip
    assert len(set(different)) == len(different)
    assert keys(target="llvm") == different[:3]
    code = (
        "import felix;"
        "task = felix.workloads.gemm(64, 48, 32, target='llvm');"
        "print(*[s.key for s in felix.trace_sketches(task)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=pathlib.Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stdout.split() == different[:3]


def test_the_digest_of_the_cache_covers_every_module_that_makes_formulas(
    tmp_path: pathlib.Path,
) -> None:
    package = pathlib.Path(felix.__file__).parent
    for source in formula_cache.SOURCES:
        target = tmp_path / source
        if (package / source).is_dir():
            shutil.copytree(package / source, target)
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(package / source, target)
    digest = formula_cache.digest_of(tmp_path)
    assert digest == formula_cache.code_digest()
    for changed in ("symbolic/instructions/placement.py", "features/stores.py", "features/spec.py",
                    "sketch/formulas.py", "autodiff/graph.py", "autodiff/passes.py",
                    "autodiff/program.py"):  # fmt: skip
        text = (tmp_path / changed).read_text()
        (tmp_path / changed).write_text(text + "#")
        assert formula_cache.digest_of(tmp_path) != digest, changed
        (tmp_path / changed).write_text(text)


@pytest.mark.parametrize("source", formula_cache.SOURCES)
def test_a_missing_source_of_formulas_is_an_error(tmp_path: pathlib.Path, source: str) -> None:
    for other in formula_cache.SOURCES:
        if other != source:
            file = tmp_path / (other if other.endswith(".py") else f"{other}/module.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
    with pytest.raises(FileNotFoundError, match=source):
        formula_cache.digest_of(tmp_path)


class ExtractedError(BaseException):
    """Formulas were extracted again; no error of modelling, which is reported otherwise."""


def forbid_extraction(monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(*_: Any) -> None:
        raise ExtractedError

    monkeypatch.setattr(table, "build", extract)


def test_formulas_seen_before_are_read_from_disk(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = gemm("llvm")
    rows = sketch.sample(5, seed=0)
    first = sketch.formulas.raw(rows)
    (written,) = cache.rglob("*.bin")
    assert written.parent == formula_cache.folder()
    forbid_extraction(monkeypatch)
    again = gemm("llvm")
    np.testing.assert_array_equal(again.formulas.raw(rows), first)
    assert again.formulas.rows == sketch.formulas.rows
    np.testing.assert_array_equal(again.sample(5, seed=0), rows)


def test_other_hardware_or_sketch_is_another_entry(cache: pathlib.Path) -> None:
    for n, make in enumerate([
        lambda: gemm("llvm"),
        lambda: gemm("llvm", 1),
        lambda: gemm({"kind": "llvm", "num-cores": 7}),
        lambda: gemm("cuda"),
    ]):  # fmt: skip
        assert make().formulas.n_rows > 0
        assert len(list(cache.rglob("*.bin"))) == n + 1


def test_a_program_with_other_names_has_rows_of_its_own(cache: pathlib.Path) -> None:
    """The same program: its key is blind to names, its rows are not."""

    def product(*names: str) -> sketching.Sketch:
        x, y = (te.placeholder((16, 16), name=name) for name in names)
        return sketching.trace_sketches(felix.Task.from_te([x, y, topi.nn.dense(x, y)], "cuda"))[0]

    first, second = product("a", "b"), product("x", "y")
    assert first.key == second.key
    blocks = [{row.block for row in sketch.formulas.rows} for sketch in (first, second)]
    assert blocks[0] > {"a_shared", "b_shared"} and blocks[1] > {"x_shared", "y_shared"}


def test_other_code_is_another_entry(cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gemm("llvm").formulas.n_rows > 0
    monkeypatch.setattr(formula_cache, "code_digest", lambda _: "of another version")
    forbid_extraction(monkeypatch)
    with pytest.raises(ExtractedError):
        assert gemm("llvm").formulas.n_rows


@pytest.mark.parametrize("damage", [b"", b"not a formula file", None])
def test_a_damaged_entry_is_made_anew(cache: pathlib.Path, damage: bytes | None) -> None:
    sketch = gemm("llvm")
    rows = sketch.sample(5, seed=0)
    first = sketch.formulas.raw(rows)
    (written,) = cache.rglob("*.bin")
    whole = written.read_bytes()
    written.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    np.testing.assert_array_equal(gemm("llvm").formulas.raw(rows), first)
    assert written.read_bytes() == whole


def test_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FELIX_CACHE_DIR", str(blocked))
    assert isinstance(gemm("llvm").formulas, formulas.Formulas)
    assert gemm("llvm").formulas.n_rows == 3


def test_a_postprocessor_that_fails_rejects_the_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def apply(self, schedule: Any) -> bool:
            raise IndexError("Index 6 out of bounds 6")

        def __str__(self) -> str:
            return "s_tir.meta_schedule.Broken(0x0)"

    sketch = pool()
    row = sketch.sample(1, max_structures=1)[0]
    monkeypatch.setattr(type(sketch._space_generator), "postprocs", [Broken()])
    with pytest.raises(errors.InvalidSchedule, match=r"Broken fails: Index 6 out of bounds"):
        sketch.schedule(row)


def test_a_reduction_that_tvm_cannot_spread_over_threads_is_left_out() -> None:
    """No row of such a sketch becomes a program."""
    b = te.placeholder((64, 96), "bool", name="b")
    any_row = felix.Task.from_te([b, topi.any(b, axis=1)], target="cuda")
    left_out: list[str] = []
    (sketch,) = sketching.trace_sketches(any_row, on_left_out=left_out.append)
    assert sketch.index == 0
    assert sketch.schedule(sketch.sample(1, seed=0)[0]).mod
    (line,) = left_out
    assert "sketch 1 left out: TVM cannot spread the reduction over threads" in line
    total = felix.Task.from_te([b, topi.sum(b.astype("int32"), axis=1)], target="cuda")
    assert len(sketching.trace_sketches(total)) == 2


def test_a_sketch_that_cannot_be_modelled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    of_trace = variables.of_trace
    refused: list[int] = []

    def refuse_some(program: Any, instructions: Any) -> Any:
        refused.append(len(refused))
        if refused[-1] in unknown:
            raise KeyError("a form nobody thought of")
        return of_trace(program, instructions)

    monkeypatch.setattr(variables, "of_trace", refuse_some)
    task = workloads.gemm(64, 48, 32, target="llvm")
    unknown, reasons = {1}, list[str]()
    assert [s.index for s in sketching.trace_sketches(task, on_left_out=reasons.append)] == [0, 2]
    assert [reason.split(":")[1] for reason in reasons] == [" sketch 1 left out"]
    assert "a form nobody thought of" in reasons[0]
    unknown = set(range(99))
    with pytest.raises(errors.UnsupportedSchedule, match=rf"^{task.name}: .*nobody thought of"):
        sketching.trace_sketches(task)
