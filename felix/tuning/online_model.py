"""The cost model during a run: loaded, copied for the searches, corrected by measurements.

What is measured corrects the model's predictions (`costmodel.online.gaussian_process`),
or with fine-tuning options given, trains its weights (`costmodel.online.finetune`).

Searches get copies whose weights never change, so a search and training may not disturb each
other. Every call of a model, copy or original, first lets waiting kernels be timed (`pause`).

Notation: rows [N, R, F] exact features of N candidates, mask [N, R], 1 for rows that exist.
"""

from __future__ import annotations

import copy
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from costmodel import registry
from costmodel.online import finetune, gaussian_process
from felix import errors
from felix.search import interface, scoring
from felix.search.strategies import base
from felix.sketch import coordinates

if TYPE_CHECKING:
    import tvm

#: A cost model as the caller gives it: a checkpoint file, a module, or None for the shipped one.
ModelLike = str | pathlib.Path | nn.Module | None

#: Search of the task, index of the task, and what was measured of it.
Learnt = tuple[base.ModelSearch, int, interface.Suggestion, interface.Measured]


class Learner:
    """Owns the cost model of a run."""

    def __init__(
        self,
        model: ModelLike,
        target: tvm.target.Target,
        seed: int,
        pause: Callable[[], None],
        options: finetune.FineTuneOptions | gaussian_process.CorrectionOptions | None = None,
        learn: bool = True,
    ) -> None:
        """Load the model; `options` say how it learns, a correction by default.

        Raises:
            CheckpointError: the given checkpoint does not fit the features.
        """
        from felix.features import spec

        replay = None
        if isinstance(model, nn.Module):
            module, self.message = model, f"given model {type(model).__name__}"
        else:
            module, info = registry.load_for(
                target, spec.NAMES, spec.FEATURES_VERSION, model, seed=seed
            )
            self.message, replay = info.message, info.replay
        module.register_forward_pre_hook(lambda *_: pause())
        self._module = module
        self._tuner: finetune.FineTuner | gaussian_process.Corrector | None = None
        if not learn:
            return
        if not isinstance(options, finetune.FineTuneOptions):
            self._tuner = gaussian_process.Corrector(module, options)
        elif any(p.requires_grad for p in module.parameters()):
            self._tuner = finetune.FineTuner(module, replay, options)

    def copy_for(self, task_index: int) -> nn.Module:
        """A copy that predicts ln(latency_us) for one task and stays as it is."""
        live = self._module if self._tuner is None else self._tuner.for_task(task_index)
        return copy.deepcopy(live).eval().requires_grad_(False)

    def learn(self, results: Sequence[Learnt]) -> finetune.Outcome | None:
        """Learn new results on top of all before; None if there is nothing to learn."""
        ran = [r for r in results if r[3].latency_us is not None]
        if self._tuner is None or not ran:
            return None
        features = [_features(search, suggestion) for search, _, suggestion, _ in ran]
        height = max(len(rows) for rows in features)
        rows = np.stack([np.pad(f, ((0, height - len(f)), (0, 0))) for f in features])
        mask = scoring.row_mask(torch.from_numpy(rows)).numpy()
        ln_latency = np.log([float(measured.latency_us or 0) for _, _, _, measured in ran])
        return self._tuner.update(rows, mask, ln_latency, np.asarray([r[1] for r in ran]))

    def state_dict(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """JSON-able values and tensors with flat names."""
        if self._tuner is None:
            return {}, {}
        state = self._tuner.state_dict()
        tensors = {}
        for group in ("model", "anchor", "records"):
            for name, tensor in (state.pop(group, None) or {}).items():
                tensors[f"{group}/{name}"] = tensor
        return json.loads(json.dumps(state)), tensors

    def load_state_dict(self, plain: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Go on from `state_dict`.

        Raises:
            CheckpointError: the state is of another model.
        """
        if self._tuner is None:
            return
        if not plain:
            raise errors.CheckpointError("the session has no state of the cost model")
        groups: dict[str, dict[str, torch.Tensor]] = {"model": {}, "anchor": {}, "records": {}}
        for name, tensor in tensors.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = tensor
        self._tuner.load_state_dict({**plain, **groups, "records": groups["records"] or None})


def _features(search: base.ModelSearch, suggestion: interface.Suggestion) -> NDArray[np.float32]:
    """Rows of one candidate [R, F], as the search ranked it."""
    index, decisions = suggestion.sketch_index, suggestion.decisions
    structure = coordinates.structure(search.sketches[index].variables, decisions)
    values = np.asarray([decisions], np.float64)
    rows = search.scorer.features(index, structure, values)[0]
    return np.asarray(rows, np.float32)
