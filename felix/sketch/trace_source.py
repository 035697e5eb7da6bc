"""What the formulas of a trace sketch are made from: its symbolic program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from felix.features import spec, table
from felix.features.kind import FeatureKind
from felix.sketch import formula_cache
from felix.sketch.coordinates import Structure
from felix.sketch.formulas import Extracted
from felix.sketch.variables import Variable
from felix.symbolic import kernels
from felix.symbolic.ir import Program
from felix.target import Hardware


@dataclasses.dataclass(frozen=True, slots=True)
class TraceSource:
    """A `felix.sketch.formulas.Source` of the features of `felix.features.spec`.

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
