"""Exact scores of decisions: legality and the cost model's prediction, batched.

A *structure* is a tuple of values of the structural variables; each has its own compiled
formulas. Candidates are grouped by structure, evaluated exactly, and only the legal ones are
shown to the model. Compiling a structure can take a second and a space may have dozens, so a
round has an allowance of new ones; rows beyond it score like illegal ones. Every array keeps
the order of the decisions it came from: a candidate and its prediction are never zipped from
lists filtered apart.

*Fingerprints* tell which candidates the model cannot tell apart: decisions of equal features.
Equal programs are among them: a fetch is not vectorized unless its width divides the extent, so
all other widths give the same one. Parameters of a template are told apart even where no feature
counts them: they give other kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from felix import errors
from felix.features.kind import FeatureKind
from felix.search import build_time, interface
from felix.space import coordinates, legality

Array = NDArray[np.float64]
#: Decisions of a structure that TVM is tried on; the tile sizes of one may not suit it.
CHECKED_ROWS = 3
#: Candidates shown to the model in one call.
MODEL_BATCH = 512
#: Array type of a fingerprint: 40 hexadecimal digits.
FINGERPRINT = "S40"


@dataclass(frozen=True, slots=True)
class Scores:
    """Of candidates [n]: predicted ln(latency_us), NaN for the illegal, and the cost of a build.

    `fingerprints` are equal where the features are; empty for the illegal.
    """

    ln_latency: Array
    build: build_time.BuildCost
    fingerprints: NDArray[np.bytes_]

    @classmethod
    def blank(cls, n: int) -> Scores:
        """Of n illegal candidates."""
        nothing = build_time.BuildCost(np.zeros(n), np.zeros(n))
        return cls(np.full(n, np.nan), nothing, np.zeros(n, FINGERPRINT))

    def put(self, rows: NDArray[np.intp], scores: Scores) -> None:
        """Scores of some of the candidates."""
        self.ln_latency[rows] = scores.ln_latency
        self.build.statements[rows] = scores.build.statements
        self.build.compile_s[rows] = scores.build.compile_s
        self.fingerprints[rows] = scores.fingerprints


@dataclass(slots=True)
class Scorer:
    """Scores candidates of all sketches of a task with the cost models of their features."""

    sketches: Sequence[interface.Sketch]
    model: interface.CostModels
    #: new structures of each sketch that this round may still compile; None: any number
    _allowance: list[int] | None = None
    #: structures admitted so far; stored with the search, so that a resumed one goes on alike
    known: set[tuple[int, coordinates.Structure]] = field(default_factory=set)
    _compiled: dict[tuple[int, coordinates.Structure], interface.StructureFormulas] = field(
        default_factory=dict
    )
    #: structures that no program has, and those that TVM can apply
    _impossible: set[tuple[int, coordinates.Structure]] = field(default_factory=set)
    _applicable: set[tuple[int, coordinates.Structure]] = field(default_factory=set)

    def kind_of(self, sketch_index: int) -> FeatureKind:
        """Which table the features of a sketch are of."""
        return self.sketches[sketch_index].formulas.kind

    def model_of(self, kind: FeatureKind) -> interface.CostModel:
        """The model that reads features of a kind.

        Raises:
            KeyError: there are models for other kinds alone.
        """
        return self.model[kind] if isinstance(self.model, Mapping) else self.model

    def begin_round(self, n_new_structures: int | Sequence[int]) -> None:
        """Allow so many new structures of every sketch, or of each, until the next call."""
        if isinstance(n_new_structures, int):
            n_new_structures = [n_new_structures] * len(self.sketches)
        self._allowance = list(n_new_structures)

    def admits(self, sketch_index: int, structure: coordinates.Structure) -> bool:
        """Whether rows of a structure may be scored in this round."""
        if (sketch_index, structure) in self._impossible:
            return False
        if (sketch_index, structure) in self.known or self._allowance is None:
            return True
        return self._allowance[sketch_index] > 0

    def of_structure(
        self, sketch_index: int, structure: coordinates.Structure
    ) -> interface.StructureFormulas:
        """The formulas of a sketch under a structure; compiled once."""
        key = (sketch_index, structure)
        if key not in self._compiled:
            if self._allowance is not None and key not in self.known:
                self._allowance[sketch_index] -= 1
            self.known.add(key)
            formulas = self.sketches[sketch_index].formulas
            self._compiled[key] = formulas.of_structure(structure)
        return self._compiled[key]

    def features(
        self, sketch_index: int, structure: coordinates.Structure, values: Array
    ) -> Array:
        """Exact features [n, n_rows, n_features] of decisions of one structure."""
        compiled = self.of_structure(sketch_index, structure)
        n_features = self.sketches[sketch_index].formulas.n_features
        return compiled.program.exact(values).reshape(len(values), compiled.n_rows, n_features)

    def legal(self, sketch_index: int, decisions: interface.Decisions) -> NDArray[np.bool_]:
        """Which decisions meet all constraints exactly, of structures admitted now."""
        result = np.zeros(len(decisions), bool)
        for structure, rows in self._by_structure(sketch_index, decisions):
            if not self.admits(sketch_index, structure):
                continue
            try:
                program = self.of_structure(sketch_index, structure).constraint_program
            except errors.UnsupportedSchedule:  # no such program: TVM never samples it
                self._impossible.add((sketch_index, structure))
                continue
            residuals = program.exact(decisions[rows])
            is_legal = legality.is_legal(residuals)
            if self._is_applicable(sketch_index, structure, decisions[rows][is_legal]):
                result[rows] = is_legal
        return result

    def _is_applicable(
        self, sketch_index: int, structure: coordinates.Structure, decisions: interface.Decisions
    ) -> bool:
        """Whether TVM can apply a structure, tried once on some of its legal decisions.

        Mutations combine compute locations as TVM's sampler never would.
        """
        key = (sketch_index, structure)
        if not structure or key in self._applicable or not len(decisions):
            return True
        sketch = self.sketches[sketch_index]
        if any(sketch.is_applicable(row) for row in decisions[:CHECKED_ROWS].tolist()):
            self._applicable.add(key)
            return True
        self._impossible.add(key)
        return False

    def predict(self, sketch_index: int, decisions: interface.Decisions) -> Array:
        """Predicted ln(latency_us) of each row of decisions, legal or not."""
        return self._scores(sketch_index, decisions).ln_latency

    def score(
        self,
        sketch_index: int,
        decisions: interface.Decisions,
        known: dict[bytes, float] | None = None,
    ) -> Scores:
        """Scores of the legal; the model never sees the others.

        Args:
            known: fingerprint -> ln(latency_us) that the model, as it is, predicted before: not
                predicted again. New ones are added.
        """
        result = Scores.blank(len(decisions))
        legal = np.flatnonzero(self.legal(sketch_index, decisions))
        if len(legal):
            result.put(legal, self._scores(sketch_index, decisions[legal], known))
        return result

    def deviations(self, keys: Sequence[interface.Key], normals: Array) -> Array:
        """Draws of what the models may be wrong about [B, n], of standard normal numbers [B, n].

        A column is one draw, of all B candidates; zeros where a model does not know.
        """
        result = np.zeros_like(normals)
        of_kind: dict[FeatureKind, list[int]] = {}
        for position, (sketch_index, _) in enumerate(keys):
            of_kind.setdefault(self.kind_of(sketch_index), []).append(position)
        for kind, positions in of_kind.items():
            model = self.model_of(kind)
            if isinstance(model, interface.ProbabilisticModel):
                rows = torch.from_numpy(self.padded_features([keys[p] for p in positions]))
                drawn = model.deviations(
                    rows, row_mask(rows), torch.from_numpy(normals[positions])
                )
                result[positions] = drawn.cpu().numpy()
        return result

    def padded_features(self, keys: Sequence[interface.Key]) -> NDArray[np.float32]:
        """Features [B, R, F] of candidates of one kind, with zeros for rows that one lacks."""
        parts: list[tuple[list[int], Array]] = []
        of_sketch: dict[int, list[int]] = {}
        for position, (sketch_index, _) in enumerate(keys):
            of_sketch.setdefault(sketch_index, []).append(position)
        for sketch_index, positions in of_sketch.items():
            decisions = np.asarray([keys[p][1] for p in positions], np.int64)
            for rows, _, values in self._evaluated(sketch_index, decisions):
                parts.append(([positions[row] for row in rows.tolist()], values))
        n_rows = max(values.shape[1] for _, values in parts)
        result = np.zeros((len(keys), n_rows, parts[0][1].shape[2]), np.float32)
        for positions, values in parts:
            result[positions, : values.shape[1]] = values
        return result

    def fingerprints(
        self, sketch_index: int, decisions: interface.Decisions
    ) -> NDArray[np.bytes_]:
        """Those of decisions [n], as in their scores."""
        result = np.zeros(len(decisions), FINGERPRINT)
        for rows, values, features in self._evaluated(sketch_index, decisions):
            result[rows] = self._fingerprints(sketch_index, features, values)
        return result

    def _evaluated(
        self, sketch_index: int, decisions: interface.Decisions
    ) -> Iterator[tuple[NDArray[np.intp], Array, Array]]:
        """(rows, decisions, exact features) of each structure among decisions."""
        for structure, rows in self._by_structure(sketch_index, decisions):
            values = decisions[rows].astype(np.float64)
            yield rows, values, self.features(sketch_index, structure, values)

    def _scores(
        self,
        sketch_index: int,
        decisions: interface.Decisions,
        known: dict[bytes, float] | None = None,
    ) -> Scores:
        known = {} if known is None else known
        model = self.model_of(self.kind_of(sketch_index))
        result = Scores.blank(len(decisions))
        for rows, values, features in self._evaluated(sketch_index, decisions):
            build = build_time.BuildCost.of(self.sketches[sketch_index], features)
            fingerprints = self._fingerprints(sketch_index, features, values)
            keys = fingerprints.tolist()
            fresh = {key: row for row, key in enumerate(keys) if key not in known}
            if fresh:
                predicted = _predicted(model, features[list(fresh.values())])
                known.update(zip(fresh, predicted.tolist(), strict=True))
            ln_latency = np.array([known[key] for key in keys])
            result.put(rows, Scores(ln_latency, build, fingerprints))
        return result

    def _fingerprints(
        self, sketch_index: int, features: Array, values: Array
    ) -> NDArray[np.bytes_]:
        """Digests [n] of what tells candidates of a sketch apart."""
        if self.kind_of(sketch_index) is FeatureKind.TRACE:
            return _digests(features)
        return _digests(np.insert(values, 0, sketch_index, axis=1))

    def _by_structure(
        self, sketch_index: int, decisions: interface.Decisions
    ) -> Iterator[tuple[coordinates.Structure, NDArray[np.intp]]]:
        """Row numbers of each structure among decisions, in order of first appearance."""
        variables = self.sketches[sketch_index].variables
        columns = coordinates.structural(variables)
        if not columns:
            yield (), np.arange(len(decisions))
            return
        groups: dict[coordinates.Structure, list[int]] = {}
        for row, values in enumerate(decisions[:, columns].tolist()):
            groups.setdefault(tuple(values), []).append(row)
        for structure, rows in groups.items():
            yield structure, np.asarray(rows, np.intp)


def _predicted(model: interface.CostModel, features: Array) -> Array:
    batches = []
    with torch.no_grad():
        for start in range(0, len(features), MODEL_BATCH):
            rows = torch.from_numpy(features[start : start + MODEL_BATCH])
            rows = rows.to(dtype_of(model))
            batches.append(model(rows, row_mask(rows)).double())
    return torch.cat(batches).cpu().numpy()


def _digests(values: Array) -> NDArray[np.bytes_]:
    """Digests [n] of values [n, ...], in hexadecimal, as a model reads them."""
    rows = values.astype(np.float32) + np.float32(0)  # the same for 0 and -0
    digests = [hashlib.sha1(row.tobytes(), usedforsecurity=False).hexdigest() for row in rows]
    return np.asarray(digests, FINGERPRINT)


def row_mask(rows: torch.Tensor) -> torch.Tensor:
    """1 for rows that exist: a row of a block that a structure leaves out is all zeros."""
    exists = (rows.amax(dim=-1) != 0) | (rows.amin(dim=-1) != 0)  # `any` is five times slower
    return exists.to(rows.dtype)


def dtype_of(model: interface.CostModel) -> torch.dtype:
    """The floating type a model computes in: its first parameter's, or float32."""
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            return parameter.dtype
    return torch.float32


def legal_samples(
    sketch: interface.Sketch, n: int, rng: np.random.Generator, max_structures: int
) -> interface.Decisions:
    """n legal random decisions of at most so many structures, from a seed in TVM's range."""
    rows = sketch.sample(n, int(rng.integers(1, 2**31 - 1)), max_structures)
    return np.asarray(rows, np.int64).reshape(len(rows), len(sketch.variables))
