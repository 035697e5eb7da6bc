"""The search space of a sketch as free real coordinates: `Space`.

Notation, for one point
    v       values of the variables, in the sketch's order
    x       free coordinates, fewer than variables
    L       extent of a perfect tiling, v_0 v_1 ... v_(n-1) = L over its parts
    u       v in its own scale: ln(v + shift) for log-scale variables, v itself for others

A tiling of n parts has n - 1 coordinates x_i = ln v_i (i >= 1); its product constraint is
eliminated by ln v_0 = ln L - sum x_i. A choice has one coordinate u; shift is 1 if its domain
contains 0 (unroll steps 0, 16, 64, 512) and 0 otherwise. A structural choice has a coordinate
too, so that a point is complete, but no gradient. All of it is one affine map: u = A x + c.

The bounds (1 <= v_i, the innermost part's limit, choices within their domain, sum x_i <= ln L)
are linear, so `project` restores them exactly after a step, and formulas are never evaluated
outside their domain, where products of factors below 1 mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

from felix.space.variables import Variable, columns_by_group

Array = NDArray[np.float64]
#: Values of the structural variables of a sketch, in order.
Structure = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The affine map and its bounds; rows follow variables, columns coordinates."""

    matrix: Array
    offset: Array
    shift: Array
    is_log: NDArray[np.bool_]
    lower: Array
    upper: Array
    #: [n_tilings, n_free] 1 where a coordinate belongs to a tiling, and the tiling's room
    tilings: Array
    room: Array
    trainable: NDArray[np.bool_]
    #: variable that each coordinate is the scaled value of
    owner: NDArray[np.intp]


class Space:
    """Free coordinates of decision variables, of one sketch or of several side by side."""

    def __init__(self, coordinates: Coordinates) -> None:
        self.coordinates = coordinates
        as_tensor = torch.from_numpy
        self._matrix = as_tensor(coordinates.matrix.T.copy())
        self._offset, self._shift = as_tensor(coordinates.offset), as_tensor(coordinates.shift)
        self._is_log = as_tensor(coordinates.is_log)
        self._all_log = bool(coordinates.is_log.all())
        self._lower, self._upper = as_tensor(coordinates.lower), as_tensor(coordinates.upper)
        self._tilings, self._room = as_tensor(coordinates.tilings), as_tensor(coordinates.room)
        self.trainable = as_tensor(coordinates.trainable)

    @classmethod
    def of(cls, variables: Sequence[Variable]) -> Space:
        """The space of a sketch's variables."""
        return cls(_coordinates(variables))

    @classmethod
    def concatenate(cls, spaces: Sequence[Space]) -> Space:
        """Several spaces side by side: coordinates and values one after another."""
        parts = [space.coordinates for space in spaces]
        columns = np.cumsum([0, *(len(p.offset) for p in parts)])
        owners = [p.owner + first for p, first in zip(parts, columns[:-1], strict=True)]
        vectors = "offset shift is_log lower upper room trainable".split()
        return cls(
            Coordinates(
                matrix=scipy.linalg.block_diag(*(p.matrix for p in parts)),
                tilings=scipy.linalg.block_diag(*(p.tilings for p in parts)),
                owner=np.concatenate(owners),
                **{name: np.concatenate([getattr(p, name) for p in parts]) for name in vectors},
            )
        )

    def encode(self, decisions: NDArray[np.int64] | Array) -> torch.Tensor:
        """Coordinates [batch, n_free] of values [batch, n_variables]."""
        scaled = self.scale(np.asarray(decisions, np.float64))
        return torch.from_numpy(scaled[:, self.coordinates.owner])

    def scale(self, values: Array) -> Array:
        """u [batch, n_variables]: the values in their own scale, where distances are measured."""
        c = self.coordinates
        return np.where(c.is_log, np.log(np.where(c.is_log, values + c.shift, 1.0)), values)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """Values [batch, n_variables] of coordinates, differentiable in the trainable ones."""
        if not bool(self.trainable.all()):
            x = torch.where(self.trainable, x, x.detach())
        scaled = torch.addmm(self._offset, x, self._matrix)
        values = torch.exp(scaled) - self._shift
        return values if self._all_log else torch.where(self._is_log, values, scaled)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """The point moved back within all bounds; a point inside is unchanged.

        Boxes are clamped; a tiling whose parts take more than L shrinks towards its lower
        corner by one common factor, which keeps the ratios of its coordinates.
        """
        x = torch.clamp(x, self._lower, self._upper)
        spread = (x - self._lower) @ self._tilings.T
        share = torch.clamp(self._room / torch.clamp(spread, min=1e-12), max=1.0)
        return self._lower + (x - self._lower) * (1.0 + (share - 1.0) @ self._tilings)


def structure(variables: Sequence[Variable], decisions: Sequence[int]) -> Structure:
    """The values of the structural variables among decisions."""
    return tuple(int(decisions[column]) for column in structural(variables))


def structural(variables: Sequence[Variable]) -> list[int]:
    """Positions of the structural variables."""
    return [column for column, variable in enumerate(variables) if variable.structural]


def tilings(variables: Sequence[Variable]) -> list[list[int]]:
    """Positions of the parts of each perfect tiling, in the order of its parts."""
    groups = columns_by_group(variables).values()
    tiles = (group for group in groups if variables[group[0]].kind == "tile")
    return [sorted(tile, key=lambda i: variables[i].part) for tile in tiles]


def _coordinates(variables: Sequence[Variable]) -> Coordinates:
    groups = tilings(variables)
    outermost = {group[0] for group in groups}
    owner = [i for i in range(len(variables)) if i not in outermost]
    column = {variable: j for j, variable in enumerate(owner)}
    matrix = np.zeros((len(variables), len(owner)))
    offset, shift = np.zeros(len(variables)), np.zeros(len(variables))
    logs_of = [v.kind == "tile" or (v.log_scale and not v.structural) for v in variables]
    is_log = np.asarray(logs_of)
    for i, variable in enumerate(variables):
        if i in column:
            matrix[i, column[i]] = 1.0
        if is_log[i] and min(variable.domain) < 1:
            shift[i] = 1.0 - min(variable.domain)
    belongs, room = np.zeros((len(groups), len(owner))), np.zeros(len(groups))
    lowest = [min(v.domain) + s for v, s in zip(variables, shift, strict=True)]
    highest = [max(v.domain) + s for v, s in zip(variables, shift, strict=True)]
    for g, group in enumerate(groups):
        free = [column[i] for i in group[1:]]
        extent = variables[group[0]].extent
        if extent is None:
            raise ValueError(f"tile variable {variables[group[0]].name} has no extent")
        offset[group[0]] = np.log(extent)
        matrix[group[0], free] = -1.0
        belongs[g, free] = 1.0
        room[g] = np.log(extent) - sum(np.log(lowest[i]) for i in group)
    logs = is_log[owner] if owner else np.zeros(0, bool)
    return Coordinates(
        matrix=matrix,
        offset=offset,
        shift=shift,
        is_log=is_log,
        lower=_scaled([lowest[i] for i in owner], logs),
        upper=_scaled([highest[i] for i in owner], logs),
        tilings=belongs,
        room=np.maximum(room, 0.0),
        trainable=np.asarray([not variables[i].structural for i in owner], bool),
        owner=np.asarray(owner, np.intp),
    )


def _scaled(values: Sequence[float], logs: NDArray[np.bool_]) -> Array:
    array = np.asarray(values, np.float64)
    return np.where(logs, np.log(np.where(logs, array, 1.0)), array)
