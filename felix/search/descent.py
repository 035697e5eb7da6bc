"""Batched gradient descent of many seeds over all sketches of a task at once.

Notation
    k       entries: one (sketch, structure) each, with its own formulas
    B       seeds of an entry (the same for all; shorter ones repeat)
    x       coordinates [B, sum of n_free over entries] (`coordinates.Space`)
    T       temperature of the smooth formulas, hot to cold in geometric steps

All entries are merged into one program, so a step costs one forward and one reverse pass
whatever the number of sketches, and the model sees one batch of B k programs.

*Objective* of a seed: the predicted ln(latency) + weight * sum relu(s(g))^2, where s = asinh
tames constraints that are not logarithms. Both terms are in nats, so a weight means something:
at equilibrium a constraint is exceeded by slope / (2 weight). The weight belongs to the seed
and entry; it grows while the point is illegal and shrinks while it is legal. The original
rescales the penalty's gradient to 5 times the cost's, however small the violation, so a seed at
a boundary oscillates, and it needs two reverse passes a step. On 24 synthetic
problems it ended 0.10 nats above the best found, against 0.03 for the rule here.

*Bounds* are kept by projection, not by penalty: a tile size below 1 has no meaning, and all
formulas stay in their domain. Adam's moments belong to one call: new seeds start fresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from felix import events
from felix.autodiff import program as autodiff_program
from felix.autodiff import smoothing, torch_function, torch_threads
from felix.search import interface, scoring
from felix.sketch import coordinates

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DescentOptions:
    """How seeds move."""

    #: Adam steps. The paper takes 200; polishing follows here, and a descent costs in proportion.
    #: After four rounds 32 and more find equally low predictions, 25 and none higher ones
    #: (`python benchmarks/descent_steps.py`)
    steps: int = 32
    #: step sizes at the start and the end, in nats; cosine in between
    learning_rate: float = 0.2
    final_learning_rate: float = 0.02
    #: temperatures at the start and the end; geometric in between
    hot: float = 0.5
    cold: float = 0.05
    kernel: str = smoothing.DEFAULT_KERNEL
    #: penalty weight at the start, its growth a step while illegal, its decay while legal
    penalty: float = 2.0
    penalty_growth: float = 1.1
    penalty_decay: float = 0.98
    #: torch threads while descending. The tensors are small, and threads that wait for each other
    #: on cores busy with building and measuring made a descent 20 times slower
    threads: int = 1
    #: every how many steps the points are recorded; the start and the end always are
    record_every: int = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """Seeds of one sketch under one structure."""

    sketch_index: int
    structure: coordinates.Structure
    #: legal decisions to start from, [n_seeds, n_variables]
    starts: interface.Decisions


@dataclass(frozen=True, slots=True)
class Visited:
    """Where the seeds of an entry went."""

    entry: Entry
    #: relaxed values [n_points, n_variables], all recorded steps of all seeds
    values: Array
    #: predicted ln(latency_us) at the relaxed points [n_points]
    predicted: Array


class MergedProgram:
    """The merged formulas of several entries; depends on which, not on their seeds."""

    def __init__(
        self, keys: Sequence[tuple[int, coordinates.Structure]], scorer: scoring.Scorer
    ) -> None:
        compiled = [scorer.of_structure(*key) for key in keys]
        self.n_rows = max(v.n_rows for v in compiled)
        self.n_features = scorer.sketches[keys[0][0]].formulas.n_features
        width = self.n_rows * self.n_features
        both: list[autodiff_program.Program] = []
        features: list[list[int | None]] = []
        constraint_entries: list[int] = []
        for number, one in enumerate(compiled):
            pair = [one.program, one.constraint_program]
            both.append(autodiff_program.Program.merge(pair, share_symbols=True))
            n_features = len(one.program.outputs)
            features.append([*range(n_features), *([None] * (width - n_features))])
            constraint_entries += [number] * len(one.constraint_program.outputs)
        everything = autodiff_program.Program.merge(both)
        # all features first (padded to the same rows), then all constraints
        order: list[int | None] = []
        tail: list[int | None] = []
        first = 0
        for one, columns, program in zip(compiled, features, both, strict=True):
            order += [None if i is None else first + i for i in columns]
            tail += range(first + len(one.program.outputs), first + len(program.outputs))
            first += len(program.outputs)
        self.program = autodiff_program.Program.merge([everything], outputs=[[*order, *tail]])
        self.n_entries = len(keys)
        self.n_feature_outputs = len(order)
        self.space = coordinates.Space.concatenate(
            [coordinates.Space.of(scorer.sketches[index].variables) for index, _ in keys]
        )
        #: [n_constraints, k]: 1 where a constraint is of an entry; sums constraints by entry
        self.constraint_to_entry = torch.zeros(len(tail), self.n_entries, dtype=torch.float64)
        rows, columns_of = torch.arange(len(tail)), torch.tensor(constraint_entries).long()
        self.constraint_to_entry[rows, columns_of] = 1.0


class Descent:
    """Runs descents; caches the merged programs of the latest sets of entries."""

    #: merged programs in the cache; each is a few megabytes
    MAX_MERGED = 4

    def __init__(self, scorer: scoring.Scorer, options: DescentOptions) -> None:
        self.scorer = scorer
        self.options = options
        #: how the last run went
        self.steps: list[events.DescentStep] = []
        self._merged: dict[tuple[tuple[int, coordinates.Structure], ...], MergedProgram] = {}

    def run(self, entries: Sequence[Entry]) -> list[Visited]:
        """Descend from the starts of all entries; returns where they went, one an entry."""
        self.steps = []
        entries = [entry for entry in entries if len(entry.starts)]
        if not entries:
            return []
        merged = self._merge(tuple((e.sketch_index, e.structure) for e in entries))
        n_seeds = max(len(e.starts) for e in entries)
        padded = [e.starts[np.arange(n_seeds) % len(e.starts)] for e in entries]
        mask = _mask(entries, merged, self.scorer)
        with torch_threads.limit(self.options.threads):
            points, costs = self._descend(merged, np.concatenate(padded, axis=1), mask)
        result, column = [], 0
        for number, entry in enumerate(entries):
            width = entry.starts.shape[1]
            seeds = slice(0, len(entry.starts))
            values = points[:, seeds, column : column + width].reshape(-1, width)
            result.append(Visited(entry, values, costs[:, seeds, number].reshape(-1)))
            column += width
        return result

    def _merge(self, keys: tuple[tuple[int, coordinates.Structure], ...]) -> MergedProgram:
        if keys not in self._merged:
            while len(self._merged) >= self.MAX_MERGED:
                self._merged.pop(next(iter(self._merged)))
            self._merged[keys] = MergedProgram(keys, self.scorer)
        return self._merged[keys]

    def _descend(
        self, merged: MergedProgram, starts: interface.Decisions, mask: torch.Tensor
    ) -> tuple[Array, Array]:
        """Recorded values [n_records, B, n_variables] and predictions [n_records, B, k]."""
        options, where = self.options, merged.space
        x = where.project(where.encode(starts)).requires_grad_(True)
        adam = Adam(x, where.trainable)
        weight = torch.full((len(starts), merged.n_entries), options.penalty, dtype=torch.float64)
        points, costs = [], []
        self.steps = []
        for step in range(options.steps + 1):
            progress = step / max(1, options.steps)
            temperature = options.hot * (options.cold / options.hot) ** progress
            values = where.decode(x)
            outputs = torch_function.smooth(
                merged.program, values, temperature, kernel=options.kernel
            )
            cost, excess = self._terms(merged, outputs, mask)
            if step % options.record_every == 0 or step == options.steps:
                points.append(values.detach().numpy().copy())
                costs.append(cost.detach().numpy().copy())
                self.steps.append(_describe(step, temperature, cost.detach(), excess.detach()))
            if step == options.steps:
                break
            objective_value = (cost + weight * excess).sum()
            (gradient,) = torch.autograd.grad(objective_value, x)
            with torch.no_grad():
                rate = _cosine(options.learning_rate, options.final_learning_rate, progress)
                x.copy_(where.project(adam.step(gradient, rate)))
                illegal = excess > 1e-4
                factor = torch.where(illegal, options.penalty_growth, options.penalty_decay)
                weight = torch.clamp(weight * factor, 1.0, 1e4)
        return np.stack(points), np.stack(costs)

    def _terms(
        self, merged: MergedProgram, outputs: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Predicted ln(latency) and squared excess of constraints, each [B, k]."""
        batch = len(outputs)
        rows = outputs[:, : merged.n_feature_outputs].reshape(-1, merged.n_rows, merged.n_features)
        rows = rows.to(scoring.dtype_of(self.scorer.model))
        spread = mask.to(rows.dtype).repeat(batch, 1)
        cost = self.scorer.model(rows, spread).double().reshape(batch, merged.n_entries)
        self.scorer.n_predictions += batch * merged.n_entries
        residuals = torch.asinh(outputs[:, merged.n_feature_outputs :])
        return cost, torch.square(torch.relu(residuals)) @ merged.constraint_to_entry


class Adam:
    """Adam over one tensor, in place of torch.optim's per-parameter bookkeeping.

    A gradient that is not finite counts as 0 for that coordinate, so that one bad seed does not
    poison its moments.
    """

    def __init__(self, x: torch.Tensor, trainable: torch.Tensor) -> None:
        self.x = x
        self.trainable = trainable
        self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)
        self.steps = 0

    def step(
        self, gradient: torch.Tensor, rate: float, beta1: float = 0.9, beta2: float = 0.99
    ) -> torch.Tensor:
        """The point after one step; does not change x."""
        gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0) * self.trainable
        self.steps += 1
        self.first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        mean = self.first / (1 - beta1**self.steps)
        size = torch.sqrt(self.second / (1 - beta2**self.steps))
        return self.x.detach() - rate * mean / (size + 1e-8)


def _describe(
    step: int, temperature: float, cost: torch.Tensor, excess: torch.Tensor
) -> events.DescentStep:
    return events.DescentStep(
        step=step,
        temperature=temperature,
        loss=float(cost.min()),
        mean_loss=float(cost.mean()),
        penalty=float(excess.mean()),
        legal_share=float((excess <= 1e-4).double().mean()),
    )


def _cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * 0.5 * (1.0 + float(np.cos(np.pi * progress)))


def _mask(entries: Sequence[Entry], merged: MergedProgram, scorer: scoring.Scorer) -> torch.Tensor:
    """[k, n_rows]: which rows exist under each entry's structure (they do for all its seeds)."""
    mask = torch.zeros(len(entries), merged.n_rows, dtype=torch.float64)
    for number, entry in enumerate(entries):
        exact = scorer.features(
            entry.sketch_index, entry.structure, entry.starts.astype(np.float64)
        )
        present = (exact != 0).any(axis=(0, 2))
        mask[number, : len(present)] = torch.from_numpy(present.astype(np.float64))
    return mask
