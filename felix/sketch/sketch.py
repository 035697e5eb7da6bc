"""Sketches: MetaSchedule's design space of a task, each with its decision variables.

A sketch is a trace. Its sampling instructions are the decision variables: every factor of a
perfect tile, every categorical choice, every compute location. A row of decisions is an int per
variable. Instantiating a schedule is always TVM's own trace application and postprocessors.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import sys
import types
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import sympy
import tvm
from numpy.typing import NDArray

from felix.errors import DecisionError, InvalidSchedule, UnsupportedSchedule
from felix.sketch import formulas, sampling
from felix.symbolic import expr, interpret, ir, load, postprocs, scalar
from felix.target import Hardware, hardware
from felix.task import Task

INLINE, ROOT = interpret.INLINE, interpret.ROOT


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """One decision.

    Attributes:
        name: unique in the sketch; the symbol of the formulas.
        kind: "tile" for a factor of a perfect tiling, else "choice".
        domain: values it may take, ascending; for a compute location those that ever occur.
        group: number of its sampling instruction; the factors of a group multiply to `extent`.
        extent: the tiled loop's extent; None for a choice.
        part: position in the group, outermost factor first.
        structural: it changes the structure of the program (a compute location).
        log_scale: search it on a logarithmic scale.
    """

    name: str
    kind: Literal["tile", "choice"]
    domain: tuple[int, ...]
    group: int
    extent: int | None
    part: int
    structural: bool
    log_scale: bool


class Sketch:
    """One design space of a task: a MetaSchedule trace with its variables and formulas."""

    def __init__(
        self, task: Task, index: int, trace: Any, context: Any, machine: Hardware
    ) -> None:
        self.task = task
        self.hardware = machine
        self.index = index
        self.trace = trace
        self._context = context
        self.instructions = interpret.parse(trace)
        self.variables: tuple[Variable, ...] = tuple(_variables(task, self.instructions))
        self._columns = _columns(self.variables)

    def __repr__(self) -> str:
        return f"Sketch({self.task.name}, {self.index}, {len(self.variables)} variables)"

    @functools.cached_property
    def key(self) -> str:
        """Hash of workload, target and trace, the same in every process."""
        text = "\n".join([self.task.key, repr(self.instructions)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @functools.cached_property
    def formulas(self) -> formulas.Formulas:
        """Feature formulas and constraints."""
        limits = self.task.target.attrs
        is_gpu = self.is_gpu
        source = formulas.Source(
            self.variables,
            self.symbolic,
            self.hardware,
            int(limits["max_threads_per_block"]) if is_gpu else 0,
            int(limits["max_shared_memory_per_block"]) if is_gpu else 0,
            f"{self.key}-{self.hardware}",
        )
        return formulas.Formulas(source)

    @property
    def is_gpu(self) -> bool:
        return bool(self.task.target.kind.name == "cuda")

    # ------------------------------------------------------------ programs

    def symbolic(self, structure: Sequence[int]) -> ir.Program:
        """The symbolic program under these compute locations, after its postprocessors."""
        locations = iter(structure)
        placed = {v.group: next(locations) for v in self.variables if v.structural}

        def decide(inst: interpret.Instruction, state: interpret.State) -> Sequence[Any]:
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

    def concrete(self, decisions: Sequence[int]) -> ir.Program:
        """The same interpretation with every variable given its number."""
        row = [int(v) for v in decisions]

        def decide(inst: interpret.Instruction, state: interpret.State) -> Sequence[Any]:
            columns = self._columns.get(inst.position)
            return [inst.attrs[0][0]] if columns is None else [row[c] for c in columns]

        return self._interpret(decide, rewrite=True)

    def _interpret(self, decide: Any, rewrite: bool) -> ir.Program:
        program = load.load(self.task.mod["main"])
        interpret.interpret(program, self.instructions, decide)
        threads = int(self.task.target.attrs["max_threads_per_block"]) if self.is_gpu else 0
        postprocs.apply(program, self.is_gpu, threads, rewrite)
        return program

    # ------------------------------------------------------------ schedules

    def schedule(self, decisions: Sequence[int]) -> tvm.s_tir.Schedule:
        """The schedule TVM makes of these decisions, after all postprocessors.

        Raises:
            DecisionError: wrong length, or a value outside of its variable's domain.
            InvalidSchedule: TVM or a postprocessor rejects the decisions.
        """
        schedule = self.apply(decisions)
        schedule.enter_postproc()
        for postproc in self._context.space_generator.postprocs:
            if not postproc.apply(schedule):
                name = str(postproc).split("(")[0].rsplit(".", 1)[-1]
                raise InvalidSchedule(f"postprocessor {name} rejects the decisions {decisions}")
        return schedule

    def apply(self, decisions: Sequence[int]) -> tvm.s_tir.Schedule:
        """The schedule before the postprocessors; raises as `schedule` does."""
        self._check(decisions)
        trace = self.with_decisions(decisions)
        schedule = tvm.s_tir.Schedule(self.task.mod, seed=1, debug_mask="none")
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
        except (RuntimeError, ValueError, TypeError, tvm.error.TVMError) as error:
            text = str(error).strip().splitlines()
            raise InvalidSchedule(
                f"TVM cannot apply the trace: {text[-1] if text else error}"
            ) from error
        if self._locations(schedule.trace) != self._locations(trace):
            raise InvalidSchedule("a compute location is not offered for these tile sizes")
        return schedule

    def is_applicable(self, decisions: Sequence[int]) -> bool:
        """Whether TVM can apply these decisions, compute locations above all.

        Formulas cannot tell all of it: which locations TVM offers a block follows from where the
        blocks before it went.

        Raises:
            DecisionError: wrong length, or a value outside of its variable's domain.
        """
        try:
            self.apply(decisions)
        except InvalidSchedule:
            return False
        return True

    def with_decisions(self, decisions: Sequence[int]) -> Any:
        """The trace with its sampling decisions set."""
        trace = tvm.s_tir.schedule.Trace(self.trace.insts, {})
        for position, columns in self._columns.items():
            inst = self.trace.insts[position]
            values = [int(decisions[c]) for c in columns]
            trace = trace.with_decision(inst, self._decision(inst, values), remove_postproc=True)
        return trace

    @staticmethod
    def _decision(inst: Any, values: list[int]) -> Any:
        if inst.kind.name == "SamplePerfectTile":
            return values
        if inst.kind.name == "SampleCategorical":
            return [int(c) for c in inst.attrs[0]].index(values[0])
        return values[0]

    def _locations(self, trace: Any) -> list[int]:
        return [
            int(trace.decisions[inst])
            for inst in trace.insts
            if inst.kind.name == "SampleComputeLocation"
        ]

    def decisions_of(self, trace: Any) -> tuple[int, ...]:
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

    def _check(self, decisions: Sequence[int]) -> None:
        if len(decisions) != len(self.variables):
            raise DecisionError(f"{len(self.variables)} decisions needed, {len(decisions)} given")
        for variable, value in zip(self.variables, decisions, strict=True):
            if int(value) not in variable.domain:
                raise DecisionError(f"{variable.name} = {value} is not one of {variable.domain}")
        for columns in self._columns.values():
            first = self.variables[columns[0]]
            if first.kind == "tile":
                got = int(np.prod([int(decisions[c]) for c in columns]))
                if got != first.extent:
                    raise DecisionError(
                        f"the factors of {first.name[:-2]} multiply to {got}, not {first.extent}"
                    )

    # ------------------------------------------------------------ sampling

    def tvm_sample(self, seed: int) -> tuple[int, ...] | None:
        """The row TVM's own sampler draws, or None where its trace does not apply.

        Its compute locations are ones TVM offers; its tile sizes need not be legal.
        """
        schedule = tvm.s_tir.Schedule(self.task.mod, seed=seed, debug_mask="none")
        trace = tvm.s_tir.schedule.Trace(self.trace.insts, {})
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
        except (RuntimeError, ValueError, TypeError, tvm.error.TVMError):
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
        return sampling.sample(self, n, seed, max_structures)


def sketches(task: Task, machine: Hardware | None = None) -> list[Sketch]:
    """Every sketch of MetaSchedule's default design space for the task's target.

    Args:
        machine: limits and rates the formulas use; by default those of the task's target here.

    Raises:
        UnsupportedSchedule: a trace uses an instruction Felix does not model.
    """
    context = tune_context(task)
    spaces = context.generate_design_space()
    machine = machine or hardware(task.target)
    return [Sketch(task, i, space.trace, context, machine) for i, space in enumerate(spaces)]


def tune_context(task: Task) -> Any:
    """A MetaSchedule context over the default rules and postprocessors of the target.

    Importing MetaSchedule's context pulls in every tensor intrinsic TVM knows, 20 s of script
    parsing that the default rules never use; an empty module stands in for them.
    """
    sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("tvm.s_tir.tensor_intrin"))
    from tvm.s_tir import meta_schedule as ms

    kind = task.target.kind.name
    logger = logging.getLogger("felix.tvm")
    logger.setLevel(logging.ERROR)
    return ms.TuneContext(
        mod=task.mod,
        target=task.target,
        space_generator=ms.space_generator.PostOrderApply(
            sch_rules=kind, postprocs=kind, mutator_probs=kind
        ),
        task_name=task.name,
        rand_state=1,
        num_threads=1,
        logger=logger,
    )


def _columns(variables: Sequence[Variable]) -> dict[int, list[int]]:
    columns: dict[int, list[int]] = {}
    for i, variable in enumerate(variables):
        columns.setdefault(variable.group, []).append(i)
    return columns


def _variables(task: Task, instructions: Sequence[interpret.Instruction]) -> list[Variable]:
    """Variables of a trace; extents of tiled loops come from a run with the default locations."""
    found: list[Variable] = []
    deepest = _Deepest()

    def decide(inst: interpret.Instruction, state: interpret.State) -> Sequence[Any]:
        group = inst.position
        if inst.kind == "SampleComputeLocation":
            depth = deepest.of(state, inst)
            domain = tuple(range(INLINE, depth))
            found.append(_choice(f"location{group}", domain, group, structural=True))
            return [ROOT]
        if inst.kind == "SampleCategorical":
            values = tuple(sorted({int(v) for v in inst.attrs[0]}))
            if len(values) > 1:
                found.append(_choice(f"choice{group}", values, group, structural=False))
            return [values[-1]]
        n, innermost = inst.attrs
        extent = scalar.plain(state.get(inst.inputs[0]).extent)
        if not isinstance(extent, int):
            raise UnsupportedSchedule("a tiled loop whose extent depends on other decisions")
        divisors = tuple(d for d in range(1, extent + 1) if extent % d == 0)
        for part in range(n):
            last = part == n - 1 and innermost > 0
            domain = tuple(d for d in divisors if d <= innermost) if last else divisors
            found.append(
                Variable(f"tile{group}_{part}", "tile", domain, group, extent, part, False, True)
            )
        return [extent] + [1] * (n - 1)

    interpret.interpret(load.load(task.mod["main"]), instructions, decide)
    return found


class _Deepest:
    """Number of loops a compute location may index."""

    @staticmethod
    def of(state: interpret.State, inst: interpret.Instruction) -> int:
        """Loops around the first consumer; earlier locations only make nests deeper by the
        iterators of blocks moved before, which is allowed for."""
        block = state.get(inst.inputs[0])
        readers = interpret.consumers(state.program, block)
        depth = len(state.program.loops_of(readers[0])) if readers else 0
        slack = max((len(b.iters) for _, b in state.program.walk()), default=0)
        longest = max((len(loops) for loops, _ in state.program.walk()), default=0)
        return max(depth, longest) + slack


def _choice(name: str, domain: tuple[int, ...], group: int, structural: bool) -> Variable:
    positive = [v for v in domain if v > 0]
    log_scale = not structural and len(positive) > 1 and max(positive) >= 4 * min(positive)
    return Variable(name, "choice", domain, group, None, 0, structural, log_scale)
