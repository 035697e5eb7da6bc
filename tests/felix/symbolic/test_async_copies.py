"""Legal decisions have no asynchronous copies that TVM would write wrongly, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm.sym
from tvm import s_tir, te, tirx, topi
from tvm_ffi import structural

import felix
from felix import workloads
from felix.builder.cuda import build
from felix.errors import InvalidSchedule
from felix.space import legality
from felix.space.trace_sketch import TraceSketch
from felix.task import Task
from tests.support import share

#: What one `cp.async` copies; TVM leaves vectors of other sizes as they are.
COPIED_BYTES = (4, 8, 16)


class Copies:
    """A pass in front of InjectPTXAsyncCopy that counts vectors it would read wrongly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong, self.right = 0, 0
        inject = s_tir.transform.InjectPTXAsyncCopy
        count = tirx.transform.prim_func_pass(self._count, opt_level=0)
        both = tvm.transform.Sequential
        monkeypatch.setattr(s_tir.transform, "InjectPTXAsyncCopy", lambda: both([count, inject()]))

    def of(self, task: Task, mod: tvm.IRModule) -> tuple[int, int]:
        """(wrong, right) vectors of a scheduled program."""
        self.wrong, self.right = 0, 0
        build.lower(mod, task.target)
        return self.wrong, self.right

    def _count(self, func: tirx.PrimFunc, mod: tvm.IRModule, context: object) -> tirx.PrimFunc:
        def visit(store: tirx.BufferStore) -> None:
            load = store.value
            if type(load).__name__ != "TensorLoad" or not store.buffer.scope().startswith(
                "shared"
            ):
                return
            (index,) = load.indices
            dtype = tvm.DataType(load.ty.dtype)
            size = dtype.lanes * dtype.bits // 8
            if dtype.lanes == 1 or size not in COPIED_BYTES or type(index).__name__ != "Ramp":
                return
            base = tvm.sym.Analyzer().modular_set(index.base)
            aligned = int(base.coeff) % dtype.lanes == 0 and int(base.base) % dtype.lanes == 0
            if aligned and int(index.stride) == 1:
                self.right += 1
            else:
                self.wrong += 1

        structural.structural_walk(func.body, ((tirx.BufferStore, visit),))
        return func


def pipelined(text: str) -> list[TraceSketch]:
    """The stock sketches of a workload that copy asynchronously."""
    sketches = felix.trace_sketches(workloads.parse(text, target="h200"))
    return [sketch for sketch in sketches if _is_pipelined(sketch)]


def _is_pipelined(sketch: TraceSketch) -> bool:
    annotated = any("software_pipeline" in str(inst.attrs) for inst in sketch.trace.insts)
    return annotated and sketch.variant.name == "stock"


#: Rows of A that are shorter than a vector; windows, which begin at any column.
VECTORS = ["gemm:512,512,14", "conv2d:1,18,18,8,8,3,layout=NCHW"]


@pytest.mark.slow("schedules forty candidates")
@pytest.mark.parametrize("text", share.of(VECTORS, 1))
def test_vectors_of_legal_decisions_are_neighbours_at_aligned_addresses(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(monkeypatch)
    wrong: dict[bool, int] = {True: 0, False: 0}
    right = 0
    for sketch in pipelined(text)[:1]:
        for seed in range(1, 41):
            decisions = sketch.tvm_sample(seed)
            if decisions is None:
                continue
            try:
                mod = sketch.schedule(decisions).mod
            except InvalidSchedule:
                continue
            values = sketch.formulas.constraints_exact(np.asarray([decisions]))
            legal = bool(legality.is_legal(values)[0])
            counts = copies.of(sketch.task, mod)
            wrong[legal] += counts[0]
            right += counts[1] if legal else 0
    assert wrong[True] == 0 and wrong[False] > 0 and right > 0


def is_built(task: Task, mod: tvm.IRModule) -> bool:
    """Whether TVM's CUDA can be written; what it cannot write has to be a copy of a DMA engine."""
    try:
        build.lower(mod, task.target)
    except tvm.error.InternalError as error:
        assert "dma_" in str(error)
        return False
    return True


#: And whether other limits refuse what could be built.
RUNS = [
    ("gemm:7,3,24", True),
    ("conv2d:1,5,5,8,2,3,stride=2", True),  # pixels with all their channels
    ("gemm:1,16,32,dtype=int8", False),  # one row of A, whole rows of B
]


@pytest.mark.parametrize(("text", "has_other_limits"), share.of(RUNS, 1))
def test_a_run_that_one_thread_copies_is_not_legal(text: str, has_other_limits: bool) -> None:
    """TVM takes its loop for the work of a DMA engine, which its CUDA cannot write."""
    sketch = pipelined(text)[0]
    legal, built = [], []
    for decisions in filter(None, map(sketch.tvm_sample, range(1, 41))):
        try:
            built.append(is_built(sketch.task, sketch.schedule(decisions).mod))
        except InvalidSchedule:
            continue
        values = sketch.formulas.constraints_exact(np.asarray([decisions]))
        legal.append(bool(legality.is_legal(values)[0]))
    pairs = set(zip(legal, built, strict=True))
    assert {(True, True), (False, False)} <= pairs and (True, False) not in pairs
    assert has_other_limits or (False, True) not in pairs


def test_a_fetch_at_indices_from_data_is_judged() -> None:
    """A row may begin anywhere in its tensor; its elements are neighbours."""
    table, w = te.placeholder((50, 32), name="table"), te.placeholder((24, 32), name="w")
    rows = te.placeholder((16,), "int32", name="rows")
    y = topi.nn.dense(topi.take(table, rows, axis=0, mode="clip"), w)
    task = Task.from_te([table, rows, w, y], target="h200")
    sketches = [sketch for sketch in felix.trace_sketches(task) if _is_pipelined(sketch)]
    assert sketches and all(len(sketch.sample(2)) == 2 for sketch in sketches)
