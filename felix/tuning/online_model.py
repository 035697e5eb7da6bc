"""The cost models during a run: loaded, copied for the searches, corrected by measurements.

There is one for each kind of features, and each is corrected by the measurements of its own kind.
Searches get copies whose weights never change, so a search and training may not disturb each
other. Every call of a model, copy or original, first lets waiting kernels be timed (`pause`).

Notation: rows [N, R, F] exact features of N candidates, mask [N, R], 1 for rows that exist.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from felix import errors
from felix.features.kind import FeatureKind
from felix.search import base, cost_model, interface, scoring

if TYPE_CHECKING:
    import tvm


@dataclasses.dataclass(frozen=True, slots=True)
class _Example:
    """A measured candidate of a task; `search` has its formulas."""

    search: base.BaseSearch
    task_index: int
    candidate: interface.Candidate
    latency_us: float

    @property
    def kind(self) -> FeatureKind:
        """Which table its features are of."""
        return self.search.scorer.kind_of(self.candidate.sketch_index)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The model of one kind of features, and what corrects it; None if it does not learn."""

    module: nn.Module
    online: cost_model.OnlineModel | None


class _Pause:
    """Lets waiting kernels be timed before a model is called; nothing in another process."""

    def __init__(self, pause: Callable[[], None] | None) -> None:
        self._pause = pause

    def __call__(self, *_: object) -> None:
        if self._pause is not None:
            self._pause()

    def __deepcopy__(self, _: object) -> _Pause:
        return self

    def __reduce__(self) -> tuple[type[_Pause], tuple[None]]:
        return _Pause, (None,)


class Learner:
    """Owns the cost models of a run, and the measurements that they have still to learn."""

    def __init__(
        self,
        model: cost_model.ModelLike,
        target: tvm.target.Target,
        seed: int,
        pause: Callable[[], None],
        options: cost_model.LearningOptions | None = None,
        learn: bool = True,
    ) -> None:
        """Load the models; `options` say how they learn, a correction by default.

        Raises:
            CheckpointError: the given checkpoint does not fit the features.
        """
        self._parts: dict[FeatureKind, _Part] = {}
        for kind in cost_model.kinds(target):
            loaded = cost_model.load(model, target, seed, kind)
            loaded.module.register_forward_pre_hook(_Pause(pause))
            online = cost_model.online(loaded, options, kind) if learn else None
            self._parts[kind] = _Part(loaded.module, online)
            if kind is FeatureKind.TRACE:
                self.message = loaded.message
        self._examples: list[_Example] = []
        self._n_failed = 0

    def models_for(self, task_index: int) -> dict[FeatureKind, nn.Module]:
        """Copies that predict ln(latency_us) for one task and stay as they are."""
        copies = {}
        for kind, part in self._parts.items():
            live = part.module if part.online is None else part.online.for_task(task_index)
            copies[kind] = copy.deepcopy(live).eval().requires_grad_(False)
        return copies

    @property
    def n_unlearnt(self) -> int:
        """Measurements that the next `learn` takes, failed ones included."""
        return len(self._examples) + self._n_failed

    def remember(
        self,
        search: base.BaseSearch,
        task_index: int,
        candidate: interface.Candidate,
        latency_us: float | None,
    ) -> None:
        """Take in a measurement, to be learnt with the next `learn`; failed ones teach nothing."""
        if latency_us is None:
            self._n_failed += 1
        else:
            self._examples.append(_Example(search, task_index, candidate, latency_us))

    def learn(self) -> list[cost_model.LearningReport]:
        """Learn what is new on top of all before; what each model made of it."""
        outcomes = []
        for kind, part in self._parts.items():
            examples = [example for example in self._examples if example.kind is kind]
            if part.online is not None and examples:
                outcomes.append(self._update(part.online, examples))
        self._examples, self._n_failed = [], 0
        return outcomes

    @staticmethod
    def _update(
        online: cost_model.OnlineModel, examples: Sequence[_Example]
    ) -> cost_model.LearningReport:
        features = [example.search.features_of(example.candidate) for example in examples]
        height = max(len(rows) for rows in features)
        rows = np.stack([np.pad(f, ((0, height - len(f)), (0, 0))) for f in features])
        mask = scoring.row_mask(torch.from_numpy(rows)).numpy()
        ln_latency = np.log([example.latency_us for example in examples])
        tasks = np.asarray([example.task_index for example in examples])
        return online.update(rows, mask, ln_latency, tasks)

    def state_dict(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """JSON-able values, and tensors named "group/name"; the traces' have no prefix."""
        plain: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for kind, prefix, online in self._learning():
            state = online.state_dict()
            for group in _GROUPS:
                for name, tensor in (state.pop(group, None) or {}).items():
                    tensors[f"{prefix}{group}/{name}"] = tensor
            values = json.loads(json.dumps(state))
            plain |= {kind.value: values} if prefix else values
        return plain, tensors

    def load_state_dict(self, plain: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Go on from `state_dict`.

        Raises:
            CheckpointError: the state is of another model.
        """
        templates = FeatureKind.TEMPLATE.value
        of_traces = {name: value for name, value in plain.items() if name != templates}
        for kind, prefix, online in self._learning():
            if prefix and kind.value not in plain:
                continue  # an older version's, which had no templates
            values = plain[kind.value] if prefix else of_traces
            if not values:
                raise errors.CheckpointError("the session has no state of the cost model")
            groups = {group: _within(f"{prefix}{group}/", tensors) for group in _GROUPS}
            online.load_state_dict({**values, **groups, "records": groups["records"] or None})

    def _learning(self) -> Iterator[tuple[FeatureKind, str, cost_model.OnlineModel]]:
        """Each kind whose model learns, and with what the names of its stored tensors begin."""
        for kind, part in self._parts.items():
            if part.online is not None:
                yield kind, "" if kind is FeatureKind.TRACE else f"{kind}/", part.online


#: Parts of a model's state that hold tensors.
_GROUPS = ("model", "anchor", "records")


def _within(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
