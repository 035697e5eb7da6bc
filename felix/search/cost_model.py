"""The one place where Felix reaches the cost models: what it asks of them, and the defaults.

A cost model is a torch module `model(rows [B, R, F], mask [B, R]) -> ln(latency_us) [B]`; what
lets it follow measurements is an `OnlineModel`. Both come from the package `costmodel`, which is
loaded when a function here is called and by nothing else in `felix`.

Each kind of features has a model of its own, with its own correction (`load`, `kinds`): sketches
of traces and of templates have different features. The model that a caller gives is for traces.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from felix import errors
from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    import tvm
    from torch import nn

    from costmodel.online.finetune import FineTuneOptions
    from costmodel.online.gaussian_process import CorrectionOptions
    from costmodel.registry import ModelInfo

#: A cost model as the caller gives it: a checkpoint file, a module, or None for the shipped one.
ModelLike: TypeAlias = "str | pathlib.Path | nn.Module | None"
#: How measurements change a model: by a correction of its predictions, or by training its weights.
LearningOptions: TypeAlias = "CorrectionOptions | FineTuneOptions"


class LearningReport(Protocol):
    """What learning did: records used, loss before and after, whether the change was taken."""

    @property
    def records(self) -> int: ...
    @property
    def before(self) -> float: ...
    @property
    def after(self) -> float: ...
    @property
    def accepted(self) -> bool: ...


class OnlineModel(Protocol):
    """A cost model that follows the measurements of a run.

    Notation: N records, rows [N, R, F], mask [N, R], ln_latency [N] of us, task_ids [N].
    """

    def __len__(self) -> int:
        """Records measured so far."""
        ...

    def for_task(self, task_id: int, /) -> nn.Module:
        """The model for one task; it changes with the next update."""
        ...

    def update(
        self,
        rows: NDArray[np.floating[Any]],
        mask: NDArray[np.generic],
        ln_latency: NDArray[np.floating[Any]],
        task_ids: NDArray[np.integer[Any]],
        /,
    ) -> LearningReport:
        """Learn new records on top of all before."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go on from `state_dict`."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A cost model and where it came from, in words; `info` is None for a module of the caller."""

    module: nn.Module
    message: str
    info: ModelInfo | None = None


def kinds(target: tvm.target.Target) -> tuple[FeatureKind, ...]:
    """Kinds of features that sketches for a target may have: templates are for GPUs."""
    is_gpu = target.kind.name == "cuda"
    return (FeatureKind.TRACE, FeatureKind.TEMPLATE) if is_gpu else (FeatureKind.TRACE,)


def load(
    model: ModelLike, target: tvm.target.Target, seed: int, kind: FeatureKind = FeatureKind.TRACE
) -> Loaded:
    """The model that a run on a target starts from, for features of a kind.

    Args:
        model: the caller's, for traces; templates have the shipped one whatever it is.
        seed: of a new network.

    Raises:
        CheckpointError: the given checkpoint does not fit the features.
    """
    from torch import nn

    from costmodel import registry
    from felix.features import spec
    from felix.templates import spec as template_spec

    if kind is FeatureKind.TEMPLATE:
        module, info = registry.load_for(
            target, template_spec.NAMES, template_spec.VERSION, seed=seed, kind=kind
        )
        return Loaded(module, info.message, info)
    if isinstance(model, nn.Module):
        return Loaded(model, f"given model {type(model).__name__}")
    module, info = registry.load_for(target, spec.NAMES, spec.FEATURES_VERSION, model, seed=seed)
    return Loaded(module, info.message, info)


def online(
    loaded: Loaded, options: LearningOptions | None = None, kind: FeatureKind = FeatureKind.TRACE
) -> OnlineModel | None:
    """What lets a model learn: a correction by default, else fine-tuning.

    Where weights are to be trained and it has none, a template's is corrected all the same, and
    a trace's learns nothing: None.
    """
    from costmodel.online import finetune, gaussian_process

    module = loaded.module
    if not isinstance(options, finetune.FineTuneOptions):
        return gaussian_process.Corrector(module, options)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return gaussian_process.Corrector(module) if kind is FeatureKind.TEMPLATE else None
    replay = None if loaded.info is None else loaded.info.replay
    return finetune.FineTuner(module, replay, options)


def fine_tuning(seed: int) -> FineTuneOptions:
    """Options of `online` that train the weights."""
    from costmodel.online import finetune

    return finetune.FineTuneOptions(seed=seed)


def save(
    path: str | pathlib.Path, module: nn.Module, device: str, data: Mapping[str, Any], date: str
) -> None:
    """Write a checkpoint that `load` takes; `data` says what the model was trained on.

    Raises:
        CheckpointError: the module is no cost model of Felix, or the file cannot be written.
    """
    from costmodel.models import checkpoint
    from felix.features import spec

    if not isinstance(module, checkpoint.Predictor):
        raise errors.CheckpointError(f"a {type(module).__name__} cannot be saved")
    metadata = checkpoint.Metadata(
        features_version=spec.FEATURES_VERSION,
        feature_names=spec.NAMES,
        device=device,
        data=dict(data),
        date=date,
    )
    checkpoint.save(path, module, metadata)


def check(path: str | pathlib.Path) -> None:
    """See that a checkpoint can be loaded.

    Raises:
        CheckpointError: it cannot be read or does not fit the features.
    """
    from costmodel.models import checkpoint
    from felix.features import spec

    checkpoint.load(path, spec.NAMES, spec.FEATURES_VERSION)


def device_key(target: tvm.target.Target) -> str:
    """The kind of device that one model serves: "llvm", "cuda-sm_90"."""
    from costmodel import registry

    return registry.device_key(target)


def pretrained(target: tvm.target.Target) -> pathlib.Path | None:
    """The checkpoint shipped for a target; None where there is none."""
    from costmodel import registry

    return registry.pretrained(target)
