"""Checkpoints of cost models: weights, normaliser, and what they were made from and for.

One file in safetensors layout; its metadata is JSON: format, model kind and shape, feature
version and names, device, training data digest, scores, date, command. Loading never unpickles.
A checkpoint of another feature version or other names is refused with one line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from costmodel.models import analytic, segment_mlp
from felix import errors, tensorfile

FORMAT = 1

Predictor = segment_mlp.SegmentSumMLP | analytic.AnalyticModel | analytic.Corrected
_KINDS: dict[str, type[Predictor]] = {
    segment_mlp.SegmentSumMLP.kind: segment_mlp.SegmentSumMLP,
    analytic.AnalyticModel.kind: analytic.AnalyticModel,
    analytic.Corrected.kind: analytic.Corrected,
}


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything about a checkpoint but its weights.

    Attributes:
        features_version: `FEATURES_VERSION` of the rows it was trained on.
        feature_names: their names, in column order.
        device: device key, as `registry.device_key` ("llvm", "cuda-sm_90").
        device_name: what was measured on, in words.
        data: digest and size of the training data.
        scores: held-out scores, as `evaluate` writes them, without those of each workload.
        date: UTC date of training, ISO 8601.
        command: the command that made it.
    """

    features_version: int
    feature_names: tuple[str, ...]
    device: str
    device_name: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    command: str = ""


def save(path: str | Path, model: Predictor, metadata: Metadata) -> None:
    """Write `model` to `path`, atomically."""
    header = {
        "format": FORMAT,
        "kind": model.kind,
        "model": model.describe(),
        **dataclasses.asdict(metadata),
    }
    state = dict(model.state_dict())
    tensorfile.write(Path(path), state, {"felix": json.dumps(header)})


def load(
    path: str | Path,
    feature_names: Sequence[str] | None = None,
    features_version: int | None = None,
) -> tuple[Predictor, Metadata]:
    """The model of `path`, in eval mode; refused unless it fits the features.

    Args:
        path: file written by `save`.
        feature_names: names of the rows it will be given; None to skip the check.
        features_version: version of the rows it will be given; None to skip the check.

    Raises:
        CheckpointError: unreadable, of another version, or made for other features.
    """
    path = Path(path)
    state, texts = tensorfile.read(path)
    try:
        header = json.loads(texts["felix"])
        metadata = _metadata(header)
        if header["format"] != FORMAT:
            raise errors.CheckpointError(f"{path} has format {header['format']}, not {FORMAT}")
        made_for = (metadata.features_version, metadata.feature_names)
        check_features(str(path), made_for, feature_names, features_version)
        model = _KINDS[header["kind"]].from_description(metadata.feature_names, header["model"])
        model.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise errors.CheckpointError(f"{path} is not a cost-model checkpoint") from error
    model.eval()
    return model, metadata


def _metadata(header: dict[str, Any]) -> Metadata:
    fields = {f.name: header[f.name] for f in dataclasses.fields(Metadata)}
    return Metadata(**{**fields, "feature_names": tuple(fields["feature_names"])})


def check_features(
    label: str,
    made_for: tuple[int, tuple[str, ...]],
    feature_names: Sequence[str] | None,
    features_version: int | None,
) -> None:
    """Raise CheckpointError unless a file was made for exactly these features.

    Args:
        label: names the file in the message.
        made_for: version and names of its features.
        feature_names: of the rows it will be given; None to skip the check.
        features_version: of those rows; None to skip the check.
    """
    version, names = made_for
    if features_version is not None and version != features_version:
        raise errors.CheckpointError(
            f"{label} was trained on features version {version}, this is "
            f"version {features_version}: train again with `python -m costmodel train`"
        )
    if feature_names is None or names == tuple(feature_names):
        return
    expected = tuple(feature_names)
    if len(names) != len(expected):
        difference = f"{len(names)} features, these are {len(expected)}"
    else:
        i = next(i for i, (a, b) in enumerate(zip(names, expected, strict=True)) if a != b)
        difference = f"feature {i} named {names[i]!r}, here it is {expected[i]!r}"
    raise errors.CheckpointError(f"{label} was trained on other features: it has {difference}")


def parameter_count(model: nn.Module) -> int:
    """Number of trainable scalars."""
    return sum(p.numel() for p in model.parameters())
