"""The formulas of one sketch: expressions, and their compiled exact and smooth evaluations.

What they are made from is a `Source`: a trace's symbolic program (`TraceSource`) or a template's
own expressions (`felix.space.template_sketch`).

Structural decisions (compute locations) choose the program, so there is one `StructureFormulas`
per combination of them, made on first use and cached on disk. The key of the cache is the
sketch, the target, the structure and the version of the code that makes formulas.

Modelling raises UnsupportedSchedule for what it deliberately leaves out. Any other error is a
defect of it: a rule met a form that nobody thought of. Such an error costs the sketch, not the run
of all tasks: `reported` logs it with its traceback.

Notation
    B    batch; R rows (stores, or kernels of a template; the same list for every structure of a
         sketch); F features
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sympy
from numpy.typing import NDArray

from felix.autodiff import program as autodiff_program
from felix.errors import UnforeseenForm, UnsupportedSchedule
from felix.features import spec, table
from felix.features.kind import FeatureKind
from felix.features.stores import RowName
from felix.space import coordinates, formula_cache
from felix.space.coordinates import Structure
from felix.space.formula_cache import StructureFormulas
from felix.space.variables import Variable
from felix.symbolic import expr, interpret, kernels
from felix.symbolic.ir import SymbolicProgram
from felix.target import Hardware

if TYPE_CHECKING:
    import torch

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Extracted:
    """Expressions under one structural choice, untransformed.

    Attributes:
        rows: what each row describes.
        values: features [R][F] in the order of the source's names.
        constraints: what is limited, and an expression that is legal where <= 0.
    """

    rows: tuple[RowName, ...]
    values: Sequence[tuple[Any, ...]]
    constraints: Sequence[tuple[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Source(abc.ABC):
    """What formulas are made from.

    Attributes:
        kind: which table the features are of.
        names: features, in order.
        log: which of them are reported as log2(1 + value).
        code: modules of `felix` that decide what a formula is; see `formula_cache`.
        variables: the sketch's decision variables.
        key: what identifies the sketch in the cache.
    """

    kind: ClassVar[FeatureKind]
    names: ClassVar[tuple[str, ...]]
    log: ClassVar[tuple[bool, ...]]
    code: ClassVar[tuple[str, ...]]
    variables: Sequence[Variable]
    key: str

    @abc.abstractmethod
    def extract(self, structure: Structure) -> Extracted:
        """The expressions under these values of the structural variables."""


class Formulas:
    """Feature formulas and constraints of a sketch."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._by_structure: dict[Structure, StructureFormulas] = {}
        self._structural = coordinates.structural(source.variables)
        self._default = (interpret.ROOT,) * len(self._structural)

    @property
    def kind(self) -> FeatureKind:
        """Which table the features are of, and so which cost model reads them."""
        return self._source.kind

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names, in order."""
        return self._source.names

    @property
    def n_features(self) -> int:
        return len(self._source.names)

    @functools.cached_property
    def rows(self) -> tuple[RowName, ...]:
        """What each row describes, in program order with every block at its own place."""
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
        values = self._extracted(self._default).values
        return tuple(tuple(expr.resolved(v, known) for v in row) for row in values)

    def of_structure(self, structure: Structure, /) -> StructureFormulas:
        """Compiled formulas under these values of the structural variables.

        Raises:
            UnsupportedSchedule: TVM has no such program, or it cannot be modelled.
        """
        structure = tuple(int(s) for s in structure)
        if structure not in self._by_structure:
            key = f"{self._source.key}-{structure}"
            made = formula_cache.load(key, self._source.code)
            if made is None:
                with reported():
                    made = self._compile(structure)
                formula_cache.store(key, made, self._source.code)
            self._by_structure[structure] = made
        return self._by_structure[structure]

    def _extracted(self, structure: Structure) -> Extracted:
        """The expressions of a structure; rows missing from it are all zero."""
        extracted = self._source.extract(structure)
        if structure == self._default:
            return extracted
        values_of = dict(zip(extracted.rows, extracted.values, strict=True))
        absent = (sympy.Integer(0),) * self.n_features
        values = [values_of.get(row, absent) for row in self.rows]
        return Extracted(self.rows, values, extracted.constraints)

    def _compile(self, structure: Structure) -> StructureFormulas:
        extracted = self._extracted(structure)
        names = [variable.name for variable in self._source.variables]
        symbols = [sympy.Symbol(name, integer=True, positive=True) for name in names]
        features = autodiff_program.FormulaProgram.compile(
            [value for row in extracted.values for value in row],
            symbols,
            self._source.log * len(extracted.rows),
        )
        limits = [sympy.sympify(g) for _, g in extracted.constraints]
        bounds = autodiff_program.FormulaProgram.compile(
            [autodiff_program.relative_constraint(g) for g in limits], symbols
        )
        return StructureFormulas(extracted.rows, features, bounds)

    # ------------------------------------------------------------ evaluation

    def exact(self, batch: NDArray[np.int64]) -> NDArray[np.float64]:
        """Features [B, R, F] at integer decisions [B, n_variables], as their table transforms."""
        return self._evaluate(batch, raw=False)

    def raw(self, batch: NDArray[np.int64]) -> NDArray[np.float64]:
        """Features [B, R, F] in the units of their table."""
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
        column = self.names.index("shared_bytes")
        most: NDArray[np.float64] = self.raw(batch)[:, :, column].max(axis=1)
        return most

    def constraints_exact(self, batch: NDArray[np.int64]) -> NDArray[np.float64]:
        """Constraint values [B, C]; legal where all are <= 0. Structures with fewer are padded
        with -1."""
        batch = np.atleast_2d(np.asarray(batch))
        parts = []
        for structure, where in self._groups(batch):
            program = self.of_structure(structure).constraint_program
            parts.append((where, program.exact(batch[where].astype(np.float64))))
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


@dataclasses.dataclass(frozen=True, slots=True)
class TraceSource(Source):
    """Of the features of `felix.features.spec`.

    Attributes:
        program: symbolic program of a structure, after its postprocessors.
        hardware: limits and rates of the target.
        max_threads, max_shared_bytes: the target's limits on a block; 0 on a CPU.
    """

    program: Callable[[Structure], SymbolicProgram]
    hardware: Hardware
    max_threads: int
    max_shared_bytes: int

    kind = FeatureKind.TRACE
    names = spec.NAMES
    log = spec.LOG
    code = formula_cache.SOURCES

    def extract(self, structure: Structure) -> Extracted:
        """The rows of a structure's stores and its limits on a kernel."""
        program = self.program(structure)
        made = table.build(program, self.hardware)
        limits = kernels.constraints(program, self.max_threads, self.max_shared_bytes)
        return Extracted(made.rows, made.values, limits)


@contextmanager
def reported() -> Iterator[None]:
    """Errors that modelling does not raise on purpose as UnforeseenForm.

    Raises:
        UnsupportedSchedule, MemoryError: as they are.
        UnforeseenForm: any other error was raised.
    """
    try:
        yield
    except (UnsupportedSchedule, MemoryError):
        raise
    except Exception as error:  # the edge of modelling: a defect costs one sketch, by name
        action = {"action": "unforeseen_form"}
        _LOGGER.warning("a form that no rule was written for", exc_info=True, extra=action)
        lines = str(error).strip().splitlines()
        raise UnforeseenForm(
            f"the schedule has a form that no rule was written for ({type(error).__name__}"
            f"{': ' + lines[-1].strip() if lines else ''}); please report it with the program"
        ) from error
