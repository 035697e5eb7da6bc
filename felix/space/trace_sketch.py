"""Trace sketches: a trace of MetaSchedule's design space with its decision variables.

The sampling instructions of the trace are the decision variables: every factor of a perfect tile,
every categorical choice, every compute location. A row of decisions is an int per variable.
Instantiating a schedule is always TVM's own trace application and postprocessors.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import sympy
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm.s_tir.schedule import Instruction, Trace

from felix.errors import InvalidSchedule
from felix.space import formulas, sampling
from felix.space import variables as decision_variables
from felix.space.variables import Variable
from felix.symbolic import expr, interpret, ir, kernels, load, postprocs
from felix.symbolic.ir import Scalar
from felix.target import Hardware
from felix.task import Task
from felix.tir import grammar
from felix.tir.design_space import shared_memory, variants

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms

INLINE, ROOT = interpret.INLINE, interpret.ROOT

#: Sampling instruction of a trace -> values of its outputs.
_Decide = Callable[[interpret.Instruction, interpret.State], Sequence[Scalar]]
#: What TVM raises where a trace does not apply.
_TVM_ERRORS = (RuntimeError, ValueError, TypeError, LookupError)


class TraceSketch:
    """One design space of a task: a MetaSchedule trace with its variables and formulas.

    Args:
        index: number among the sketches of the task.
        space_generator: MetaSchedule's, which has the postprocessors of the target.
        machine: limits and rates the formulas use.
        variant: which program of the task it schedules.
        mod: that program, of which the trace is; the task's when left out.
    """

    def __init__(
        self,
        task: Task,
        index: int,
        trace: Trace,
        space_generator: ms.SpaceGenerator,
        machine: Hardware,
        variant: variants.Variant = variants.STOCK,
        mod: tvm.IRModule | None = None,
    ) -> None:
        self.task = task
        self.mod: tvm.IRModule = task.mod if mod is None else mod
        self.variant = variant
        self.hardware = machine
        self.index = index
        self.trace = trace
        self._space_generator = space_generator
        self.instructions = interpret.parse(trace)
        program = load.load(self.mod["main"])
        self._names = program.names()
        self.variables: tuple[Variable, ...] = decision_variables.of_trace(
            program, self.instructions
        )
        self._columns = decision_variables.columns_by_group(self.variables)

    def __repr__(self) -> str:
        return (
            f"TraceSketch({self.task.name}, {self.index}, {self.variant}, "
            f"{len(self.variables)} variables)"
        )

    @functools.cached_property
    def key(self) -> str:
        """Hash of workload, target, program and trace, the same in every process."""
        program = []  # none of the task's own
        if not self.mod.same_as(self.task.mod):
            program = [f"{tvm_ffi.structural_hash(self.mod) % 2**64:016x}"]
        text = "\n".join([self.task.key, *program, repr(self.instructions)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @functools.cached_property
    def formulas(self) -> formulas.Formulas:
        """Feature formulas and constraints.

        Their rows have names, which the key of a sketch is blind to, so the key of the cache has
        them as well.
        """
        names = "max_threads_per_block", "max_shared_memory_per_block"
        limits = [int(self.task.target.attrs[name]) if self.is_gpu else 0 for name in names]
        parts = self.variables, f"{self.key}-{self.hardware}-{self._names}", self.symbolic
        return formulas.Formulas(formulas.TraceSource(*parts, self.hardware, *limits))

    @property
    def is_gpu(self) -> bool:
        return bool(self.task.target.kind.name == "cuda")

    @functools.cached_property
    def _may_be_dynamic(self) -> bool:
        """Whether a schedule may need more shared memory than there is of the static kind."""
        if not self.is_gpu or not shared_memory.uses_static(self.trace):
            return False
        return _needs_dynamic(int(self.task.target.attrs["max_shared_memory_per_block"]))

    # ------------------------------------------------------------ programs

    def symbolic(self, structure: Sequence[int]) -> ir.SymbolicProgram:
        """The symbolic program under these compute locations, after its postprocessors."""
        locations = iter(structure)
        placed = {v.group: next(locations) for v in self.variables if v.structural}

        def decide(inst: interpret.Instruction, state: interpret.State) -> Sequence[Scalar]:
            columns = self._columns.get(inst.position)
            if inst.kind == "SampleComputeLocation":
                return [placed[inst.position]]
            if columns is None:
                return [inst.attrs[0][0]]
            symbols = [expr.variable(self.variables[c].name) for c in columns]
            if inst.kind == "SampleCategorical":
                return symbols
            outer = sympy.sympify(state.get(inst.inputs[0]).extent)
            for symbol in symbols[1:]:
                outer = outer / symbol
            return [outer, *symbols[1:]]

        return self._interpret(decide, rewrite=False)

    def concrete(self, decisions: Sequence[int]) -> ir.SymbolicProgram:
        """The same interpretation with every variable given its number."""
        row = [int(v) for v in decisions]

        def decide(inst: interpret.Instruction, state: interpret.State) -> Sequence[Scalar]:
            columns = self._columns.get(inst.position)
            return [inst.attrs[0][0]] if columns is None else [row[c] for c in columns]

        program = self._interpret(decide, rewrite=True)
        if self._may_be_dynamic and _needs_dynamic(kernels.most_shared_bytes(program)):
            trace = shared_memory.dynamic(self.trace)
            return self._interpret(decide, rewrite=True, instructions=interpret.parse(trace))
        return program

    def _interpret(
        self,
        decide: _Decide,
        rewrite: bool,
        instructions: Sequence[interpret.Instruction] | None = None,
    ) -> ir.SymbolicProgram:
        program = load.load(self.mod["main"])
        interpret.interpret(program, instructions or self.instructions, decide)
        threads = int(self.task.target.attrs["max_threads_per_block"]) if self.is_gpu else 0
        postprocs.apply(program, self.is_gpu, threads, rewrite)
        return program

    # ------------------------------------------------------------ schedules

    def program(self, decisions: Sequence[int]) -> tvm.IRModule:
        """What is measured: the module of `schedule`, which says what it raises."""
        return self.schedule(decisions).mod

    def schedule(self, decisions: Sequence[int]) -> tvm.s_tir.Schedule:
        """The schedule TVM makes of these decisions, after all postprocessors.

        Raises:
            DecisionError: wrong length, or a value outside of its variable's domain.
            InvalidSchedule: TVM or a postprocessor rejects the decisions.
        """
        schedule = self.apply(decisions)
        self.postprocess(schedule)
        return schedule

    def postprocess(self, schedule: tvm.s_tir.Schedule) -> None:
        """Run the target's postprocessors on a schedule of this sketch, which is changed.

        Raises:
            InvalidSchedule: a postprocessor rejects it.
        """
        schedule.enter_postproc()
        for postproc in self._postprocs(schedule.trace):
            name = str(postproc).split("(")[0].rsplit(".", 1)[-1]
            try:
                accepted = postproc.apply(schedule)
            except _TVM_ERRORS as error:
                raise InvalidSchedule(
                    f"postprocessor {name} fails: {grammar.first_line(error)}"
                ) from error
            if not accepted:
                decisions = self.decisions_of(schedule.trace)
                raise InvalidSchedule(f"postprocessor {name} rejects the decisions {decisions}")

    def _postprocs(self, trace: Trace) -> Sequence[ms.Postproc]:
        """The postprocessors for a schedule with this trace."""
        if self._may_be_dynamic and shared_memory.is_dynamic(trace):
            return self._postprocs_of_dynamic
        postprocs: Sequence[ms.Postproc] = self._space_generator.postprocs
        return postprocs

    @functools.cached_property
    def _postprocs_of_dynamic(self) -> Sequence[ms.Postproc]:
        return shared_memory.verified_to(
            self.mod, self.task.target, self._space_generator.postprocs
        )

    def apply(self, decisions: Sequence[int]) -> tvm.s_tir.Schedule:
        """The schedule before the postprocessors; raises as `schedule` does."""
        decision_variables.check(self.variables, decisions)
        return self._applied(self.with_decisions(decisions))

    def apply_stock(self, decisions: Sequence[int]) -> tvm.s_tir.Schedule:
        """As `apply`, with the scopes of MetaSchedule's own trace whatever the decisions need."""
        decision_variables.check(self.variables, decisions)
        return self._applied(self._with_static_memory(decisions))

    def _applied(self, trace: Trace) -> tvm.s_tir.Schedule:
        schedule = tvm.s_tir.Schedule(self.mod, seed=1, debug_mask="none")
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
        except _TVM_ERRORS as error:
            text = str(error).strip().splitlines()
            raise InvalidSchedule(
                f"TVM cannot apply the trace: {text[-1] if text else error}"
            ) from error
        if self._locations(schedule.trace) != self._locations(trace):
            raise InvalidSchedule("TVM has no such compute location for these tile sizes")
        return schedule

    def is_applicable(self, decisions: Sequence[int]) -> bool:
        """Whether TVM can apply these decisions, compute locations above all.

        Formulas cannot decide all of it: which locations TVM allows a block follows from where
        the blocks before it went.

        Raises:
            DecisionError: wrong length, or a value outside of its variable's domain.
        """
        try:
            self.apply(decisions)
        except InvalidSchedule:
            return False
        return True

    def with_decisions(self, decisions: Sequence[int]) -> Trace:
        """The trace with its sampling decisions set, and the shared memory that they need.

        Where a kernel takes more than there is of the static kind, all is dynamic.
        """
        trace = self._with_static_memory(decisions)
        if self._may_be_dynamic:
            (most,) = self.formulas.shared_bytes(np.asarray([decisions]))
            if _needs_dynamic(most):
                return shared_memory.dynamic(trace)
        return trace

    def _with_static_memory(self, decisions: Sequence[int]) -> Trace:
        trace = Trace(self.trace.insts, {})
        for position, columns in self._columns.items():
            inst = self.trace.insts[position]
            values = [int(decisions[c]) for c in columns]
            trace = trace.with_decision(inst, self._decision(inst, values), remove_postproc=True)
        return trace

    @staticmethod
    def _decision(inst: Instruction, values: list[int]) -> int | list[int]:
        if inst.kind.name == "SamplePerfectTile":
            return values
        if inst.kind.name == "SampleCategorical":
            return [int(c) for c in inst.attrs[0]].index(values[0])
        return values[0]

    def _locations(self, trace: Trace) -> list[int]:
        return [
            int(trace.decisions[inst])
            for inst in trace.insts
            if inst.kind.name == "SampleComputeLocation"
        ]

    def decisions_of(self, trace: Trace) -> tuple[int, ...]:
        """The row of decisions in a trace of this sketch (a database's, say)."""
        row = [0] * len(self.variables)
        for position, columns in self._columns.items():
            inst = trace.insts[position]
            decision = trace.decisions[inst]
            if inst.kind.name == "SamplePerfectTile":
                values = [int(v) for v in decision]
            elif inst.kind.name == "SampleCategorical":
                values = [int(inst.attrs[0][int(decision)])]
            else:
                values = [int(decision)]
            for column, value in zip(columns, values, strict=True):
                row[column] = value
        return tuple(row)

    # ------------------------------------------------------------ sampling

    def tvm_sample(self, seed: int) -> tuple[int, ...] | None:
        """The row TVM's own sampler draws, or None where its trace does not apply.

        Its compute locations exist for its tile sizes, which need not be legal.
        """
        schedule = tvm.s_tir.Schedule(self.mod, seed=seed, debug_mask="none")
        trace = Trace(self.trace.insts, {})
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
        except _TVM_ERRORS:
            return None
        return self.decisions_of(schedule.trace)

    def sample(
        self, n: int, seed: int = 0, max_structures: int = sampling.MAX_STRUCTURES
    ) -> NDArray[np.int64]:
        """n legal rows of decisions [n, n_variables], distinct while the space has enough.

        Drawn from the space that satisfies the formulas' constraints, not by rejection of
        schedules. Deterministic under the seed.

        Args:
            max_structures: most different combinations of compute locations among the rows; a new
                one costs an extraction of formulas.

        Raises:
            InvalidSchedule: the sketch has no legal decisions.
        """
        decided = self.variables, self.formulas
        return sampling.sample(*decided, self.tvm_sample, n, seed, max_structures, self)


def _needs_dynamic(shared_bytes: float) -> bool:
    return shared_bytes > shared_memory.STATIC_BYTES
