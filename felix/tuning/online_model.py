"""The cost model during a run: loaded, copied for the searches, corrected by measurements.

Searches get copies whose weights never change, so a search and training may not disturb each
other. Every call of a model, copy or original, first lets waiting kernels be timed (`pause`).

Notation: rows [N, R, F] exact features of N candidates, mask [N, R], 1 for rows that exist.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from felix import errors
from felix.search import cost_model, interface, scoring
from felix.search.strategies import base
from felix.sketch import coordinates

if TYPE_CHECKING:
    import tvm


@dataclasses.dataclass(frozen=True, slots=True)
class _Example:
    """A measured candidate of a task; `search` has its formulas."""

    search: base.ModelSearch
    task_index: int
    suggestion: interface.Suggestion
    latency_us: float

    def features(self) -> NDArray[np.float32]:
        """Rows of the candidate [R, F], as the search ranked it."""
        index, decisions = self.suggestion.sketch_index, self.suggestion.decisions
        structure = coordinates.structure(self.search.sketches[index].variables, decisions)
        values = np.asarray([decisions], np.float64)
        rows = self.search.scorer.features(index, structure, values)[0]
        return np.asarray(rows, np.float32)


class Learner:
    """Owns the cost model of a run, and the measurements that it has still to learn."""

    def __init__(
        self,
        model: cost_model.ModelLike,
        target: tvm.target.Target,
        seed: int,
        pause: Callable[[], None],
        options: cost_model.LearningOptions | None = None,
        learn: bool = True,
    ) -> None:
        """Load the model; `options` say how it learns, a correction by default.

        Raises:
            CheckpointError: the given checkpoint does not fit the features.
        """
        loaded = cost_model.load(model, target, seed)
        self.message = loaded.message
        self._module = loaded.module
        self._module.register_forward_pre_hook(lambda *_: pause())
        self._online = cost_model.online(loaded, options) if learn else None
        self._examples: list[_Example] = []
        self._n_failed = 0

    def copy_for(self, task_index: int) -> nn.Module:
        """A copy that predicts ln(latency_us) for one task and stays as it is."""
        live = self._module if self._online is None else self._online.for_task(task_index)
        return copy.deepcopy(live).eval().requires_grad_(False)

    @property
    def n_unlearnt(self) -> int:
        """Measurements that the next `learn` takes, failed ones included."""
        return len(self._examples) + self._n_failed

    def remember(
        self,
        search: base.BaseSearch,
        task_index: int,
        suggestion: interface.Suggestion,
        measured: interface.Measured,
    ) -> None:
        """Take in a measurement, to be learnt with the next `learn`; failed ones teach nothing."""
        latency_us = measured.latency_us
        if latency_us is None or not isinstance(search, base.ModelSearch):
            self._n_failed += 1
        else:
            self._examples.append(_Example(search, task_index, suggestion, latency_us))

    def learn(self) -> cost_model.Outcome | None:
        """Learn what is new on top of all before; None if there is nothing to learn."""
        outcome = None
        if self._online is not None and self._examples:
            outcome = self._update(self._online, self._examples)
        self._examples, self._n_failed = [], 0
        return outcome

    @staticmethod
    def _update(
        online: cost_model.OnlineModel, examples: Sequence[_Example]
    ) -> cost_model.Outcome:
        features = [example.features() for example in examples]
        height = max(len(rows) for rows in features)
        rows = np.stack([np.pad(f, ((0, height - len(f)), (0, 0))) for f in features])
        mask = scoring.row_mask(torch.from_numpy(rows)).numpy()
        ln_latency = np.log([example.latency_us for example in examples])
        tasks = np.asarray([example.task_index for example in examples])
        return online.update(rows, mask, ln_latency, tasks)

    def state_dict(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """JSON-able values and tensors with flat names."""
        if self._online is None:
            return {}, {}
        state = self._online.state_dict()
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
        if self._online is None:
            return
        if not plain:
            raise errors.CheckpointError("the session has no state of the cost model")
        groups: dict[str, dict[str, torch.Tensor]] = {"model": {}, "anchor": {}, "records": {}}
        for name, tensor in tensors.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = tensor
        self._online.load_state_dict({**plain, **groups, "records": groups["records"] or None})
