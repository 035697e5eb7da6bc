"""Cost models for Felix: data collection, training, evaluation, fine-tuning, checkpoints.

Data flows one way: `models` and `data`, then `registry` (which model for a target), `collect` and
`training`, then `online` (learning during a run) and `cli`. `pretrained/` has the models that
ship, by device.

`felix` starts from `load_for(target, feature_names, features_version)`: a torch module
`model(rows [B, R, F], mask [B, R]) -> [B]` that predicts ln(latency_us), and a `ModelInfo` that
says where it came from. Importing the package loads neither torch nor TVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

#: Public name -> module that defines it.
_LAZY = {
    "FineTuner": "costmodel.online.finetune",
    "ModelInfo": "costmodel.registry",
    "load_for": "costmodel.registry",
    "pretrained": "costmodel.registry",
}

if TYPE_CHECKING:
    from costmodel.online.finetune import FineTuner
    from costmodel.registry import ModelInfo, load_for, pretrained

__all__ = ["FineTuner", "ModelInfo", "load_for", "pretrained"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'costmodel' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
