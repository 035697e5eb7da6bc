"""What a job takes from earlier ones where some sketches are templates."""

from __future__ import annotations

import dataclasses
from typing import Any

from felix import records
from felix.measure import protocol
from felix.metaschedule import trace_text
from felix.sketch import sketch as sketching
from server.tuner import earlier_jobs
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

    def tasks(self) -> list[_Row]:
        return [_Row()]

    def known_schedules(self, number: int) -> list[str]:
        return self.lines

    def known_imports(self, number: int) -> list[_Import]:
        return self.imports


def test_kernels_of_templates_and_imported_traces_are_tried_first() -> None:
    task = naive_gemm.task(32, 32, 32)
    trace = sketching.sketches(task)[0]
    template = naive_gemm.sketch(9, task)
    row = trace.sample(1, seed=1)[0].tolist()
    signature, texts = trace_text.read(trace.schedule(row).trace.simplified(True))
    record = records.Record(
        task_key=task.key, task_name=task.name, sketch_index=9, sketch_key=template.key,
        decisions=(8, 32, 1, 4), measurement=protocol.Measurement.timed([1.0], checked=True),
        predicted_us=None, round=0, elapsed_s=0.0, timestamp=0.0, versions={},
        variant=template.variant,
    )  # fmt: skip
    claimed: Any = _Claimed([record.to_json()], [_Import(signature, texts)])
    earlier = earlier_jobs.EarlierJobs(claimed, [task])
    assert earlier.first_schedules(task, [trace, template]) == [
        (template.key, (8, 32, 1, 4)),
        (trace.key, tuple(row)),
    ]
