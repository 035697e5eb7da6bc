"""Formulas of sketches as users see them, the keys of sketches, and the cache of formulas.

Defects of modelling cost a sketch, by name; what is no defect passes.
"""

from __future__ import annotations

import logging
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

import felix
from felix import errors, workloads
from felix.features import spec, table
from felix.space import formula_cache, formulas, sketch
from felix.space import sketch as sketching
from felix.symbolic import interpret
from tests.support import sketches, warm

COLUMN = {name: i for i, name in enumerate(spec.NAMES)}


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_formulas_of_users_have_no_shared_subexpressions() -> None:
    sketch = sketches.pool()
    names = {v.name for v in sketch.variables}
    values = [value for row in sketch.formulas.expressions for value in row]
    assert {str(s) for value in values for s in value.free_symbols} <= names
    decisions = sketch.sample(1, seed=0, max_structures=1)
    point = dict(zip((v.name for v in sketch.variables), decisions[0].tolist(), strict=True))
    raw = sketch.formulas.raw(decisions)[0].ravel()
    for value, want in list(zip(values, raw.tolist(), strict=True))[::7]:
        numbers = {s: int(point[str(s)]) for s in value.free_symbols}
        assert float(value.subs(numbers)) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_formulas_have_the_shapes_they_say(target: str) -> None:
    sketch = sketches.shared_gemm(target)
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


def test_rows_follow_the_program() -> None:
    assert [tuple(r) for r in sketches.shared_gemm("cuda").formulas.rows] == [
        ("matmul_init", "matmul_local"),
        ("A_shared", "A_shared"),
        ("B_shared", "B_shared"),
        ("matmul_update", "matmul_local"),
        ("matmul_local", "matmul"),
    ]


def test_a_block_that_is_inlined_has_a_row_of_zeros() -> None:
    sketch = sketches.pool()
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


def test_keys_tell_sketches_apart_and_are_stable() -> None:
    def keys(**options: Any) -> list[str]:
        task = workloads.gemm(64, 48, 32, **options)
        return [s.key for s in sketching.trace_sketches(task)]

    cores = {"kind": "llvm", "num-cores": 7}
    different = [
        *keys(target="llvm"),
        *keys(target="cuda"),
        *keys(target=cores),
        *keys(target="llvm", transpose_b=True),
    ]
    assert len(set(different)) == len(different)
    assert keys(target="llvm") == different[:3]
    code = (
        "import felix;"
        "task = felix.workloads.gemm(64, 48, 32, target='llvm');"
        "print(*[s.key for s in felix.trace_sketches(task)])"
    )
    done = warm.run([sys.executable, "-c", code], check=True)
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
    for changed in (
        "symbolic/instructions/placement.py",
        "features/stores.py",
        "features/spec.py",
        "space/formulas.py",
        "autodiff/graph.py",
        "autodiff/passes.py",
        "autodiff/program.py",
    ):
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
    sketch = sketches.gemm("llvm")
    rows = sketch.sample(5, seed=0)
    first = sketch.formulas.raw(rows)
    (written,) = cache.rglob("*.bin")
    assert written.parent == formula_cache.folder()
    forbid_extraction(monkeypatch)
    again = sketches.gemm("llvm")
    np.testing.assert_array_equal(again.formulas.raw(rows), first)
    assert again.formulas.rows == sketch.formulas.rows
    np.testing.assert_array_equal(again.sample(5, seed=0), rows)


def test_other_hardware_or_sketch_is_another_entry(cache: pathlib.Path) -> None:
    for n, make in enumerate(
        [
            lambda: sketches.gemm("llvm"),
            lambda: sketches.gemm("llvm", 1),
            lambda: sketches.gemm({"kind": "llvm", "num-cores": 7}),
            lambda: sketches.gemm("cuda"),
        ]
    ):
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
    assert sketches.gemm("llvm").formulas.n_rows > 0
    monkeypatch.setattr(formula_cache, "code_digest", lambda _: "of another version")
    forbid_extraction(monkeypatch)
    with pytest.raises(ExtractedError):
        assert sketches.gemm("llvm").formulas.n_rows


@pytest.mark.parametrize("damage", [b"", b"not a formula file", None])
def test_a_damaged_entry_is_made_anew(cache: pathlib.Path, damage: bytes | None) -> None:
    sketch = sketches.gemm("llvm")
    rows = sketch.sample(5, seed=0)
    first = sketch.formulas.raw(rows)
    (written,) = cache.rglob("*.bin")
    whole = written.read_bytes()
    written.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    np.testing.assert_array_equal(sketches.gemm("llvm").formulas.raw(rows), first)
    assert written.read_bytes() == whole


def test_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FELIX_CACHE_DIR", str(blocked))
    assert isinstance(sketches.gemm("llvm").formulas, formulas.Formulas)
    assert sketches.gemm("llvm").formulas.n_rows == 3


def test_a_defect_costs_the_sketch_it_is_met_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = felix.workloads.gemm(16, 16, 16)
    n_sketches = len(felix.sketches(task))
    parse, numbers = sketch.interpret.parse, iter(range(n_sketches))

    def broken(trace: Any) -> Any:
        if next(numbers) == 1:
            raise KeyError("a loop nobody thought of")
        return parse(trace)

    monkeypatch.setattr(sketch.interpret, "parse", broken)
    notes: list[str] = []
    with caplog.at_level(logging.WARNING, formulas.__name__):
        rest = sketch.sketches(task, on_left_out=notes.append)
    assert [each.index for each in rest] == [i for i in range(n_sketches) if i != 1]
    (note,) = notes
    assert "sketch 1 left out" in note and "a loop nobody thought of" in note
    (record,) = caplog.records
    assert record.exc_info and vars(record)["action"] == "unforeseen_form"


def test_where_all_are_defects_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trace: Any) -> Any:
        raise KeyError("a loop nobody thought of")

    monkeypatch.setattr(sketch.interpret, "parse", broken)
    with pytest.raises(errors.UnforeseenForm, match=r"gemm_16x16x16: .*KeyError.*please report"):
        felix.sketches(felix.workloads.gemm(16, 16, 16))


@pytest.mark.parametrize("error", [errors.UnsupportedSchedule("left out"), MemoryError()])
def test_what_is_no_defect_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, formulas.reported():
        raise error
    assert caught.value is error
