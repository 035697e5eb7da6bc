"""Which cost model to use for a target: a shipped checkpoint, else the analytic prior.

Checkpoints live under `costmodel/pretrained/<device>/model.safetensors`, with a model card
beside. `<device>` is "llvm" for every CPU (fine-tuning calibrates the machine) and
"cuda-<arch>" for GPUs, whose schedules do not carry over. Reads `checkpoint`, `felix.target`;
feeds `felix.tune`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel import analytic, checkpoint
from costmodel import replay as replaying
from felix import errors

PRETRAINED = Path(__file__).parent / "pretrained"
FILE_NAME = "model.safetensors"


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


def device_key(target: Any) -> str:
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


def pretrained(target: Any, root: Path | None = None) -> Path | None:
    """The shipped checkpoint for a target, None where there is none."""
    path = (root or PRETRAINED) / device_key(target) / FILE_NAME
    return path if path.is_file() else None


def load_for(
    target: Any,
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
    chosen = Path(path) if path is not None else pretrained(target, root)
    reason = f"no pretrained model for {device_key(target)}"
    if chosen is not None:
        try:
            model, metadata = checkpoint.load(chosen, feature_names, features_version)
            replay = _replay_beside(chosen, feature_names, features_version)
            return model, ModelInfo("checkpoint", f"cost model {chosen}", chosen, metadata, replay)
        except errors.CheckpointError as error:
            if path is not None:
                raise
            reason = str(error)
    model = analytic.corrected(feature_names, analytic_options(target, feature_names), seed=seed)
    model.eval()
    return model, ModelInfo("analytic", f"analytic cost model ({reason})")


def _replay_beside(
    path: Path, feature_names: Sequence[str], features_version: int
) -> replaying.Replay | None:
    beside = path.with_name(replaying.FILE_NAME)
    if not beside.is_file():
        return None
    return replaying.load(beside, feature_names, features_version)


def analytic_options(target: Any, feature_names: Sequence[str]) -> analytic.AnalyticOptions:
    """Terms of the analytic prior from the features there are and the target's hardware.

    Raises:
        CheckpointError: `float_ops`, `trip_count` or the `buf{i}` features are missing.
    """
    from felix import target as felix_target

    hardware = felix_target.hardware(target)
    return terms_of(
        feature_names,
        flops_per_us=hardware.peak_fp32_gflops * 1e3,
        dram_bytes_per_us=hardware.dram_bandwidth_gbs * 1e3,
        cache_bytes_per_us=hardware.cores * hardware.clock_ghz * 1e3 * 64.0,
        steps_per_us=hardware.cores * hardware.clock_ghz * 1e3 * max(hardware.warp_size, 1),
        is_gpu=hardware.is_gpu,
    )


def terms_of(
    feature_names: Sequence[str],
    *,
    flops_per_us: float,
    dram_bytes_per_us: float,
    cache_bytes_per_us: float,
    steps_per_us: float,
    is_gpu: bool,
) -> analytic.AnalyticOptions:
    """Terms over the features whose names and meaning are fixed.

    compute: float_ops over the peak; memory: distinct bytes over DRAM bandwidth; cache: all
    accessed bytes over one cache line a cycle and core; steps: one store iteration a cycle and
    core (or GPU lane).
    """
    slots = [n.removesuffix(".bytes") for n in feature_names if _is_slot_bytes(n)]
    if not slots:
        raise errors.CheckpointError("the features do not have 'buf0.bytes'")
    distinct = tuple(f"{slot}.unique_bytes" for slot in slots)
    accessed = tuple(f"{slot}.bytes" for slot in slots)
    rates = (flops_per_us, dram_bytes_per_us, cache_bytes_per_us, steps_per_us)
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise errors.CheckpointError("the target's rates are not positive numbers")
    return analytic.AnalyticOptions(
        terms=(
            analytic.Term("compute", ("float_ops",), flops_per_us),
            analytic.Term("memory", distinct, dram_bytes_per_us),
            analytic.Term("cache", accessed, cache_bytes_per_us),
            analytic.Term("steps", ("trip_count",), steps_per_us),
        ),
        overhead_us=3.0 if is_gpu else 1.0,
    )


def _is_slot_bytes(name: str) -> bool:
    return name.startswith("buf") and name.endswith(".bytes") and name[3:-6].isdigit()
