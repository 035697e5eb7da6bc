"""Trials of a job, its curves, and how its search went."""

from __future__ import annotations

from typing import Any

import pydantic

from server import states
from server.web.response_bodies import common


class NamedDecision(common.ResponseBody):
    """One decision of a schedule, or a parameter of a template, whose name comes first."""

    name: str = pydantic.Field(examples=["tile of i in gemm"])
    values: list[int] = pydantic.Field(
        description="its part of `decisions`; of a tile the factors, from the outermost on; of "
        "a template's name none",
        examples=[[8, 4, 2, 8]],
    )
    text: str = pydantic.Field(description="the values in words", examples=["8 × 4 × 2 × 8"])


class Trial(common.ResponseBody):
    """One measured candidate: a latency or an error class."""

    number: int
    task: int
    round: int
    sketch_index: int
    decisions: list[int]
    named_decisions: list[NamedDecision] | None = pydantic.Field(
        default=None, description="the same by name; null: the names were not stored"
    )
    latency_us: float | None
    error: str | None = pydantic.Field(
        description="build, launch, timeout, wrong_result or infrastructure"
    )
    message: str
    spread: float | None = pydantic.Field(description="relative spread of the repeats")
    predicted_us: float | None
    best_us: float | None = pydantic.Field(description="the task's best so far")
    is_best: bool
    elapsed_s: float
    measured_s: float
    build_s: float
    run_s: float
    device: str
    measured_at: common.Time


class CurvePoint(common.ResponseBody):
    """Best so far after `trial` trials."""

    trial: int
    elapsed_s: float
    measured_s: float
    best_us: float
    share_of_best: float = pydantic.Field(
        description="the curve's last latency over this one: 1 is where it stands now"
    )


class Curve(common.ResponseBody):
    """Best so far of a job: the points where it fell, and where it stands now."""

    job_id: int
    name: str
    state: states.State
    unscheduled_us: float | None
    points: list[CurvePoint]


class PredictedPoint(common.ResponseBody):
    """The latency of a trial as the cost model predicted it, and as it was measured."""

    trial: int
    task: int
    round: int
    predicted_us: float
    latency_us: float


class Predicted(common.ResponseBody):
    """Predicted against measured: says how far the cost model can be trusted."""

    n: int
    rank_correlation: float | None = pydantic.Field(
        description="Spearman's, over all given points; null for fewer than two distinct values"
    )
    median_ratio: float | None = pydantic.Field(
        description="median of max(predicted/measured, measured/predicted); 1 is perfect"
    )
    points: list[PredictedPoint]


class Round(common.ResponseBody):
    """A round of the search; `steps` have step, temperature, loss and penalty of the descent."""

    task: int
    round: int
    n_candidates: int
    n_invalid: int
    predicted_us: float | None
    elapsed_s: float
    steps: list[dict[str, Any]]


class Training(common.ResponseBody):
    """One fine-tuning of the cost model."""

    n_records: int
    loss_before: float | None
    loss_after: float | None
    accepted: bool
    at: common.Time


class Search(common.ResponseBody):
    """How the search went."""

    rounds: list[Round]
    trainings: list[Training]
    errors: dict[str, int] = pydantic.Field(description="failed trials by error class")
