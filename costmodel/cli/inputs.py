"""What the subcommands work on, as their options say: data, features, split, settings."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felix import errors
from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    from costmodel.data import dataset as datasets
    from costmodel.data import features as task_features
    from costmodel.data import split as splitting
    from costmodel.training import train as training


#: What `--prior` says for no prior.
NO_PRIOR = "none"


def kind(options: argparse.Namespace) -> FeatureKind:
    """Whose features the command works on."""
    return FeatureKind(options.kind)


def load(
    options: argparse.Namespace, make: Callable[[], task_features.Featurizer] | None = None
) -> tuple[datasets.Dataset, task_features.Features]:
    """Data set and features; `make` makes their featurizer, by default Felix's of `--kind`."""
    from costmodel.data import dataset as datasets
    from costmodel.data import features as task_features
    from costmodel.data import felix_bridge, parallel_features

    dataset = datasets.read(options.data)
    for part in dataset.torn:
        print(f"costmodel: left out unreadable {part}", file=sys.stderr)
    cache = None if options.cache is None else Path(options.cache)

    def report(done: int, total: int) -> None:
        if done % 10 == 0 or done == total:
            print(f"features: {done}/{total} workloads", file=sys.stderr, flush=True)

    is_template = kind(options) is FeatureKind.TEMPLATE
    make = make or (
        felix_bridge.TemplateFeaturizer if is_template else felix_bridge.FelixFeaturizer
    )
    if options.jobs > 1:
        if cache is None:
            raise errors.RecordError("--jobs fills a cache of features: give --cache as well")
        parallel_features.fill_cache(dataset, make, cache, options.jobs, report)
    features = task_features.load_features(
        dataset, make(), cache, None if options.jobs > 1 else report
    )
    if features.skipped:
        print(f"costmodel: {features.skipped} records could not be used", file=sys.stderr)
    return dataset, features


def load_for_training(
    options: argparse.Namespace,
) -> tuple[datasets.Dataset, task_features.Features]:
    """Data set and Felix's features, without those that `--drop` names."""
    from costmodel.data import features as task_features

    dataset, features = load(options)
    return dataset, task_features.without(features, options.drop)


def split_options(options: argparse.Namespace) -> splitting.SplitOptions:
    """How the tasks are split."""
    from costmodel.data import split as splitting

    return splitting.SplitOptions(options.split, options.validation, options.test, options.seed)


def train_options(options: argparse.Namespace) -> training.TrainOptions:
    """How the network is trained."""
    from costmodel import registry
    from costmodel.models import segment_mlp
    from costmodel.training import train as training

    is_template = kind(options) is FeatureKind.TEMPLATE
    prior = options.prior or (registry.TEMPLATE_TIME if is_template else NO_PRIOR)
    return training.TrainOptions(
        epochs=options.epochs,
        patience=options.patience,
        lr=options.lr,
        weight_decay=options.weight_decay,
        rank_weight=options.rank_weight,
        failures=options.failures,
        calibrate=options.calibrate,
        seed=options.seed,
        shape=segment_mlp.ModelOptions(
            options.hidden,
            options.blocks,
            prior=None if prior == NO_PRIOR else prior,
            prior_reduce="sum" if is_template else "max",
        ),
    )


def device(tasks: Sequence[task_features.TaskData]) -> str:
    """The one device kind of the tasks; raises RecordError when they are mixed."""
    from costmodel import registry

    kinds = {registry.device_key(task.target) for task in tasks}
    if len(kinds) != 1:
        raise errors.RecordError(f"the data mix devices: {', '.join(sorted(kinds))}")
    return kinds.pop()


def device_name(tasks: Sequence[task_features.TaskData]) -> str:
    """Names of the devices; their records describe them in full."""
    from costmodel.data import felix_bridge

    names = set()
    for task in tasks:
        hardware = felix_bridge.hardware_of(task.device)
        names.add(f"{hardware.name} ({hardware.cores} cores)" if hardware else task.device)
    return ", ".join(sorted(names - {""}))


def data_facts(
    dataset: datasets.Dataset,
    features: task_features.Features,
    parts: splitting.Split,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """What a card says of the data."""
    operators = Counter(task.workload.operator for task in features.tasks)
    ran = sum(int(task.measured.sum()) for task in features.tasks)
    total = sum(len(task.ln_latency) for task in features.tasks)
    records = [r for r in dataset.records if r.kind is kind(options)]
    times = [r.measured_at for r in records]
    templates = Counter(r.template for r in records if r.template is not None)
    of_templates = ", ".join(f"{name} {n}" for name, n in sorted(templates.items()))
    return {
        "digest": dataset.digest,
        **({"kind": str(kind(options)), "templates": of_templates} if templates else {}),
        "schedules": f"{ran} measured, {total - ran} failed, {features.skipped} not usable",
        "workloads": len({task.workload.key for task in features.tasks}),
        "operators": ", ".join(f"{n} {c}" for n, c in sorted(operators.items())),
        "split": f"by {options.split}, seed {options.seed}: {len(parts.train)} training, "
        f"{len(parts.validation)} validation, {len(parts.test)} test workloads",
        "failures": options.failures,
        "measured": f"{min(times):%Y-%m-%d} to {max(times):%Y-%m-%d}",
        "TVM": ", ".join(sorted({r.tvm for r in records})),
    }
