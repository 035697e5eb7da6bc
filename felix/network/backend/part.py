"""A part of a graph: Felix's network of it where that is known to be right and not slower.

The first call compares both on its inputs: Felix's outputs must agree with PyTorch's
(`felix.network.agreement`), and calls are timed.
"""

from __future__ import annotations

import abc
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _python_dispatch as python_dispatch

from felix import errors
from felix.database import store
from felix.database.outcome import KnownResult
from felix.frontend import folding
from felix.frontend.pytorch import calling
from felix.network import agreement, assembly, executable, groups, in_turns
from felix.network.backend import partition, settings
from felix.network.backend.report import PartReport
from felix.network.contenders import contest, shipping
from felix.network.contenders.shipping import Contender
from felix.network.passes import prepacking
from felix.task import Task
from felix.tir import grammar
from felix.torch_calls.form import TorchForm


class Runner(torch.nn.Module, abc.ABC):
    """Runs a part.

    Attributes:
        report: what runs it and why; final after the first call.
    """

    report: PartReport

    @property
    @abc.abstractmethod
    def is_tuned(self) -> bool:
        """Whether Felix's network runs the part."""


class Part(Runner):
    """Runs a part by what is known of its groups."""

    def __init__(self, cut: partition.Cut, chosen: settings.Settings, known: store.Store) -> None:
        super().__init__()
        self._graph = cut.graph
        self._never_slower = chosen.never_slower
        self._is_tf32 = False
        self._tuned: TunedPart | None = None
        self._is_compared = False
        self.report = PartReport(
            name=cut.name, operators=cut.operators, is_tuned=False, reason=str(cut.program)
        )
        if isinstance(cut.program, partition.PartProgram):
            self._build(cut, cut.program, chosen, known)

    @property
    def is_tuned(self) -> bool:
        """Whether Felix's network runs the part."""
        return self._tuned is not None

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The outputs of the part."""
        if self._tuned is not None and not self._is_compared:
            self._compare(self._tuned, inputs)
            self._is_compared = True
        runs = self._tuned
        if runs is not None and not runs.can_be_captured and executable.is_capturing():
            return self._graph(*inputs)
        if runs is not None and not runs.follow(inputs):
            runs = None
            self._leave("its parameters change too often")
        if runs is None:
            return self._graph(*inputs)
        return arranged(self._graph, runs(inputs))

    def _build(
        self,
        cut: partition.Cut,
        program: partition.PartProgram,
        chosen: settings.Settings,
        known: store.Store,
    ) -> None:
        choice = select(program, known, allow_tf32=chosen.allow_tf32)
        if chosen.queue:
            store.enqueue(
                known,
                [
                    (task, None if form is None else form.to_json())
                    for task, form in choice.unknown
                ],
            )
        self._is_tf32 = any(
            each.group.task is not None and each.group.task.allows_tf32 for each in choice.shipped
        )
        reason = choice.reason_for_pytorch
        if reason is None:
            try:
                self._tuned = TunedPart(
                    program, choice.shipped, cut.parameters, outputs_of(cut.graph)
                )
            except (errors.FelixError, *grammar.TVM_ERRORS) as error:
                reason = f"its network cannot be built: {grammar.first_line(error)}"
        self._note(
            groups=choice.shipped,
            n_queued=len(choice.unknown) if chosen.queue else 0,
            is_tuned=reason is None,
            reason=reason or _known(choice.shipped),
        )

    def _compare(self, candidate: TunedPart, inputs: Sequence[torch.Tensor]) -> None:
        """Decide by the inputs of one call who runs the part."""
        expected = _flat(self._graph(*inputs))
        if (reason := candidate.unfit(inputs)) is not None:
            self._leave(reason)
            return
        try:
            actual = candidate(inputs)
        except grammar.TVM_ERRORS as error:
            self._leave(f"its network does not run: {grammar.first_line(error)}")
            return
        # the element types that the part works with, those of autocast inside it as well
        nodes = self._graph.graph.nodes
        dtypes = {each.dtype for node in nodes for each in partition.tensors(node)}
        limit = agreement.tolerance(dtypes, self._is_tf32)
        worst = max(agreement.differences(actual, expected, limit), default=0.0)
        if not worst <= limit:
            self._leave(f"its network differs from PyTorch: relative error {worst:.1e}")
        elif self._never_slower:
            self._time(candidate, inputs)

    def _time(self, candidate: TunedPart, inputs: Sequence[torch.Tensor]) -> None:
        """Time both in turns, without the modes in which PyTorch makes the first call."""
        with python_dispatch._disable_current_modes():
            timed = in_turns.latencies_us(
                {"felix": lambda: candidate(inputs), "pytorch": lambda: self._graph(*inputs)},
                "felix",
                is_gpu=any(each.is_cuda for each in inputs),
            )
        felix_us, pytorch_us = map(statistics.median, timed.values())
        self._note(felix_us=felix_us, pytorch_us=pytorch_us)
        ratio = in_turns.ratio(timed["felix"], timed["pytorch"])
        if ratio.median > 1.0:
            self._leave(f"it takes {pytorch_us:.1f} us, Felix's network {ratio}")

    def _leave(self, reason: str) -> None:
        """PyTorch runs the part from now on."""
        self._tuned = None
        self._note(is_tuned=False, reason=reason)

    def _note(self, **changes: Any) -> None:
        self.report = dataclasses.replace(self.report, **changes)


def _known(shipped: Sequence[shipping.Shipped]) -> str:
    n_known = sum(each.is_known for each in shipped)
    return f"{n_known} of its {len(shipped)} groups are known"


def outputs_of(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """The (fake) outputs of a part."""
    (output,) = graph.graph.find_nodes(op="output")
    return [node.meta["val"] for node in _flat(output.args[0])]


def arranged(graph: torch.fx.GraphModule, outputs: Sequence[torch.Tensor]) -> Any:
    """Outputs as a part's graph returns them."""
    (output,) = graph.graph.find_nodes(op="output")
    return tuple(outputs) if isinstance(output.args[0], tuple | list) else outputs[0]


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


# What the groups of a part run by what is known: nothing is tuned or timed here.
#
# A group of which nothing is known runs PyTorch's operators where they are known, and TVM's
# default schedule otherwise.


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What groups run, and the tasks with forms of which something is not known."""

    shipped: Sequence[shipping.Shipped]
    unknown: Sequence[tuple[Task, TorchForm | None]]

    @property
    def reason_for_pytorch(self) -> str | None:
        """Why no program of these groups is worth building; None if one is."""
        tasks = groups.tasks([each.group for each in self.shipped])
        if not tasks:
            return "it has no program that could be tuned"
        if all(each.outcome is None for each in self.shipped):
            return f"nothing is known of its {len(tasks)} tasks"
        if any(
            each.contender is not Contender.PYTORCH and each.latencies_us for each in self.shipped
        ):
            return None
        return "PyTorch's operators are the fastest of each group that is known"


def select(
    program: partition.PartProgram, known: store.Store, *, allow_tf32: bool = False
) -> Selection:
    """Look up what is known of each group.

    Args:
        allow_tf32: products of float32 may be computed in TF32.

    Raises:
        RecordError: the known results cannot be used.
    """
    contenders = contest.Contest(program, known)
    shipped: list[shipping.Shipped] = []
    unknown: list[tuple[Task, TorchForm | None]] = []
    for group in groups.of(program.lowered, program.target, allow_tf32=allow_tf32):
        outcome = None if group.task is None else known.find(group.task)
        compared = contenders.known(group, outcome)
        if group.task is not None and (outcome is None or compared is None):
            unknown.append((group.task, None if isinstance(group.form, str) else group.form))
        shipped.append(_shipped(group, outcome, compared))
    return Selection(shipped, unknown)


def _shipped(
    group: groups.Group, outcome: KnownResult | None, compared: shipping.Compared | None
) -> shipping.Shipped:
    if compared is None:
        compared = shipping.Compared(latencies_us={}, without_pytorch="it is not compared yet")
    chosen = shipping.choose(group, outcome, compared, is_known=outcome is not None)
    if chosen.latencies_us or isinstance(group.form, str):
        return chosen
    reason = "nothing was measured: PyTorch's operators"
    return dataclasses.replace(chosen, contender=Contender.PYTORCH, reason=reason)


# A part as Felix runs it: a network whose parameters are those of the model at each call.
#
# Folding makes parameters of its own out of the model's (batch norm, casts), and those that are
# passed on may lie in copies. So each call compares where the model's parameters lie and their
# version counters, which PyTorch raises at every change in place, with those that the network
# was made from. After a change the parameters are folded again, `MAX_REFRESHES` times at most: a
# model whose parameters change all the time is faster in PyTorch. A change in place through
# `.data` has a counter of its own and is not noticed.
#
# Outputs have PyTorch's layouts and memory of their own.

#: Parameters are folded again so often.
MAX_REFRESHES = 8


class TunedPart:
    """A part as a network.

    Args:
        program: the part.
        shipped: what its groups run.
        parameters: its inputs that are parameters, by position.
        outputs: what PyTorch's operators give: (fake) tensors, for their layouts.

    Raises:
        MeasureError: a program cannot be compiled here.
    """

    def __init__(
        self,
        program: partition.PartProgram,
        shipped: Sequence[shipping.Shipped],
        parameters: Mapping[int, torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        self._raw = program.raw
        mod = prepacking.prepack(assembly.assemble(program.lowered, contest.runs(shipped)))
        self._network = executable.build(mod, program.target, program.folded.parameters)
        self._positions = sorted(parameters)
        self._stamps = [_stamp(parameters[position]) for position in self._positions]
        self._n_refreshes = 0
        self._strides = [None if each.is_contiguous() else each.stride() for each in outputs]

    @property
    def can_be_captured(self) -> bool:
        """Whether a CUDA graph may have the network's calls."""
        return not self._network.pool_users

    def follow(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Take the parameters as they are now; False if they change too often."""
        parameters = [inputs[position] for position in self._positions]
        stamps = [_stamp(each) for each in parameters]
        if stamps == self._stamps:
            return True
        if self._n_refreshes == MAX_REFRESHES:
            return False
        self._n_refreshes += 1
        values = tuple(each.detach() for each in parameters)
        self._raw = dataclasses.replace(self._raw, parameters=values)
        self._network.replace_parameters(folding.fold(self._raw).parameters)
        self._stamps = stamps
        return True

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call."""
        results = self._network(self._passed(inputs))
        return [self._as_in_pytorch(number, result) for number, result in enumerate(results)]

    def unfit(self, inputs: Sequence[torch.Tensor]) -> str | None:
        """Why the network does not take inputs; None if it does.

        Some of PyTorch's operators give another type than they say when they are traced.
        """
        pairs = zip(self._raw.inputs, self._passed(inputs), strict=True)
        for spec, given in pairs:
            if calling.dtype_name(given.dtype) != spec.dtype:
                return f"PyTorch says {spec.dtype} of an input that is {given.dtype}"
        return None

    def _passed(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs that are no parameters."""
        positions = set(self._positions)
        return [each for position, each in enumerate(inputs) if position not in positions]

    def _as_in_pytorch(self, number: int, result: torch.Tensor) -> torch.Tensor:
        """An output in the layout that PyTorch gives it."""
        strides = self._strides[number]
        if strides is None:
            return result
        place = torch.empty_strided(
            result.shape, strides, dtype=result.dtype, device=result.device
        )
        if not _overlaps(result.shape, strides):
            return place.copy_(result)
        offsets = torch.zeros((), dtype=torch.int64, device=result.device)
        for extent, stride in zip(result.shape, strides, strict=True):
            offsets = offsets.unsqueeze(-1) + stride * torch.arange(extent, device=result.device)
        place.as_strided((int(offsets.max()) + 1,), (1,))[offsets] = result
        return place


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of a tensor may lie in the same place, as those of an expanded one do."""
    reached = 0
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1:
            if stride <= reached:
                return True
            reached += stride * (extent - 1)
    return False


def _stamp(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter.data_ptr(), parameter._version
