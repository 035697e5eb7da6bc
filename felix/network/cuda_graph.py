"""A network's calls as one CUDA graph: a replay costs one launch.

Inputs and outputs of a captured network lie in fixed places. A call copies its inputs in, replays,
and copies the outputs out, on PyTorch's current stream. Nothing waits for the GPU.

A graph runs kernels one after the other, or those that are independent side by side in branches.
Where there are such kernels both graphs are captured and timed, and
the faster one stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
import tvm
import tvm_ffi

from felix import errors
from felix.network import executable

# Which of a network's calls may run side by side: branches of its CUDA graph.
#
# Calls come in the order in which they would run one after the other. A call waits for those
# that wrote what it reads or writes, and for those that read what it writes; memory that several
# values share in turn counts, too. Each call goes on in the branch of one that it waits for, if
# that branch has not gone on already, and in a free branch otherwise.

_Result = TypeVar("_Result")
#: The first address of a tensor and the one behind its last.
Span: TypeAlias = tuple[int, int]

#: More branches than this gain nothing: each holds a kernel that fills a part of the GPU.
MAX_BRANCHES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a call runs.

    Attributes:
        branch: the number of its branch; calls of a branch run in order.
        waits_for: calls of other branches, by number in order of `place`, that must have ended.
    """

    branch: int
    waits_for: tuple[int, ...]


class Order:
    """Places calls one by one; calls are numbered from 0."""

    def __init__(self, max_branches: int = MAX_BRANCHES) -> None:
        self._max_branches = max_branches
        self._reads: list[tuple[Span, int]] = []
        self._writes: list[tuple[Span, int]] = []
        #: Of each call the set of calls that have ended when it begins, as bits.
        self._before: list[int] = []
        self._branches: list[int] = []
        #: The last call of each branch.
        self.last_calls: list[int] = []

    def place(self, reads: Sequence[Span], writes: Sequence[Span]) -> Place:
        """Where the next call runs, which reads and writes these."""
        number = len(self._before)
        needed = self._needed(reads, writes)
        branch = self._branch(needed)
        before = self._closed(needed)
        waits_for: list[int] = []
        if branch < len(self.last_calls):
            last = self.last_calls[branch]
            waits_for = [each for each in needed if not self._ended(each, at=last)]
            before |= self._before[last] | 1 << last
            self.last_calls[branch] = number
        else:
            waits_for = needed
            self.last_calls.append(number)
        self._before.append(before)
        self._branches.append(branch)
        self._note(number, reads, writes)
        return Place(branch, tuple(waits_for))

    def _needed(self, reads: Sequence[Span], writes: Sequence[Span]) -> list[int]:
        """The calls to wait for, without those that another one of them has waited for."""
        touched = [*reads, *writes]
        every = {call for span, call in self._writes if _meets(span, touched)}
        every |= {call for span, call in self._reads if _meets(span, writes)}
        return [
            each
            for each in sorted(every)
            if not any(self._before[other] >> each & 1 for other in every)
        ]

    def _branch(self, needed: Sequence[int]) -> int:
        ends = [each for each in needed if self.last_calls[self._branches[each]] == each]
        if ends:
            return self._branches[ends[-1]]
        before = self._closed(needed)
        for branch, last in enumerate(self.last_calls):
            if before >> last & 1:
                return branch
        if len(self.last_calls) < self._max_branches:
            return len(self.last_calls)
        return min(range(len(self.last_calls)), key=lambda branch: self.last_calls[branch])

    def _closed(self, calls: Sequence[int]) -> int:
        """These calls and all that end before them."""
        every = 0
        for each in calls:
            every |= self._before[each] | 1 << each
        return every

    def _ended(self, call: int, at: int) -> bool:
        """Whether a call has ended when another one ends."""
        return call == at or bool(self._before[at] >> call & 1)

    def _note(self, number: int, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """Remember a call; what is overwritten as a whole need not be waited for any more."""
        for spans in (self._reads, self._writes):
            spans[:] = [each for each in spans if not _within(each[0], writes)]
        self._reads += [(span, number) for span in reads]
        self._writes += [(span, number) for span in writes]


def _meets(span: Span, others: Sequence[Span]) -> bool:
    return any(span[0] < end and begin < span[1] for begin, end in others)


def _within(span: Span, others: Sequence[Span]) -> bool:
    return any(begin <= span[0] and span[1] <= end for begin, end in others)


#: Calls before the capture: kernels load, and pools of memory grow.
_WARM_UP = 3
#: Timed replays of each of two graphs, in turns.
_TURNS = 15
#: Branches stay if they take less than this part of the time without: each is one more thing
#: that a launch has to see to.
_GAIN = 0.99
#: Streams that PyTorch hands out in turn.
_POOLED_STREAMS = 32

_log = logging.getLogger("felix.network")


@dataclasses.dataclass(frozen=True, slots=True)
class Branching:
    """What a graph with branches was compared by: medians of replays, with warm caches, in us."""

    n_branches: int
    branched_us: float
    in_order_us: float

    @property
    def pays(self) -> bool:
        """Whether kernels side by side are faster."""
        return self.branched_us < _GAIN * self.in_order_us


class CapturedNetwork:
    """An executable whose calls replay a graph; safe to call from several threads.

    While the caller captures a graph of its own, the executable runs without this one: it becomes
    a part of the caller's.

    Args:
        built: the network, on a GPU.
        examples: input tensors of a call, on the GPU.

    Attributes:
        branching: how kernels side by side compare; None if each kernel waits for the last one.

    Raises:
        TuningError: the inputs are not on a GPU, or the network cannot be captured.
    """

    def __init__(self, built: executable.Executable, examples: Sequence[torch.Tensor]) -> None:
        if not examples or not all(each.is_cuda for each in examples):
            raise errors.TuningError("only a network with inputs on a GPU can be captured")
        if built.pool_users:
            raise errors.TuningError(f"{built.pool_users[0]} takes memory from TVM's pool")
        self._built = built
        with torch.inference_mode(False):
            self._inputs = [executable.as_stored(each).clone() for each in examples]
        self.branching: Branching | None = None
        self._graph, self._outputs = self._captured()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call, new tensors."""
        if torch.cuda.is_current_stream_capturing():
            return self._built(inputs)
        with self._built.turn(), torch.no_grad():  # the last call may still use the fixed places
            for place, value in zip(self._inputs, inputs, strict=True):
                place.copy_(value)
            self._graph.replay()
            return [each.clone() for each in self._outputs]

    def _captured(self) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
        """The graph of a call, and the outputs that it writes."""
        warm_up(lambda: self._built(self._inputs))
        in_order, outputs = captured(lambda: self._built.run(self._inputs))
        sides = _Branches()

        def in_branches() -> list[torch.Tensor]:
            with sides:
                return self._built.run(self._inputs, instrument=sides)

        try:
            branched, branched_outputs = captured(in_branches)
        except errors.TuningError as error:
            _log.warning("the network has no branches: %s", error)
            return in_order, outputs
        if sides.n_branches < 2:
            return in_order, outputs
        with _captures():
            in_order_us, branched_us = _medians_us([in_order, branched])
        self.branching = Branching(sides.n_branches, branched_us, in_order_us)
        return (branched, branched_outputs) if self.branching.pays else (in_order, outputs)


def warm_up(call: Callable[[], object]) -> None:
    """Calls on a side stream, as PyTorch wants them before a capture.

    Raises:
        TuningError: they fail, for want of memory above all.
    """
    current = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with _captures(), torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            call()
    current.wait_stream(side)


@contextlib.contextmanager
def _captures() -> Iterator[None]:
    """What PyTorch and TVM raise while calls are captured is a TuningError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise errors.TuningError(f"the calls cannot be captured: {lines[0]}") from error


def captured(call: Callable[[], _Result]) -> tuple[torch.cuda.CUDAGraph, _Result]:
    """The graph of what a call launches, and what it returned.

    Raises:
        TuningError: it cannot be captured; PyTorch goes on as before.
    """
    graph, generators = torch.cuda.CUDAGraph(), torch.cuda.default_generators
    generator, stream = generators[torch.cuda.current_device()], torch.cuda.current_stream()
    before = generator.clone_state()
    try:
        with _own_workspaces(), _captures(), torch.cuda.graph(graph):
            return graph, call()
    except BaseException:
        # PyTorch would go on on the stream that was captured, its random numbers as in a capture
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(before)
        raise


@contextlib.contextmanager
def _own_workspaces() -> Iterator[None]:
    """Products that are captured have workspaces in memory of their graph.

    cuBLAS keeps one for each stream. One of an earlier capture lies in the memory of that graph,
    which may be freed before this one; so all are made anew, and given back to their graph.
    """
    clear: Callable[[], None] = torch._C._cuda_clearCublasWorkspaces
    clear()
    try:
        yield
    finally:
        clear()


def _medians_us(graphs: Sequence[torch.cuda.CUDAGraph]) -> list[float]:
    """The time of a replay of each graph, in turns."""
    stream = torch.cuda.current_stream()
    latencies_us: list[list[float]] = [[] for _ in graphs]
    for turn in range(_TURNS + 1):
        for graph, own_us in zip(graphs, latencies_us, strict=True):
            begin = _recorded(stream, enable_timing=True)
            graph.replay()
            end = _recorded(stream, enable_timing=True)
            end.synchronize()
            if turn:  # the first replay of a graph takes its kernels to the GPU
                own_us.append(begin.elapsed_time(end) * 1e3)
    return [statistics.median(own_us) for own_us in latencies_us]


class _Branches:
    """Puts the calls of a virtual machine on streams while PyTorch's current one is captured.

    It is what `VirtualMachine.set_instrument` wants. A call writes those arguments that were
    made since the last call; a call that has none of them is taken to write all.
    """

    def __init__(self) -> None:
        self._order = Order()
        self._streams: list[torch.cuda.Stream] = []
        self._ended: list[torch.cuda.Event] = []
        self._made: set[int] = set()
        self._inside = contextlib.ExitStack()

    @property
    def n_branches(self) -> int:
        """How many branches there are by now."""
        return len(self._streams)

    def __enter__(self) -> _Branches:
        self._main = torch.cuda.current_stream()
        self._begun = _recorded(self._main)
        return self

    def __exit__(self, *_error: object) -> None:
        """What follows in the captured stream waits for all branches."""
        self._inside.close()
        for call in self._order.last_calls:
            if call < len(self._ended):  # else it raised, and the capture fails
                self._main.wait_event(self._ended[call])

    def __call__(
        self, _function: object, symbol: str, is_before: bool, result: object, *arguments: Any
    ) -> int:
        """One step of the virtual machine, before and after it; 0: it runs as ever."""
        if symbol.startswith("vm.builtin."):
            if not is_before and isinstance(result, tvm.runtime.Tensor) and "alloc" in symbol:
                self._made.add(result.data_ptr())
        elif is_before:
            tensors = [each for each in arguments if isinstance(each, tvm.runtime.Tensor)]
            self._begin(tensors)
        else:
            self._ended.append(_recorded(torch.cuda.current_stream()))
            self._inside.close()
        return 0

    def _begin(self, tensors: Sequence[tvm.runtime.Tensor]) -> None:
        """Let what is launched next be in the stream of its branch."""
        made = [each for each in tensors if each.data_ptr() in self._made]
        self._made -= {each.data_ptr() for each in made}
        place = self._order.place(_spans(tensors), _spans(made or tensors))
        if place.branch == len(self._streams):
            stream = _other_stream(self._streams) if self._streams else self._main
            stream.wait_event(self._begun)
            self._streams.append(stream)
        stream = self._streams[place.branch]
        for call in place.waits_for:
            stream.wait_event(self._ended[call])
        self._inside.enter_context(tvm_ffi.use_torch_stream(torch.cuda.stream(stream)))


def _other_stream(used: Sequence[torch.cuda.Stream]) -> torch.cuda.Stream:
    """A stream that is none of these; PyTorch's pool has more than there are branches."""
    handles = {each.cuda_stream for each in used}
    make: Any = torch.cuda.Stream
    pooled: Iterator[torch.cuda.Stream] = (make() for _ in range(_POOLED_STREAMS))
    return next(each for each in pooled if each.cuda_stream not in handles)


def _recorded(stream: torch.cuda.Stream, enable_timing: bool = False) -> torch.cuda.Event:
    make: Any = torch.cuda.Event
    event: torch.cuda.Event = make(enable_timing=enable_timing)
    event.record(stream)
    return event


def _spans(tensors: Sequence[tvm.runtime.Tensor]) -> list[Span]:
    """The memory of tensors; those without elements have none."""
    sizes = [(each.data_ptr(), each.numel() * each.dtype.itemsize) for each in tensors]
    return [(begin, begin + size) for begin, size in sizes if size]
