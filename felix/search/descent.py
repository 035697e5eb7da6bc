"""Batched gradient descent of many seeds over all sketches of a task at once.

Notation
    k       entries: one (sketch, structure) each, with its own formulas
    B       seeds of an entry (the same for all; shorter ones repeat)
    x       coordinates [B, sum of n_free over entries] (`coordinates.Space`)
    T       temperature of the smooth formulas, hot to cold in geometric steps

All entries are merged into one program, so a step costs one forward and one reverse pass
whatever the number of sketches. A *block* is the entries of one kind of features (those of traces,
those of templates): their model sees one batch of B programs for each of them.

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
from felix.autodiff import torch_function, torch_threads
from felix.features.kind import FeatureKind
from felix.search import interface, scoring
from felix.space import coordinates

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DescentOptions:
    """How seeds move."""

    #: Adam steps. The paper takes 200; polishing goes before here and follows, and a descent costs
    #: in proportion
    steps: int = 10
    #: step sizes at the start and the end, in nats; cosine in between
    learning_rate: float = 0.1
    final_learning_rate: float = 0.02
    #: temperatures at the start and the end; geometric in between
    hot: float = 0.15
    cold: float = 0.05
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


@dataclass(frozen=True, slots=True)
class Block:
    """Entries of one kind of features, padded to the same rows, side by side in the outputs."""

    kind: FeatureKind
    #: numbers of the entries, ascending
    entries: tuple[int, ...]
    n_rows: int
    n_features: int
    #: where its features begin among the outputs of the merged program
    first_output: int

    @property
    def n_outputs(self) -> int:
        return len(self.entries) * self.n_rows * self.n_features

    def rows_of(self, outputs: torch.Tensor) -> torch.Tensor:
        """Feature rows [B * entries of the block, n_rows, n_features] of outputs [B, n]."""
        part = outputs[:, self.first_output : self.first_output + self.n_outputs]
        return part.reshape(-1, self.n_rows, self.n_features)


class MergedProgram:
    """The merged formulas of several entries; depends on which, not on their seeds.

    Outputs are the features of all blocks, one after another, then all constraints.

    Args:
        both: of each entry, the features and then the constraints as one program.
    """

    def __init__(
        self,
        keys: Sequence[tuple[int, coordinates.Structure]],
        scorer: scoring.Scorer,
        both: Sequence[autodiff_program.FormulaProgram],
    ) -> None:
        compiled = [scorer.of_structure(*key) for key in keys]
        self.blocks = _blocks(keys, compiled, scorer)
        starts = np.cumsum([0, *(len(program.outputs) for program in both)])
        features = _padded_features(self.blocks, compiled, starts.tolist())
        constraints: list[int | None] = []
        owners: list[int] = []
        for number, one in enumerate(compiled):
            constraints += range(starts[number] + len(one.program.outputs), starts[number + 1])
            owners += [number] * len(one.constraint_program.outputs)
        self.program = autodiff_program.FormulaProgram.merge(
            both, outputs=[*features, *constraints]
        )
        self.n_entries = len(keys)
        self.n_feature_outputs = len(features)
        self.space = coordinates.Space.concatenate(
            [coordinates.Space.of(scorer.sketches[index].variables) for index, _ in keys]
        )
        #: positions in the blocks' order of each entry
        self.entry_order = np.argsort([e for b in self.blocks for e in b.entries]).tolist()
        #: [n_constraints, k]: 1 where a constraint is of an entry; sums constraints by entry
        self.constraint_to_entry = torch.zeros(
            len(constraints), self.n_entries, dtype=torch.float64
        )
        self.constraint_to_entry[torch.arange(len(owners)), torch.tensor(owners).long()] = 1.0


def _blocks(
    keys: Sequence[tuple[int, coordinates.Structure]],
    compiled: Sequence[interface.StructureFormulas],
    scorer: scoring.Scorer,
) -> list[Block]:
    """One for each kind of features, in the order of their first entries."""
    entries: dict[FeatureKind, list[int]] = {}
    for number, (index, _) in enumerate(keys):
        entries.setdefault(scorer.kind_of(index), []).append(number)
    blocks: list[Block] = []
    first = 0
    for kind, numbers in entries.items():
        n_rows = max(compiled[number].n_rows for number in numbers)
        n_features = scorer.sketches[keys[numbers[0]][0]].formulas.n_features
        blocks.append(Block(kind, tuple(numbers), n_rows, n_features, first))
        first += blocks[-1].n_outputs
    return blocks


def _padded_features(
    blocks: Sequence[Block], compiled: Sequence[interface.StructureFormulas], starts: Sequence[int]
) -> list[int | None]:
    """Outputs of the merged pairs that are features, in the blocks' order; None stands for 0."""
    order: list[int | None] = []
    for block in blocks:
        for number in block.entries:
            n_outputs = len(compiled[number].program.outputs)
            order += range(starts[number], starts[number] + n_outputs)
            order += [None] * (block.n_rows * block.n_features - n_outputs)
    return order


class Adam:
    """Adam over one tensor, in place of torch.optim's per-parameter bookkeeping.

    A gradient that is not finite counts as 0 for that coordinate, so that one bad seed does not
    poison its moments.
    """

    #: shares of the moments that a step keeps
    BETAS = (0.9, 0.99)

    def __init__(self, x: torch.Tensor, trainable: torch.Tensor) -> None:
        self.x = x
        self.trainable = trainable
        self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)
        self.steps = 0

    def step(self, gradient: torch.Tensor, rate: float) -> torch.Tensor:
        """The point after one step; does not change x."""
        beta1, beta2 = self.BETAS
        gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0) * self.trainable
        self.steps += 1
        self.first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        mean = self.first / (1 - beta1**self.steps)
        self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scaled = mean / (torch.sqrt(self.second / (1 - beta2**self.steps)) + 1e-8)
        return self.x.detach() - rate * scaled


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
        #: features and constraints of each entry that was ever descended, as one program
        self._both: dict[tuple[int, coordinates.Structure], autodiff_program.FormulaProgram] = {}

    def run(self, entries: Sequence[Entry]) -> list[Visited]:
        """Descend from the starts of all entries; returns where they went, one an entry."""
        self.steps = []
        entries = [entry for entry in entries if len(entry.starts)]
        if not entries:
            return []
        merged = self._merge(tuple((e.sketch_index, e.structure) for e in entries))
        n_seeds = max(len(e.starts) for e in entries)
        padded = [e.starts[np.arange(n_seeds) % len(e.starts)] for e in entries]
        masks = [_mask(entries, block, self.scorer) for block in merged.blocks]
        with torch_threads.limit(self.options.threads):
            points, costs = self._descend(merged, np.concatenate(padded, axis=1), masks)
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
            both = [self._features_and_constraints(key) for key in keys]
            self._merged[keys] = MergedProgram(keys, self.scorer, both)
        return self._merged[keys]

    def _features_and_constraints(
        self, key: tuple[int, coordinates.Structure]
    ) -> autodiff_program.FormulaProgram:
        if key not in self._both:
            one = self.scorer.of_structure(*key)
            self._both[key] = autodiff_program.FormulaProgram.merge(
                [one.program, one.constraint_program], share_symbols=True
            )
        return self._both[key]

    def _descend(
        self, merged: MergedProgram, starts: interface.Decisions, masks: Sequence[torch.Tensor]
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
            outputs = torch_function.smooth(merged.program, values, temperature)
            cost, excess = self._terms(merged, outputs, masks)
            if step % options.record_every == 0 or step == options.steps:
                points.append(values.detach().numpy().copy())
                costs.append(cost.detach().numpy().copy())
                self.steps.append(_describe(step, temperature, cost.detach(), excess.detach()))
            if step == options.steps:
                break
            objective_value = (cost + weight * excess).sum()
            (gradient,) = torch.autograd.grad(objective_value, x)
            with torch.no_grad():
                first, last = options.learning_rate, options.final_learning_rate
                rate = last + (first - last) * 0.5 * (1.0 + float(np.cos(np.pi * progress)))
                x.copy_(where.project(adam.step(gradient, rate)))
                illegal = excess > 1e-4
                factor = torch.where(illegal, options.penalty_growth, options.penalty_decay)
                weight = torch.clamp(weight * factor, 1.0, 1e4)
        return np.stack(points), np.stack(costs)

    def _terms(
        self, merged: MergedProgram, outputs: torch.Tensor, masks: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Predicted ln(latency) and squared excess of constraints, each [B, k]."""
        batch = len(outputs)
        costs = []
        for block, mask in zip(merged.blocks, masks, strict=True):
            model = self.scorer.model_of(block.kind)
            rows = block.rows_of(outputs).to(scoring.dtype_of(model))
            predicted = model(rows, mask.to(rows.dtype).repeat(batch, 1))
            costs.append(predicted.double().reshape(batch, len(block.entries)))
        cost = costs[0] if len(costs) == 1 else torch.cat(costs, dim=1)[:, merged.entry_order]
        residuals = torch.asinh(outputs[:, merged.n_feature_outputs :])
        return cost, torch.square(torch.relu(residuals)) @ merged.constraint_to_entry


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


def _mask(entries: Sequence[Entry], block: Block, scorer: scoring.Scorer) -> torch.Tensor:
    """[entries of the block, n_rows]: which rows exist under each entry's structure (they do for
    all its seeds)."""
    mask = torch.zeros(len(block.entries), block.n_rows, dtype=torch.float64)
    for number, entry in enumerate(entries[i] for i in block.entries):
        exact = scorer.features(
            entry.sketch_index, entry.structure, entry.starts.astype(np.float64)
        )
        present = (exact != 0).any(axis=(0, 2))
        mask[number, : len(present)] = torch.from_numpy(present.astype(np.float64))
    return mask
