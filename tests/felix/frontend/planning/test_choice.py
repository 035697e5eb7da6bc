"""The choice of groups against every choice there is, and what candidates and costs are."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from felix import target
from felix.frontend.programs.planning import graph as cost
from felix.frontend.programs.planning import possible_groups
from felix.frontend.programs.planning.graph import Graph, Operator, Read, Role, candidate

MACHINE = target.hardware("nvidia/nvidia-h100")
MIB = 1 << 20


def operator(role, *reads, shape=(64, 4096), size=MIB, flops=0, n_rows=0):
    return Operator(role, tuple(Read(v, size) for v in reads), shape, size, flops, n_rows)


def random_graph(seed):
    draw = random.Random(seed)
    roles = [Role.ELEMENTWISE, Role.CAST, Role.MOVE, Role.ROWS, Role.CONTRACTION, Role.OPAQUE]
    operators = []
    for number in range(7):
        role = draw.choice(roles)
        values = [-1, *range(max(0, number - 3), number)]
        reads = draw.sample(values, min(len(values), draw.choice([1, 1, 2])))
        operators.append(operator(role, *reads, n_rows=64 * (role is Role.ROWS)))
    graph = Graph(tuple(operators), frozenset({6, draw.randrange(6)}))
    return graph, draw


def cheapest(graph, latency_us):
    """The least cost over all choices of at most one candidate of each root."""
    of_root = [
        [None, *(c for c in latency_us if c.root == n)] for n in range(len(graph.operators))
    ]
    best = float("inf")
    for chosen in itertools.product(*of_root):
        roots = {each.root for each in chosen if each is not None}
        necessary = set(graph.outputs).union(
            *({v for v in each.inputs if v >= 0} for each in chosen if each is not None)
        )
        if necessary <= roots:
            best = min(best, sum(latency_us[each] for each in chosen if each is not None))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_the_cheapest_there_is(seed):
    graph, draw = random_graph(seed)
    every = possible_groups.enumerate_all(graph)
    singles = [candidate(graph, {n}) for n in range(len(graph.operators))]
    offered = set(draw.sample(every, min(len(every), 12))) | set(singles)
    latency_us = {each: draw.uniform(1, 3) + 0.3 * len(each.members) for each in offered}
    chosen = possible_groups.choose(graph, latency_us, [singles])
    assert {each.root for each in chosen} >= graph.outputs
    roots = {each.root for each in chosen}
    assert all(v in roots for each in chosen for v in each.inputs if v >= 0)
    assert sum(latency_us[c] for c in chosen) == pytest.approx(cheapest(graph, latency_us))


def test_the_fallback_stays_where_nothing_is_cheaper():
    graph = Graph((operator(Role.ELEMENTWISE, -1), operator(Role.MOVE, 0)), frozenset({1}))
    whole = candidate(graph, {0, 1})
    singles = [candidate(graph, {0}), candidate(graph, {1})]
    assert (
        possible_groups.choose(graph, dict.fromkeys(singles, 1.0) | {whole: 3.0}, [singles])
        == singles
    )
    assert possible_groups.choose(
        graph, dict.fromkeys(singles, 1.0) | {whole: 1.5}, [singles]
    ) == [whole]


def members(graph):
    return {each.members for each in possible_groups.enumerate_all(graph)}


def test_rows_take_elementwise_operators_before_and_behind_them():
    rows = {"n_rows": 64}
    graph = Graph(
        (
            operator(Role.CAST, -1),
            operator(Role.ROWS, 0, **rows),
            operator(Role.ELEMENTWISE, 1, -2),
            operator(Role.ROWS, 2, **rows),
            operator(Role.CAST, 3),
        ),
        frozenset({4}),
    )
    assert frozenset(range(5)) in members(graph)
    other = dataclasses.replace(graph.operators[3], n_rows=128)
    uneven = dataclasses.replace(
        graph, operators=(*graph.operators[:3], other, graph.operators[4])
    )
    assert not any({1, 3} <= each for each in members(uneven))


def test_contractions_take_moves_but_no_arithmetic_in_front():
    def around(role):
        return Graph(
            (
                operator(role, -1),
                operator(Role.CONTRACTION, 0, -2),
                operator(Role.ELEMENTWISE, 1),
                operator(Role.MOVE, 2),
                operator(Role.ELEMENTWISE, 3),
            ),
            frozenset({4}),
        )

    assert frozenset({0, 1, 2, 3}) in members(around(Role.MOVE))
    assert not any({0, 1} <= each for each in members(around(Role.ELEMENTWISE)))
    assert not any({1, 3, 4} <= each for each in members(around(Role.MOVE)))


def test_moves_one_behind_the_other_join_as_one():
    graph = Graph(
        (
            operator(Role.MOVE, -1),
            operator(Role.VIEW, 0),
            operator(Role.MOVE, 1),
            operator(Role.CONTRACTION, 2, -2),
        ),
        frozenset({3}),
    )
    assert {frozenset({3}), frozenset(range(4))} <= members(graph)
    assert frozenset({2, 3}) not in members(graph)


def test_operands_of_one_tensor_are_not_both_read_in_place():
    graph = Graph(
        (
            operator(Role.OPAQUE, -1),
            operator(Role.MOVE, 0),
            operator(Role.MOVE, 0),
            operator(Role.CONTRACTION, 1, 2),
        ),
        frozenset({3}),
    )
    assert {frozenset({1, 3}), frozenset({2, 3})} <= members(graph)
    assert frozenset({1, 2, 3}) not in members(graph)


def test_only_cheap_operators_are_computed_twice():
    def shared(role):
        return Graph(
            (operator(role, -1, n_rows=64), operator(Role.ELEMENTWISE, 0), operator(Role.CAST, 0)),
            frozenset({1, 2}),
        )

    assert frozenset({0, 1}) in members(shared(Role.MOVE))
    assert frozenset({0, 1}) in members(shared(Role.ELEMENTWISE))
    residual = operator(Role.ELEMENTWISE, -1, -2)
    readers = shared(Role.ELEMENTWISE).operators[1:]
    assert frozenset({0, 1}) not in members(Graph((residual, *readers), frozenset({1, 2})))
    assert frozenset({0, 1}) not in members(shared(Role.ROWS))


def test_a_projection_counts_bytes_launches_and_operations():
    graph = Graph(
        (operator(Role.ELEMENTWISE, -1, -2), operator(Role.CONTRACTION, 0, -3, flops=10**10)),
        frozenset({1}),
    )
    plain = cost.Schedules(n_kernels=1, has_template=False)
    first = cost.projected(graph, candidate(graph, {0}), MACHINE, plain)
    assert first.launch_us == cost.GPU_LAUNCH_US
    assert first.memory_us == pytest.approx(3 * MIB / MACHINE.dram_bandwidth_gbs / 1e3)
    second = cost.projected(graph, candidate(graph, {1}), MACHINE, plain)
    assert second.compute_us == pytest.approx(1e10 / MACHINE.peak_fp32_gflops / 1e3)
    assert second.latency_us == second.launch_us + second.compute_us


def test_the_projection_counts_idle_cores_and_further_kernels():
    graph = Graph((operator(Role.ROWS, -1, n_rows=MACHINE.cores // 4),), frozenset({0}))
    busy = Graph((operator(Role.ROWS, -1, n_rows=MACHINE.cores),), frozenset({0}))
    each = candidate(graph, {0})
    bound, one = (cost.projected(rows, each, MACHINE) for rows in (busy, graph))
    three = cost.projected(graph, each, MACHINE, cost.Schedules(n_kernels=3))
    assert one.memory_us == pytest.approx(bound.memory_us * MACHINE.cores / (MACHINE.cores // 4))
    assert three.launch_us == 3 * one.launch_us and three.memory_us == 2 * one.memory_us
