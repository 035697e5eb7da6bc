"""What an allocation touches: as visits of all iterations say, and where these are too many."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import te, topi

from benchmarks.support.verify import compare, touched, tvm_schedule
from felix import errors
from felix.space import sketch as sketching
from felix.space import trace_sketch
from felix.task import Task
from felix.tir import numeric
from tests.support import legal_rows, share


def pools(depth: int, size: int, target: str) -> list[trace_sketch.TraceSketch]:
    """Sketches of a chain of padded maxima of 3 x 3, each of which moves into the next one."""
    first = last = te.placeholder((1, 2, size, size), name="x")
    for _ in range(depth):
        last = topi.nn.pool2d(last, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max")
    return sketching.trace_sketches(Task.from_te([first, last], target))


def modules(sketch: trace_sketch.TraceSketch, n: int) -> Iterator[tvm.IRModule]:
    for row in legal_rows.draw(sketch, n, seed=0):
        yield sketch.schedule(row).mod


def visited(module: tvm.IRModule, label: str, dimension: int) -> int:
    """What `touched.count` says, from every iteration of the loops around each access."""
    placed = tvm_schedule.allocated(module)[label]
    (buffer,) = (b for b, other in tvm_schedule.labels_of(module).items() if other == label)
    depth, is_shared = len(placed.site), placed.scope == "shared"
    low: dict[tuple[int, ...], int] = {}
    high: dict[tuple[int, ...], int] = {}
    for stage in tvm_schedule.stages(module):
        extents = [loop.extent for loop in stage.loops]
        places = np.indices(extents).reshape(len(extents), -1)
        grid = dict(zip(stage.variables, places, strict=True))
        threads = [(loop.thread or "").startswith("threadIdx") for loop in stage.loops[:depth]]
        outer = [i for i, thread in enumerate(threads) if not (is_shared and thread)]
        bindings = zip(stage.realize.block.iter_vars, stage.realize.iter_values, strict=True)
        iterators = {each.var: numeric.evaluate(value, grid) for each, value in bindings}
        keep = np.broadcast_to(numeric.evaluate(stage.realize.predicate, grid), places[0].shape)
        for index in touched.indices(stage, buffer, dimension):
            values = np.broadcast_to(numeric.evaluate(index, iterators), keep.shape)[keep == 1]
            for *key, value in np.unique([*places[outer][:, keep == 1], values], axis=1).T:
                at = tuple(key)
                low[at], high[at] = min(low.get(at, value), value), max(high.get(at, value), value)
    return int(max(high[at] - low[at] for at in low)) + 1


@pytest.mark.slow("visits every iteration")
@pytest.mark.parametrize(("target", "rows"), [("llvm", 1), ("cuda", 4)])
def test_it_is_what_visiting_every_iteration_says(target: str, rows: int) -> None:
    n_compared = 0
    for sketch in share.of(pools(2, 5, target)[:5], 2):
        for module in modules(sketch, rows):
            loops = [math.prod(lp.extent for lp in s.loops) for s in tvm_schedule.stages(module)]
            if max(loops) > 10**6:
                continue
            for label, buffer in tvm_schedule.allocated(module).items():
                for dimension in range(len(buffer.shape)):
                    expected = visited(module, label, dimension)
                    assert touched.count(module, label, dimension) == expected
                    n_compared += 1
    assert n_compared >= 20


@pytest.mark.slow("a nest of many loops, traced by Python")
def test_a_deep_nest_takes_little_memory() -> None:
    sketch = pools(6, 16, "llvm")[0]
    rows = legal_rows.draw(sketch, 2, seed=0)
    tracemalloc.start()
    report = compare.check_rows(sketch, rows)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.mismatches == () and len(report.loose) >= 4
    assert most_bytes < 256 << 20


@pytest.mark.slow("visits every iteration")
def test_threads_that_reach_beyond_the_buffer_take_little_memory() -> None:
    tracemalloc.start()
    for sketch in share.of(pools(3, 16, "cuda"), 3):
        for module in modules(sketch, 1):
            for label in tvm_schedule.allocated(module):
                assert 1 <= touched.count(module, label, 3) <= 18
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 1 << 29


def test_what_cannot_be_counted_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "_MAX_NUMBERS", 10)
    module = next(modules(pools(2, 5, "llvm")[0], 1))
    label = next(iter(tvm_schedule.allocated(module)))
    with pytest.raises(
        errors.UnsupportedSchedule, match="too many loops to count what is touched"
    ):
        touched.count(module, label, 2)
