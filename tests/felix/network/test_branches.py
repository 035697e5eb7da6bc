"""Which calls run side by side: nothing that needs another call runs before it has ended.

A virtual machine's calls are put on streams without a GPU, too: with streams that only take notes.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import tvm
import tvm_ffi
from torch import nn

from felix import errors, target
from felix.network import cuda_graph, executable, imported
from felix.network.passes import memory
from tests.support import networks, share

Call = tuple[list[cuda_graph.Span], list[cuda_graph.Span]]


def _buffer(number: int) -> cuda_graph.Span:
    return 100 * number, 100 * number + 100


def _placed(calls: list[Call], max_branches: int = 8) -> list[cuda_graph.Place]:
    order = cuda_graph.Order(max_branches)
    return [order.place(reads, writes) for reads, writes in calls]


def _ended_before(places: list[cuda_graph.Place]) -> list[set[int]]:
    """Of each call those that have ended when it begins: in its branch, and what it waits for."""
    last: dict[int, int] = {}
    before: list[set[int]] = []
    for number, place in enumerate(places):
        direct = {*place.waits_for, *([last[place.branch]] if place.branch in last else [])}
        before.append(direct.union(*(before[each] for each in direct)))
        last[place.branch] = number
    return before


def _meet(one: list[cuda_graph.Span], other: list[cuda_graph.Span]) -> bool:
    return any(a < d and c < b for (a, b), (c, d) in itertools.product(one, other))


def test_a_chain_is_one_branch() -> None:
    places = _placed([([_buffer(n)], [_buffer(n + 1)]) for n in range(5)])
    assert places == [cuda_graph.Place(0, ())] * 5


def test_paths_part_and_meet() -> None:
    source, a, b, c, end = map(_buffer, range(5))
    places = _placed(
        [([], [source]), ([source], [a]), ([source], [b]), ([a], [c]), ([b, c], [end])]
    )
    assert [place.branch for place in places] == [0, 0, 1, 0, 0]
    assert [place.waits_for for place in places] == [(), (), (0,), (), (2,)]


def test_memory_that_is_used_again_waits_for_its_readers() -> None:
    a, b, c = map(_buffer, range(3))
    places = _placed([([], [a]), ([a], [b]), ([], [c]), ([c], [a])])
    assert 1 in _ended_before(places)[3]


def test_a_branch_that_has_been_waited_for_is_used_again() -> None:
    source, a, b, end, c, d = map(_buffer, range(6))
    places = _placed(
        [
            ([], [source]),
            ([source], [a]),
            ([source], [b]),
            ([a, b], [end]),
            ([end], [c]),
            ([end], [d]),
        ]
    )
    assert {place.branch for place in places} == {0, 1}


@pytest.mark.parametrize("seed", range(share.rounds(10, 30)))
@pytest.mark.parametrize("max_branches", [1, 2, 8])
def test_conflicting_calls_run_in_order(seed: int, max_branches: int) -> None:
    generator = random.Random(seed)

    def spans(least: int, most: int) -> list[cuda_graph.Span]:
        begins = [generator.randrange(0, 400, 10) for _ in range(generator.randint(least, most))]
        return [(begin, begin + generator.choice([10, 40, 100])) for begin in begins]

    calls: list[Call] = []
    for _ in range(60):
        writes = spans(1, 2)
        calls.append((spans(0, 3) + writes, writes))
    places = _placed(calls, max_branches)
    before = _ended_before(places)
    assert {place.branch for place in places} <= set(range(max_branches))
    for first, second in itertools.combinations(range(len(calls)), 2):
        (reads, writes), (later_reads, later_writes) = calls[first], calls[second]
        if _meet(writes, later_reads + later_writes) or _meet(reads, later_writes):
            assert first in before[second]


def test_independent_calls_use_all_branches() -> None:
    calls: list[Call] = [([], [_buffer(n)]) for n in range(10)]
    places = _placed(calls, max_branches=4)
    assert {place.branch for place in places} == {0, 1, 2, 3}
    assert all(not place.waits_for for place in places)


def _built(model: nn.Module, x: torch.Tensor) -> executable.Executable:
    return networks.built(imported.read(model.eval(), (x,), {}, target.parse("llvm")))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What streams and events are asked to do: (what, stream, event)."""
    taken: list[tuple[str, int, int]] = []
    numbers = itertools.count()

    class Stream:
        def __init__(self) -> None:
            self.cuda_stream = next(numbers)

        def wait_event(self, event: Any) -> None:
            taken.append(("wait", self.cuda_stream, event.number))

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.number = next(events)

        def record(self, stream: Stream) -> None:
            taken.append(("record", stream.cuda_stream, self.number))

    events, current = itertools.count(), [Stream()]

    @contextlib.contextmanager
    def inside(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(tvm_ffi, "use_torch_stream", lambda context: context)
    lift = memory.Lift()
    passes = tvm.transform.Sequential([memory.Separate(), lift])
    monkeypatch.setattr(memory, "Lift", lambda: passes)
    return taken


def test_each_path_has_a_stream(notes: list[tuple[str, int, int]]) -> None:
    x, model = torch.randn(4, 16), networks.Paths(3, 2)
    built, sides = _built(model, x), cuda_graph._Branches()
    with sides:
        outputs = built.run([x], instrument=sides)
    networks.assert_close(tuple(outputs), model(x))
    assert sides.n_branches == 3
    recorded = [stream for what, stream, _ in notes if what == "record"]
    # its beginning, two products on each stream, then what joins the paths and the softmax
    assert [recorded[0], *sorted(recorded[1:7])] == [0, 0, 0, 1, 1, 2, 2]
    assert len(recorded) == 9
    ends = {
        max(event for what, s, event in notes if (what, s) == ("record", stream))
        for stream in range(3)
    }
    waited = [event for what, stream, event in notes[-3:] if (what, stream) == ("wait", 0)]
    assert set(waited) == ends


def test_a_call_that_fails_is_not_waited_for(notes: list[tuple[str, int, int]]) -> None:
    x = torch.randn(4, 16)
    built, sides = _built(networks.Paths(3, 2), x), cuda_graph._Branches()

    def fails(function: Any, symbol: str, is_before: bool, result: Any, *arguments: Any) -> int:
        sides(function, symbol, is_before, result, *arguments)
        if symbol == "concatenate":
            raise ValueError("no more")
        return 0

    with pytest.raises(ValueError, match="no more"), sides:
        built.run([x], instrument=fails)
    assert torch.cuda.current_stream().cuda_stream == 0
    assert len(built([x])) == 2  # without an instrument again


def test_memory_of_a_pool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever captures."""
    x = torch.randn(2, 3)
    built = _built(nn.ReLU(), x)
    built.pool_users = ["sort"]
    assert len(built([x])) == 1
    monkeypatch.setattr(executable, "is_capturing", lambda: True)
    with pytest.raises(errors.TuningError, match="sort takes memory from TVM's pool"):
        built([x])
