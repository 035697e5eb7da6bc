"""Planned groups of whole networks: they agree with PyTorch, and are fewer than by fixed rules;
moves inside of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, te, tirx, topi

from benchmarks.networks import catalogue
from benchmarks.support.verify import compare
from felix import frontend
from felix.frontend import Fusion, Grouping
from felix.frontend.programs import lowering, outlining
from felix.frontend.programs.planning import possible_groups, reading
from tests.felix.frontend.planning.test_norms import costs
from tests.felix.frontend.test_networks import TOLERANCE, assert_agrees, run, small
from tests.support import share

PLANNED = Grouping(Fusion.PLANNED)


@pytest.mark.slow("builds a whole network")
@pytest.mark.parametrize(
    "name, dtype", share.of(share.crossed(catalogue.NETWORKS, [torch.bfloat16, torch.float32]), 1)
)
def test_planned_networks_agree_with_pytorch(name, dtype):
    model, args, imported = small(name, dtype)
    module = frontend.lowered(imported, "llvm", PLANNED)
    with torch.no_grad():
        assert_agrees(run(imported, module, args), model(*args), TOLERANCE[dtype])


@pytest.mark.slow("plans a whole network")
@pytest.mark.parametrize("name", share.of(["vit_b32", "bert_base", "llama"], 1))
@pytest.mark.parametrize("rules", share.of([lowering.by_rules, relax.transform.FuseOps()], 1))
def test_planned_transformers_call_fewer_programs(name, rules):
    _, _, imported = small(name)
    n_calls = [
        frontend.calls(frontend.lowered(imported, "llvm", grouping)).total()
        for grouping in (PLANNED, Grouping(Fusion.RULES, rules=rules))
    ]
    assert n_calls[0] < n_calls[1]


@pytest.mark.slow("plans a whole network")
def test_heads_are_read_where_the_projection_has_them():
    module = frontend.lowered(small("vit_b32")[2], "llvm", PLANNED)
    names = [variable.name_hint for variable in module.get_global_vars()]
    text = module[next(name for name in names if "NT_m" in name and "slice" in name)].script()
    assert "[T.int64(0), v_i2, v_i1 * T.int64(8) + v_k]" in text  # a row, and a head's column
    assert "//" not in text
    # Queries are read in place, keys of the same tensor are moved: four programs are one.
    moved = [name for name in names if "slice" in name and "_m" not in name]
    assert len(moved) == 1


def reads_in_place(task):
    """Whether a product reads the projection of queries, keys and values."""
    func = task.mod["main"]
    shapes = [tuple(map(int, param.shape)) for param in func.params[:-1]]
    return (1, 17, 96) in shapes and "matmul" in func.script()


#: Finds no schedule for programs that move elements in front of a product.
REFUSING = costs(lambda task: None if reads_in_place(task) else 1)


def _names(imported, known):
    module = frontend.lowered(imported, "llvm", Grouping(Fusion.PLANNED, known))
    return set(frontend.calls(module))


def in_place(names):
    return {name for name in names if "slice" in name and "_m" in name}


@pytest.mark.slow("plans a whole network")
def test_candidates_without_schedules_are_not_chosen():
    model, args, imported = small("vit_b32")
    assert in_place(_names(imported, None))
    assert not in_place(_names(imported, REFUSING))
    module = frontend.lowered(imported, "llvm", Grouping(Fusion.PLANNED, REFUSING))
    with torch.no_grad():
        assert_agrees(run(imported, module, args), model(*args), TOLERANCE[torch.float32])


@pytest.mark.slow("plans a whole network four times")
def test_measured_latencies_decide_where_all_of_the_choice_are_known():
    imported = small("vit_b32")[2]
    by_estimates = _names(imported, None)

    def latency_us(task):
        return 100.0 if reads_in_place(task) else 1.0

    assert not in_place(_names(imported, costs(latency_us=latency_us)))

    def unknown_of_softmax(task):
        return None if task.name == "softmax" else latency_us(task)

    assert _names(imported, costs(latency_us=unknown_of_softmax)) == by_estimates


@pytest.mark.slow("enumerates every iteration of programs of a network")
@pytest.mark.parametrize("target", ["llvm -num-cores 2", "nvidia/nvidia-h100"])
def test_programs_that_read_in_place_are_modelled_exactly(target):
    module = frontend.lowered(small("vit_b32")[2], target, PLANNED)
    tasks = [item.task for item in frontend.model_tasks(module, target).tasks]
    checked = [task for task in tasks if reads_in_place(task)]
    assert len(checked) >= 2
    for task in checked:
        report = compare.check(task, n=3)
        assert report.checked and not report.mismatches and not report.invalid


@pytest.mark.slow("plans a whole network twice")
@pytest.mark.parametrize("name", share.of(catalogue.NETWORKS, 1))
def test_groups_of_fuseops_are_candidates(name, monkeypatch):
    readings = []
    read = reading.read
    monkeypatch.setattr(reading, "read", lambda mod: readings.append(read(mod)) or readings[-1])
    frontend.lowered(small(name)[2], "llvm", PLANNED)
    (made,) = readings
    several = [group for group in made.by_fuseops if len(group) > 1]
    assert several
    assert sorted(n for group in made.by_fuseops for n in group) == list(range(len(made.calls)))
    for group in several:  # only the last value is read outside
        assert all(made.graph.readers[n] <= set(group) for n in group[:-1])
        assert not made.graph.outputs & set(group[:-1])
    every = {each.members for each in possible_groups.enumerate_all(made.graph)}
    by_itself = sum(frozenset(group) in every for group in several)
    assert by_itself >= 0.8 * len(several)


# Moves inside programs: simple indices, the same results.


def heads(x, start):
    """Columns [start, start + 32) of x [1, 6, 96] as [4, 6, 8]: a row of 8 for each head."""
    part = topi.strided_slice(x, [0, 0, start], [1, 6, start + 32])
    split = topi.transpose(topi.reshape(part, (1, 6, 4, 8)), (0, 2, 1, 3))
    return topi.reshape(split, (4, 6, 8))


def product(a, b):
    k = te.reduce_axis((0, 8), "k")
    return te.compute(
        (4, 6, 6), lambda h, i, j: te.sum(a[h, i, k] * b[h, j, k], axis=k), name="scores"
    )


def results(func, *arrays):
    out = np.zeros([int(n) for n in func.params[-1].shape], "float32")
    tensors = [tvm.runtime.tensor(each) for each in (*arrays, out)]
    tvm.build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")(*tensors)
    return tensors[-1].numpy()


def test_a_product_reads_the_tensor_that_was_moved():
    x, y = te.placeholder((1, 6, 96), name="x"), te.placeholder((4, 6, 8), name="y")
    func = te.create_prim_func([x, y, product(heads(x, 32), y)])
    simple = outlining.inline_moves(func)
    text = simple.script()
    assert "x[0, v_i, v_h * 8 + v_k + 32]" in text
    assert "//" not in text and "sblock_alloc_buffer" not in text
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(shape, "float32") for shape in ((1, 6, 96), (4, 6, 8))]
    np.testing.assert_allclose(results(simple, *arrays), results(func, *arrays), rtol=1e-6)


def test_a_sum_still_reads_what_it_stores():
    x, y = te.placeholder((1, 6, 96), name="x"), te.placeholder((1, 6, 8), name="y")
    k = te.reduce_axis((0, 8), "k")
    moved = topi.reshape(topi.strided_slice(x, [0, 0, 0], [1, 6, 8]), (1, 6, 8))
    out = te.compute((1, 6), lambda b, i: te.sum(moved[b, i, k] * y[b, i, k], axis=k), name="out")
    simple = outlining.inline_moves(te.create_prim_func([x, y, out]))
    assert "out[v_b, v_i] = out[v_b, v_i] + " in simple.script()


@pytest.mark.parametrize("kind", ["alone", "elementwise", "gathered"])
def test_other_programs_stay_as_they_are(kind):
    x = te.placeholder((4, 6), name="x")
    rows = te.placeholder((3,), "int32", name="rows")
    tensors = {
        "alone": [x, topi.transpose(x)],
        "elementwise": [x, topi.exp(topi.tanh(x))],
        "gathered": [x, rows, topi.exp(topi.take(x, rows, axis=0, mode="fast"))],
    }[kind]
    func = te.create_prim_func(tensors)
    assert outlining.inline_moves(func).same_as(func)
    assert isinstance(func, tirx.PrimFunc)
