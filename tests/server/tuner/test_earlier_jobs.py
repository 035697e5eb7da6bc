"""What a job takes from earlier ones where some sketches are templates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from felix import records, target, workloads
from felix.measure import protocol
from felix.metaschedule import trace_text
from felix.sketch import sketch as sketching
from felix.sketch.sketch import Sketch
from felix.task import Task
from server.store import reuse
from server.tuner import felix_engine
from tests.support.templates import naive_gemm


@dataclasses.dataclass
class _Import:
    signature: str
    decisions: list[str]


@dataclasses.dataclass
class _Row:
    n_trials: int = 0
    settled: bool = False


@dataclasses.dataclass
class _Claimed:
    lines: list[str]
    imports: list[_Import]
    similar: list[reuse.SimilarTask] = dataclasses.field(default_factory=list)

    def tasks(self) -> list[_Row]:
        return [_Row()]

    def known_schedules(self, number: int) -> list[str]:
        return self.lines

    def known_imports(self, number: int) -> list[_Import]:
        return self.imports

    def known_similar(self, number: int) -> list[reuse.SimilarTask]:
        return self.similar


def _record(task: Task, sketch: Sketch, row: Sequence[int]) -> str:
    return records.Record(
        task_key=task.key,
        task_name=task.name,
        sketch_index=sketch.index,
        sketch_key=sketch.key,
        decisions=tuple(row),
        measurement=protocol.Measurement.timed([1.0], checked=True),
        predicted_us=None,
        round=0,
        elapsed_s=0.0,
        timestamp=0.0,
        versions={},
        variant=str(sketch.variant),
    ).to_json()


def test_kernels_of_templates_and_imported_traces_are_tried_first() -> None:
    task = naive_gemm.task(32, 32, 32)
    trace = sketching.sketches(task)[0]
    template = naive_gemm.sketch(9, task)
    row = trace.sample(1, seed=1)[0].tolist()
    signature, texts = trace_text.read(trace.schedule(row).trace.simplified(True))
    record = _record(task, template, (8, 32, 1, 4))
    claimed: Any = _Claimed([record], [_Import(signature, texts)])
    earlier = felix_engine.EarlierJobs(claimed, [task])
    assert earlier.first_schedules(task, [trace, template]) == [
        (template.key, (8, 32, 1, 4)),
        (trace.key, tuple(row)),
    ]


@pytest.mark.parametrize("spec", ["llvm -num-cores 2", "h200"])
def test_schedules_of_other_extents_are_adapted(spec: str) -> None:
    dtype = "bfloat16" if spec == "h200" else "float32"
    known, task = (workloads.gemm(m, 256, 512, dtype=dtype, target=spec) for m in (128, 256))
    sketch = sketching.sketches(known)[-1]
    row = sketch.sample(1, seed=1)[0].tolist()
    similar = reuse.SimilarTask(
        known.to_json(), target.describe(known.target), _record(known, sketch, row)
    )
    sketches = sketching.sketches(task)
    claimed: Any = _Claimed([], [], [similar])
    found = felix_engine.EarlierJobs(claimed, [task]).first_schedules(task, sketches)
    (chosen,) = {key for key, _ in found}
    (adapted,) = [each for each in sketches if each.key == chosen]
    assert str(adapted.variant) == str(sketch.variant)
    assert all(adapted.program(list(row)) is not None for _, row in found)  # they are legal

    broken = dataclasses.replace(similar, record="{}")
    elsewhere = dataclasses.replace(similar, program=workloads.softmax((8, 8)).to_json())
    claimed = _Claimed([], [], [broken, elsewhere])
    assert felix_engine.EarlierJobs(claimed, [task]).first_schedules(task, sketches) == []
