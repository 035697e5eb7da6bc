"""PyTorch's own samples of its operators (OpInfo), through the backend of `torch.compile`.

A case is an operator and a kind of values: those of the samples, some of them infinite or huge,
or some of them NaN. Of each operator there are the first two samples of its first element type,
and others drawn from all of that one and two further types. An operator's call is traced as a
graph of `torch._dynamo` is, what can be converted is built for this CPU as TVM schedules it,
without tuning, and the results are compared with the operator's own: places of infinities and of
NaN must be the same. The backend's own comparison, by which PyTorch runs what differs, is left
out. Samples that PyTorch refuses are none.

`torch.testing._internal` is private: the ledger is that of one version of PyTorch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import tvm
from torch.utils import _pytree as pytree

from benchmarks.conformance import ledger
from felix import frontend, target
from felix.frontend.pytorch import export
from felix.network import agreement
from felix.network.backend import functional, part, partition, report, tracing, tuned_part
from felix.tir import grammar

#: PyTorch's own flag of whether switches such as `torch.backends.cudnn.enabled` may be set.
_MAY_SET = "__allow_nonbracketed_mutation_flag"
#: Samples of an operator with values of their own, of 5,000 and more in all; and with others.
SAMPLES = 8
_SPECIAL_SAMPLES = 2
#: Kinds of values, and what takes the place of one element each of a tensor. Float32 has the
#: square of the large one, so that no order of a sum decides whether it overflows.
VALUES: dict[str, tuple[float, ...]] = {
    "finite": (),
    "infinities": (float("inf"), float("-inf"), 1e15),
    "nan": (float("nan"),),
}
#: Results beyond this are compared apart from the others, which are nothing beside them.
_FAR = 1e6
#: Element types in the order in which an operator's first one is looked for.
_FIRST = (torch.float32, torch.int64, torch.bool, torch.complex64)
#: What the names of operators begin with that only GPUs have.
_OF_CUDA = "jiterator"
#: Cases with which PyTorch itself ends the process.
_ENDING = ("linalg.eigvals infinities", "linalg.eigvals nan")
#: What reasons begin with of parts that were imported.
_DOES_NOT_RUN = "its network does not run: "
_HALF = frozenset({torch.float16, torch.bfloat16})
#: What PyTorch raises for operands that an operator does not take.
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError)


class Cases:
    """The cases by their names, as in "softmax finite".

    Args:
        samples: of an operator.
        seed: of the choice of samples, and of their values.

    Attributes:
        limit_s: seconds that a case may take.
        head: what the ledger says of itself.
    """

    limit_s = 300.0
    head = f"PyTorch {torch.__version__.partition('+')[0]}"

    def __init__(self, samples: int = SAMPLES, seed: int = 0) -> None:
        self._samples, self._seed = samples, seed
        self._operators = {
            each.full_name: each
            for each in database()
            if each.dtypes and not each.name.startswith(_OF_CUDA)
        }

    @property
    def names(self) -> list[str]:
        every = (f"{name} {values}" for name in self._operators for values in VALUES)
        return [name for name in every if name not in _ENDING]

    def judge(self, name: str) -> ledger.Found:
        """The state of a case: that of its worst sample."""
        operator, values = name.split()
        count = self._samples if values == "finite" else min(self._samples, _SPECIAL_SAMPLES)
        found = []
        for sample in drawn(self._operators[operator], count, self._seed):
            with_values = sample.replaced(VALUES[values], self._seed)
            if with_values is None or (state := judged(with_values)) is None:
                continue
            sentence = f"{sample.label}: {state.sentence}" if state.sentence else ""
            found.append(ledger.Found(state.state, sentence))
        if not found:
            return ledger.Found("pytorch", "it has no sample", {})
        return ledger.Found.worst(found)


@functools.cache
def database() -> Sequence[Any]:
    """PyTorch's operators with their samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations

    # which forbids this process to set PyTorch's switches
    torch.backends.disable_global_flags.__globals__[_MAY_SET] = True
    return list(common_methods_invocations.op_db)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A call of an operator.

    Attributes:
        label: for people.
        operator: what is called.
        leaves: its arguments, flat.
        structure: of (args, kwargs).
    """

    label: str
    operator: Callable[..., Any]
    leaves: Sequence[Any]
    structure: Any

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Tensors among the arguments, as copies that lie as they do."""
        return [copy.deepcopy(each) for each in self.leaves if isinstance(each, torch.Tensor)]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that the operator gives, with these in place of its arguments'."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(e, torch.Tensor) else e for e in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        results = pytree.tree_leaves(self.operator(*args, **kwargs))
        return [each for each in results if isinstance(each, torch.Tensor)]

    def graph(self) -> torch.fx.GraphModule:
        """The call as a graph of one function, whose inputs are the tensors."""

        def called(*tensors: torch.Tensor) -> list[torch.Tensor]:
            return self(*tensors)

        graph = torch.fx.Graph()
        inputs = [graph.placeholder(f"x{number}") for number in range(len(self.tensors))]
        graph.output(graph.call_function(called, tuple(inputs)))
        return torch.fx.GraphModule({}, graph)

    def replaced(self, values: Sequence[float], seed: int) -> Sample | None:
        """The call with values in the place of some elements of its floats; None without any."""
        if not values:
            return self
        generator = torch.Generator().manual_seed(seed)
        leaves = [_with_values(each, values, generator) for each in self.leaves]
        is_same = all(a is b for a, b in zip(leaves, self.leaves, strict=True))
        return None if is_same else dataclasses.replace(self, leaves=leaves)


def _with_values(leaf: Any, values: Sequence[float], generator: torch.Generator) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return leaf
    if not leaf.is_floating_point() or not leaf.numel():
        return leaf
    flat = leaf.detach().clone(memory_format=torch.contiguous_format).view(-1)
    places = torch.randperm(flat.numel(), generator=generator)[: len(values)]
    # Of a tensor of one element any value may be that one.
    begin = int(torch.randint(len(values), (), generator=generator))
    chosen = [values[(begin + number) % len(values)] for number in range(len(places))]
    flat[places] = torch.tensor(chosen, dtype=torch.float64).to(leaf.dtype)
    return flat.view(leaf.shape)


def drawn(operator: Any, count: int, seed: int) -> Iterator[Sample]:
    """So many samples of an operator; those of a smaller count are the first of a larger one."""
    rng = random.Random(f"{seed} {operator.full_name}")
    first, *others = _types(operator, rng)
    of_first = _samples(operator, first, seed)
    pools = [of_first[2:], *(_samples(operator, each, seed) for each in others)]
    for pool in pools:
        rng.shuffle(pool)
    chosen = of_first[:2]
    turns = [0, 1, 0, 2] if others else [0]
    while len(chosen) < count and any(pools):
        turn = pools[turns[len(chosen) % len(turns)] % len(pools)]
        chosen.append((turn or max(pools, key=len)).pop())
    yield from chosen[:count]


def _types(operator: Any, rng: random.Random) -> list[torch.dtype]:
    """An operator's first element type, and up to two others that programs have."""
    every = sorted(operator.dtypes, key=str)
    first = next(each for each in (*_FIRST, *every) if each in operator.dtypes)
    others = [each for each in every if each in export.DTYPES and each is not first]
    return [first, *rng.sample(others, min(2, len(others)))]


def _samples(operator: Any, dtype: torch.dtype, seed: int) -> list[Sample]:
    torch.manual_seed(seed)
    result = []
    name = str(dtype).removeprefix("torch.")
    try:
        for number, each in enumerate(operator.sample_inputs("cpu", dtype)):
            call = (each.input, *each.args), dict(each.kwargs)
            leaves, structure = pytree.tree_flatten(call)
            result.append(Sample(f"{name} sample {number}", operator.op, leaves, structure))
    except _REFUSALS:  # an operator that this build of PyTorch lacks
        return result
    return result


class _Untuned(part.Runner):
    """Runs a part as TVM schedules it, where it can be imported and built."""

    def __init__(self, cut: partition.Cut) -> None:
        super().__init__(cut)
        self._tuned: tuned_part.TunedPart | None = None
        reason = str(cut.program)
        if isinstance(cut.program, partition.PartProgram):
            self._tuned = tuned_part.TunedPart(cut, cut.program, ())
            reason = "it is imported"
        self.report = report.PartReport(
            name=cut.name, operators=cut.operators, is_tuned=self.is_tuned, reason=reason
        )

    @property
    def is_tuned(self) -> bool:
        return self._tuned is not None

    def outputs(self, inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        reason = None if self._tuned is None else self._tuned.unfit(inputs)
        if reason is None and self._tuned is not None:
            try:
                return self._tuned(inputs)
            except grammar.TVM_ERRORS as error:
                reason = f"{_DOES_NOT_RUN}{grammar.first_line(error)}"
        if reason is not None:  # as of `part.Part`, which PyTorch runs then
            self._tuned = None
            self.report = dataclasses.replace(self.report, is_tuned=False, reason=reason)
        return self._by_pytorch(inputs)


def judged(sample: Sample) -> ledger.Found | None:
    """The state of a sample; None where PyTorch refuses it."""
    try:
        with torch.no_grad():
            expected = sample(*sample.tensors)
    except _REFUSALS:
        return None
    return ledger.judged(lambda: _compared(sample, expected))


def _compared(sample: Sample, expected: Sequence[torch.Tensor]) -> ledger.Found:
    full = target.parse("llvm")
    made: list[tuple[functional.FunctionalGraph, set[torch.dtype]]] = []

    def compiler(graph: torch.fx.GraphModule) -> functional.FunctionalGraph:
        nodes = graph.graph.nodes
        dtypes = {each.dtype for node in nodes for each in partition.tensors(node)}
        made.append((functional.FunctionalGraph(graph, set(), full, _runners), dtypes))
        return made[0][0]

    with torch.no_grad():
        tensors = sample.tensors
        if (reason := tracing.unfit(tensors)) is not None:
            return ledger.Found("pytorch", reason)
        try:
            call = tracing.trace(sample.graph(), tensors, compiler)
        except tracing.ERRORS as error:
            return ledger.Found("pytorch", f"it cannot be traced: {grammar.first_line(error)}")
        results = call(*tensors)
    ((split, dtypes),) = made
    reasons = [each.reason for each in split.reports()]
    if any(each.startswith(_DOES_NOT_RUN) for each in reasons):
        return ledger.Found("unclear", "; ".join(reasons))
    if not split.is_tuned:
        every = sorted({*split.pytorch.values(), *reasons})
        return ledger.Found("pytorch", "; ".join(every) or "it has no operator")
    if partition.BY_CHANCE in split.pytorch.values():
        return ledger.Found("pytorch", partition.BY_CHANCE)
    limit = agreement.tolerance(dtypes)
    difference = _unlike(results, expected, limit)
    if difference is not None and not _HALF.isdisjoint(dtypes):
        difference = _unlike(results, _in_float32(sample, expected), limit)
    if difference is None:
        return ledger.Found("right")
    operators = sorted({name for each in split.reports() for name in each.operators})
    return ledger.Found("wrong", f"{difference}, of {', '.join(operators)}")


def _in_float32(sample: Sample, expected: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """What PyTorch gives, of operands of 16 bits in float32: in 16 bits it may round, and reach
    infinity, at every step where programs do at the end."""
    wide = (each.float() if each.dtype in _HALF else each for each in sample.tensors)
    try:
        with torch.no_grad():
            results = sample(*wide)
    except _REFUSALS:
        return expected
    return [each.to(of.dtype) for each, of in zip(results, expected, strict=True)]


def _unlike(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], limit: float
) -> str | None:
    """The first output that differs, for people; None where none does."""
    for number, pair in enumerate(zip(results, expected, strict=True)):
        error = _difference(*pair, is_exact=limit == 0)
        if not error <= limit:
            return f"output {number}: error {error:.1e}"
    return None


def _difference(result: torch.Tensor, right: torch.Tensor, is_exact: bool) -> float:
    """As `agreement.difference` has it; what is large does not hide the rest."""
    if right.dtype.is_complex and result.dtype == right.dtype:
        result, right = (torch.view_as_real(each.resolve_conj()) for each in (result, right))
    if not right.dtype.is_floating_point or result.shape != right.shape:
        return agreement.difference(result, right, is_exact)
    is_far = right.abs() > _FAR
    return max(agreement.difference(result[each], right[each]) for each in (is_far, ~is_far))


def _runners(full: tvm.target.Target) -> functional.Runners:
    return frontend.Grouping(), _Untuned
