"""Felix inside TVM's own tuner.

In: TVM's tuning context.
Out: candidates, scores.
From: TVM's tuner, `database`, `server`.

    from tvm.s_tir import meta_schedule as ms
    from felix.metaschedule import GradientSearch, MLPCostModel

    model = MLPCostModel()
    database = ms.tune_tir(mod, target, work_dir, 64, num_trials_per_iter=16,
                           strategy=GradientSearch(model), cost_model=model)

Design spaces, building, running and the database stay TVM's, so all sketches here are of traces;
kernels that templates generate are left to `felix.tune`. `GradientSearch` proposes candidates,
`MLPCostModel` serves any strategy, TVM's evolutionary search too. Each works without the other;
given the same model object, they learn once. An error raised in a plug-in ends `ms.tune_tir` and
arrives there with its own type. Importing this package loads neither TVM nor torch; the names do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {
    "GradientSearch": "felix.metaschedule.search_strategy",
    "MLPCostModel": "felix.metaschedule.cost_model",
}

if TYPE_CHECKING:
    from felix.metaschedule.cost_model import MLPCostModel
    from felix.metaschedule.search_strategy import GradientSearch

__all__ = ["GradientSearch", "MLPCostModel"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'felix.metaschedule' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
