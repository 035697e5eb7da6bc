"""Which cost model to use for a target: a shipped checkpoint, else the analytic prior.

Checkpoints live under `costmodel/pretrained/<device>/model.safetensors`, with a model card
beside. `<device>` is "llvm" for every CPU (fine-tuning calibrates the machine) and
"cuda-<arch>" for GPUs, whose schedules do not carry over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.data import replay as replaying
from costmodel.models import analytic, checkpoint, feature_columns
from felix import errors

if TYPE_CHECKING:
    from tvm.target import Target

PRETRAINED = Path(__file__).parent / "pretrained"
FILE_NAME = "model.safetensors"
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


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Where a model came from.

    Attributes:
        source: "checkpoint" or "analytic".
        message: one line for the person who tunes.
        path: the checkpoint, None for the analytic prior.
        metadata: of the checkpoint, None for the analytic prior.
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


def pretrained(target: Target | str, root: Path | None = None) -> Path | None:
    """The shipped checkpoint for a target, None where there is none."""
    path = (root or PRETRAINED) / device_key(target) / FILE_NAME
    return path if path.is_file() else None


def load_for(
    target: Target | str,
    feature_names: Sequence[str],
    features_version: int,
    path: str | Path | None = None,
    root: Path | None = None,
    seed: int = 0,
) -> tuple[checkpoint.Predictor, ModelInfo]:
    """The model a tuning run starts from.

    Args:
        target: the TVM target that is tuned for.
        feature_names: names of the rows, in column order.
        features_version: `FEATURES_VERSION` of the rows.
        path: a checkpoint to use instead of the shipped one.
        root: folder of shipped checkpoints.
        seed: of the analytic prior's correction network.

    Returns:
        A module `model(rows [B, R, F], mask [B, R]) -> ln(latency_us) [B]` and its origin.

    Raises:
        CheckpointError: the checkpoint given by `path` does not fit. A shipped one that does
            not fit is passed over; the message says so.
    """
    file = Path(path) if path is not None else pretrained(target, root)
    reason = f"no pretrained model for {device_key(target)}"
    if file is not None:
        try:
            model, metadata = checkpoint.load(file, feature_names, features_version)
            replay = _replay_beside(file, feature_names, features_version)
            name = file if path is not None else f"{file.parent.name} (shipped)"
            return model, ModelInfo("checkpoint", f"cost model {name}", file, metadata, replay)
        except errors.CheckpointError as error:
            if path is not None:
                raise
            reason = str(error)
    model = analytic.corrected(feature_names, analytic_options(feature_names), seed=seed)
    model.eval()
    return model, ModelInfo("analytic", f"analytic cost model ({reason})")


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
