"""Which cost model to use for a target: a shipped checkpoint, else an analytic one.

Checkpoints live under `costmodel/pretrained/<device>/model.safetensors`, with a model card
beside; those that read features of templates under `<device>/templates/`. `<device>` is "llvm"
for every CPU (fine-tuning calibrates the machine) and "cuda-<arch>" for GPUs, whose schedules do
not carry over.

Without a checkpoint traces have the analytic prior with a network to train, and templates their
own estimate of the time. So have products without tensor cores, of which no checkpoint saw any.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.data import replay as replaying
from costmodel.models import analytic, analytic_time, checkpoint, feature_columns, within_training
from felix import errors
from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    from tvm.target import Target

PRETRAINED = Path(__file__).parent / "pretrained"
FILE_NAME = "model.safetensors"
#: Folder of a device's checkpoints for features of each kind.
_FOLDERS = {FeatureKind.TRACE: "", FeatureKind.TEMPLATE: "templates"}
#: Feature of templates that holds a kernel's time in microseconds.
TEMPLATE_TIME = "analytic_us"
#: Features that hold a time of the whole program in microseconds.
ANALYTIC_TIMES = (
    "analytic.compute_us",
    "analytic.l1_us",
    "analytic.l2_us",
    "analytic.dram_us",
    "analytic.issue_us",
    "analytic.latency_us",
    "analytic.launch_us",
)


#: What `load_for` gives.
Predictor = checkpoint.Predictor | analytic_time.AnalyticTime | within_training.WithinTraining


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Where a model came from.

    Attributes:
        source: "checkpoint" or "analytic".
        message: one line for the person who tunes.
        path: the checkpoint, None for an analytic model.
        metadata: of the checkpoint, None for an analytic model.
        replay: sample of its training data for `FineTuner`, None where there is none.
    """

    source: str
    message: str
    path: Path | None = None
    metadata: checkpoint.Metadata | None = None
    replay: replaying.Replay | None = None


def device_key(target: Target | str) -> str:
    """Folder name of a target's checkpoints: "llvm", "cuda-sm_90".

    Args:
        target: a TVM target, its JSON text, or just a kind.
    """
    if isinstance(target, str):
        config = json.loads(target) if target.lstrip().startswith("{") else {"kind": target}
        kind, arch = config.get("kind"), config.get("arch")
    else:
        kind, arch = str(target.kind.name), target.attrs.get("arch")
    return f"{kind}-{arch}" if arch and kind != "llvm" else str(kind)


def pretrained(
    target: Target | str, root: Path | None = None, kind: FeatureKind = FeatureKind.TRACE
) -> Path | None:
    """The shipped checkpoint for a target and features of a kind, None where there is none."""
    path = (root or PRETRAINED) / device_key(target) / _FOLDERS[kind] / FILE_NAME
    return path if path.is_file() else None


def load_for(
    target: Target | str,
    feature_names: Sequence[str],
    features_version: int,
    path: str | Path | None = None,
    root: Path | None = None,
    seed: int = 0,
    kind: FeatureKind = FeatureKind.TRACE,
) -> tuple[Predictor, ModelInfo]:
    """The model a tuning run starts from.

    Args:
        target: the TVM target that is tuned for.
        feature_names: names of the rows, in column order.
        features_version: `FEATURES_VERSION` of the rows.
        path: a checkpoint to use instead of the shipped one.
        root: folder of shipped checkpoints.
        seed: of the analytic prior's correction network.
        kind: which table the features are of.

    Returns:
        A module `model(rows [B, R, F], mask [B, R]) -> ln(latency_us) [B]` and its origin.

    Raises:
        CheckpointError: the checkpoint given by `path` does not fit. A shipped one that does
            not fit is passed over; the message says so.
    """
    file = Path(path) if path is not None else pretrained(target, root, kind)
    reason = f"no pretrained model for {device_key(target)}"
    if file is not None:
        try:
            shipped, metadata = checkpoint.load(file, feature_names, features_version)
            replay = _replay_beside(file, feature_names, features_version)
            name = file if path is not None else f"{device_key(target)} (shipped)"
            info = ModelInfo("checkpoint", f"cost model {name}", file, metadata, replay)
            return _within_training(shipped, feature_names, kind), info
        except errors.CheckpointError as error:
            if path is not None:
                raise
            reason = str(error)
    model = _analytic(feature_names, seed, kind).eval()
    return model, ModelInfo("analytic", f"analytic cost model ({reason})")


def _analytic(
    feature_names: Sequence[str], seed: int, kind: FeatureKind
) -> analytic.Corrected | analytic_time.AnalyticTime:
    if kind is FeatureKind.TEMPLATE:
        return analytic_time.AnalyticTime(feature_names, TEMPLATE_TIME)
    return analytic.corrected(feature_names, analytic_options(feature_names), seed=seed)


def _within_training(
    shipped: checkpoint.Predictor, feature_names: Sequence[str], kind: FeatureKind
) -> Predictor:
    """What predicts kernels that a network for templates was not trained on as well."""
    if kind is not FeatureKind.TEMPLATE:
        return shipped
    formula = analytic_time.AnalyticTime(feature_names, TEMPLATE_TIME)
    return within_training.WithinTraining(shipped, formula, feature_names).eval()


def analytic_baseline(
    feature_names: Sequence[str], kind: FeatureKind
) -> analytic.AnalyticModel | analytic_time.AnalyticTime:
    """What a trained model of a kind has to beat: the formulas alone, which nothing corrects."""
    if kind is FeatureKind.TEMPLATE:
        return analytic_time.AnalyticTime(feature_names, TEMPLATE_TIME)
    return analytic.AnalyticModel(feature_names, analytic_options(feature_names))


def _replay_beside(
    path: Path, feature_names: Sequence[str], features_version: int
) -> replaying.Replay | None:
    replay_path = path.with_name(replaying.FILE_NAME)
    if not replay_path.is_file():
        return None
    return replaying.load(replay_path, feature_names, features_version)


def analytic_options(feature_names: Sequence[str]) -> analytic.AnalyticOptions:
    """Terms of the analytic prior: the times that the features of `felix.features` hold.

    Each is the whole program's, in every row, so the largest row's is taken.

    Raises:
        CheckpointError: the features lack one of them.
    """
    for name in ANALYTIC_TIMES:
        feature_columns.index_of(feature_names, name)
    terms = tuple(
        analytic.Term(name.removeprefix("analytic.").removesuffix("_us"), (name,), reduce="max")
        for name in ANALYTIC_TIMES
    )
    return analytic.AnalyticOptions(terms, overhead_us=0.5)
