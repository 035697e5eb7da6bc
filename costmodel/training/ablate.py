"""What each group of features and each term of the loss is worth: training without it.

Every variant is trained and scored on the same split, with the same options but for what
the variant changes, under several seeds. A feature that is left out is set to 0 everywhere
(`features.without`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from costmodel.data import features as task_features
from costmodel.data import split as splitting
from costmodel.training import evaluate, metrics, train
from felix.features.kind import FeatureKind


@dataclass(frozen=True, slots=True)
class Variant:
    """What is changed: features left out by pattern, whether the prior goes, the rank weight."""

    name: str
    drop: tuple[str, ...] = ()
    without_prior: bool = False
    rank_weight: float | None = None


_OF_TRACES = (
    Variant("as given"),
    Variant("no prior", without_prior=True),
    Variant("no analytic times", ("analytic.*", "roofline_us"), without_prior=True),
    Variant("no reuse", ("buf*.reuse*",)),
    Variant("no traffic by level", ("buf*.l?_bytes", "buf*.warp_sectors", "buf*.bank_ways")),
    Variant("no strides", ("buf*.stride", "buf*.vector_stride")),
    Variant(
        "no threads",
        (
            "grid_blocks",
            "block_threads",
            "vthreads",
            "shared_bytes",
            "local_bytes",
            "blocks_per_core",
            "occupancy",
            "waves",
            "tail",
        ),
    ),
    Variant("no code size", ("unroll_*", "code_*")),
    Variant("no arithmetic", ("float_*", "int_ops", "select_ops", "bool_ops")),
    Variant("ranking weight 0", rank_weight=0.0),
    Variant("ranking weight 2", rank_weight=2.0),
)
_OF_TEMPLATES = (
    Variant("as given"),
    Variant("no prior", without_prior=True),
    Variant("no times", ("*_us",), without_prior=True),
    Variant("no launch", ("grid_blocks", "block_threads", "cluster_blocks", "shared_bytes",
                          "registers", "blocks_per_sm", "waves", "tail", "tiles_per_block")),
    Variant("no ring", ("steps", "stages", "stage_bytes", "in_flight_bytes")),
    Variant("no bytes", ("*_bytes", "shared_traffic")),
    Variant("no tiles", ("instruction_columns", "tile_*", "sums_per_thread", "multiplying_warps",
                         "tiles_at_once")),
    Variant("ranking weight 0", rank_weight=0.0),
    Variant("ranking weight 2", rank_weight=2.0),
)  # fmt: skip
VARIANTS = {FeatureKind.TRACE: _OF_TRACES, FeatureKind.TEMPLATE: _OF_TEMPLATES}


@dataclass(frozen=True, slots=True)
class Result:
    """Scores of a variant on the test part: means over seeds, and each seed's."""

    variant: Variant
    mean: metrics.Scores
    seeds: tuple[metrics.Scores, ...]


def results(
    features: task_features.Features,
    split: splitting.SplitOptions,
    options: train.TrainOptions,
    variants: Sequence[Variant] = _OF_TRACES,
    seeds: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Result]:
    """Train and score the variants one after the other; seeds count from that of the options."""
    for variant in variants:
        if progress is not None:
            progress(variant.name)
        patterns = [p for p in variant.drop if fnmatch.filter(features.names, p)]
        parts = splitting.split(task_features.without(features, patterns).tasks, split)
        scores = []
        for seed in range(options.seed, options.seed + seeds):
            changed = dataclasses.replace(_changed(options, variant), seed=seed)
            trained = train.train(features, parts.train, parts.validation, changed)
            predictor = evaluate.of_module(trained.model)
            scores.append(evaluate.evaluate(variant.name, predictor, parts.test).overall)
        yield Result(variant, metrics.mean(scores), tuple(scores))


def _changed(options: train.TrainOptions, variant: Variant) -> train.TrainOptions:
    if variant.without_prior:
        shape = dataclasses.replace(options.shape, prior=None)
        options = dataclasses.replace(options, shape=shape)
    if variant.rank_weight is not None:
        options = dataclasses.replace(options, rank_weight=variant.rank_weight)
    return options
