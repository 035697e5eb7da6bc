"""The formulas of one sketch: expressions, and their compiled exact and smooth evaluations.

Structural decisions (compute locations) choose the program, so there is one `StructureFormulas`
per combination of them, made on first use and cached on disk. The key of the cache is the trace,
the target, the structure and the version of Felix's formulas.

Notation
    B    batch; R rows (stores, the same list for every structure of a sketch); F features
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import sympy
from numpy.typing import NDArray

from felix.autodiff import program as autodiff_program
from felix.features import spec
from felix.features import table as feature_table
from felix.features.stores import RowName
from felix.sketch import coordinates, formula_cache, unmodelled
from felix.sketch.coordinates import Structure
from felix.sketch.variables import Variable
from felix.symbolic import expr, interpret, kernels
from felix.symbolic.ir import Program
from felix.target import Hardware

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, slots=True)
class StructureFormulas:
    """Compiled formulas under one structural choice.

    Attributes:
        rows: the store of each row; all structures of a sketch have the same rows in one order.
        program: R * F outputs, row after row, transformed as `spec` says.
        constraint_program: legal where every output is <= 0.
        constraint_names: what each constraint limits.
    """

    rows: tuple[RowName, ...]
    program: autodiff_program.Program
    constraint_program: autodiff_program.Program
    constraint_names: tuple[str, ...]

    @property
    def n_rows(self) -> int:
        return len(self.rows)


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What formulas are made from.

    Attributes:
        variables: the sketch's decision variables.
        program: symbolic program of a structure, after its postprocessors.
        hardware: limits and rates of the target.
        max_threads, max_shared_bytes: the target's limits on a block; 0 on a CPU.
        key: what identifies the sketch in the cache.
    """

    variables: Sequence[Variable]
    program: Callable[[Structure], Program]
    hardware: Hardware
    max_threads: int
    max_shared_bytes: int
    key: str


class Formulas:
    """Feature formulas and constraints of a sketch."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._by_structure: dict[Structure, StructureFormulas] = {}
        self._structural = [i for i, v in enumerate(source.variables) if v.structural]
        self._default = (interpret.ROOT,) * len(self._structural)

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names, in order."""
        return spec.NAMES

    @property
    def n_features(self) -> int:
        return len(spec.NAMES)

    @functools.cached_property
    def rows(self) -> tuple[RowName, ...]:
        """(block, buffer) of each row, in program order with every block at its own place."""
        return self.default.rows

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    @property
    def default(self) -> StructureFormulas:
        """The formulas with every movable block left at the root."""
        return self.of_structure(self._default)

    @functools.cached_property
    def expressions(self) -> tuple[tuple[sympy.Expr, ...], ...]:
        """sympy expressions [R][F] of the default structure, untransformed."""
        known: dict[expr.SharedSubexpr, sympy.Expr] = {}
        values = self._table(self._default)[1]
        return tuple(tuple(expr.resolved(v, known) for v in row) for row in values)

    def of_structure(self, structure: Structure, /) -> StructureFormulas:
        """Compiled formulas under these values of the structural variables.

        Raises:
            UnsupportedSchedule: TVM has no such program, or it cannot be modelled.
        """
        structure = tuple(int(s) for s in structure)
        if structure not in self._by_structure:
            key = f"{self._source.key}-{structure}"
            stored = formula_cache.load(key)
            if stored is None:
                with unmodelled.reported():
                    stored = self._compile(structure)
                formula_cache.store(key, stored)
            rows, names, programs = stored
            self._by_structure[structure] = StructureFormulas(rows, *programs, names)
        return self._by_structure[structure]

    def _table(
        self, structure: Structure
    ) -> tuple[Program, tuple[tuple[sympy.Expr, ...], ...], tuple[RowName, ...]]:
        """(program, values, rows): rows missing from this structure are all zero."""
        program = self._source.program(structure)
        table = feature_table.build(program, self._source.hardware)
        rows = table.rows if structure == self._default else self.rows
        values_of = dict(zip(table.rows, table.values, strict=True))
        absent = (sympy.Integer(0),) * len(spec.NAMES)
        values = tuple(values_of.get(row, absent) for row in rows)
        return program, values, rows

    def _compile(self, structure: Structure) -> formula_cache.Entry:
        program, values, rows = self._table(structure)
        names = [variable.name for variable in self._source.variables]
        symbols = [sympy.Symbol(name, integer=True, positive=True) for name in names]
        features = autodiff_program.Program.compile(
            [value for row in values for value in row], symbols, spec.LOG * len(rows)
        )
        limits = kernels.constraints(
            program, self._source.max_threads, self._source.max_shared_bytes
        )
        bounds = autodiff_program.Program.compile(
            [autodiff_program.relative_constraint(sympy.sympify(g)) for _, g in limits], symbols
        )
        return rows, tuple(name for name, _ in limits), (features, bounds)

    # ------------------------------------------------------------ evaluation

    def exact(self, batch: NDArray[np.int64]) -> NDArray[np.float64]:
        """Features [B, R, F] at integer decisions [B, n_variables], transformed as `spec` says."""
        return self._evaluate(batch, raw=False)

    def raw(self, batch: NDArray[np.int64]) -> NDArray[np.float64]:
        """Features [B, R, F] in the units of `spec`."""
        return self._evaluate(batch, raw=True)

    def _evaluate(self, batch: NDArray[np.int64], raw: bool) -> NDArray[np.float64]:
        batch = np.atleast_2d(np.asarray(batch))
        result = np.zeros((len(batch), self.n_rows, self.n_features))
        for structure, where in self._groups(batch):
            compiled = self.of_structure(structure)
            values = compiled.program.exact(batch[where].astype(np.float64), raw=raw)
            result[where] = values.reshape(len(where), compiled.n_rows, self.n_features)
        return result

    def _groups(self, batch: NDArray[np.int64]) -> list[tuple[Structure, NDArray[np.int64]]]:
        if not self._structural:
            return [((), np.arange(len(batch)))]
        keys, inverse = np.unique(batch[:, self._structural], axis=0, return_inverse=True)
        inverse = np.asarray(inverse).reshape(-1)
        return [(tuple(key.tolist()), np.flatnonzero(inverse == i)) for i, key in enumerate(keys)]

    def shared_bytes(self, batch: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shared memory of a block [B], of the kernel that uses most."""
        column = spec.NAMES.index("shared_bytes")
        most: NDArray[np.float64] = self.raw(batch)[:, :, column].max(axis=1)
        return most

    def constraints_exact(self, batch: NDArray[np.int64]) -> NDArray[np.float64]:
        """Constraint values [B, C]; legal where all are <= 0. Structures with fewer are padded
        with -1."""
        batch = np.atleast_2d(np.asarray(batch))
        parts = [
            (
                where,
                self.of_structure(structure).constraint_program.exact(batch[where].astype(float)),
            )
            for structure, where in self._groups(batch)
        ]
        result = np.full((len(batch), max((p.shape[1] for _, p in parts), default=0)), -1.0)
        for where, values in parts:
            result[where, : values.shape[1]] = values
        return result

    # ------------------------------------------------------------ smooth, in free coordinates

    @functools.cached_property
    def space(self) -> coordinates.Space:
        """Free coordinates of the decisions: product constraints eliminated, log scale."""
        return coordinates.Space.of(self._source.variables)

    def smooth(self, x: torch.Tensor, temperature: float) -> torch.Tensor:
        """Features [B, R, F] at free coordinates x [B, n_free], differentiable in x.

        Structural coordinates are rounded to choose the program and have no gradient.
        """
        return self._smooth(x, temperature, features=True)

    def constraints(self, x: torch.Tensor, temperature: float = 0.01) -> torch.Tensor:
        """Constraint values [B, C] at free coordinates, legal where <= 0, differentiable."""
        return self._smooth(x, temperature, features=False)

    def _smooth(self, x: torch.Tensor, temperature: float, features: bool) -> torch.Tensor:
        """Features [B, R, F], or constraints [B, C] padded with -1."""
        import torch

        from felix.autodiff import torch_function

        values = self.space.decode(x)
        rounded = values.detach().round().to(torch.int64).numpy()
        pieces, order = [], []
        for structure, where in self._groups(rounded):
            index = torch.from_numpy(where)
            compiled = self.of_structure(structure)
            program = compiled.program if features else compiled.constraint_program
            pieces.append(torch_function.smooth(program, values[index], temperature))
            order.append(index)
        width = max(p.shape[1] for p in pieces)
        pieces = [torch.nn.functional.pad(p, (0, width - p.shape[1]), value=-1.0) for p in pieces]
        joined = torch.cat(pieces)[torch.argsort(torch.cat(order))]
        return joined.reshape(len(x), self.n_rows, self.n_features) if features else joined
