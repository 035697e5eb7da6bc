"""Collecting for GPUs: the built-in workloads, and where schedules come from."""

from __future__ import annotations

import datetime
import pathlib
from collections import Counter
from concurrent.futures import Future
from typing import Any

import numpy as np

from benchmarks.support import subgraphs
from costmodel.cli import collect
from costmodel.collect import collector as collecting
from costmodel.collect import descent, proposals
from costmodel.data import dataset, felix_bridge, workloads_gpu
from felix.measure import protocol
from felix.workloads import catalogue

TARGET = felix_bridge.target_text("h200")


def test_builtin_workloads_are_many_valid_and_not_those_of_the_benchmarks() -> None:
    lines = workloads_gpu.lines()
    assert len(set(lines)) == len(lines) >= 1000
    assert sum(",dtype=float16" in line for line in lines) >= 50
    counts = Counter(line.partition(":")[0] for line in lines)
    assert set(counts) == set(catalogue.OPERATORS)
    assert lines == workloads_gpu.lines()
    parsed = [catalogue.parse_params(line) for line in lines]
    held_out = [catalogue.parse_params(text) for text in subgraphs.EVERY.values()]
    assert len(held_out) >= 29 and not [one for one in held_out if one in parsed]
    for line in lines[:: len(lines) // 12]:
        assert felix_bridge.workload(line).min_bytes > 0


def test_schedules_come_from_descent_neighbours_and_chance(tmp_path: pathlib.Path) -> None:
    model = collect._model(None, TARGET)
    opened: list[proposals.OpenWorkload] = []
    submitted: list[Any] = []

    def submit(mod: Any) -> Future[protocol.Measurement]:
        submitted.append(mod)
        future: Future[protocol.Measurement] = Future()
        latency_us = 10.0 + len(mod.script()) % 97
        future.set_result(protocol.Measurement.timed([latency_us], checked=True))
        return future

    def open_workload(workload: dataset.Workload) -> proposals.OpenWorkload:
        sketches = felix_bridge.sketches_of(felix_bridge.task_of(workload, TARGET))
        search = descent.search(sketches, model, seed=0)
        opened.append(proposals.OpenWorkload(workload, sketches, submit, search=search))
        return opened[-1]

    workload = felix_bridge.workload("gemm:64,96,128")
    options = proposals.CollectOptions(
        target=TARGET,
        tvm="0",
        per_workload=24,
        turn=12,
        guided=0.0,
        near=0.25,
        descend=0.25,
        tournament=2,
    )
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with dataset.Writer(tmp_path) as writer:
        writer.add_workloads([workload])
        environment = collecting.Environment(
            open_workload, lambda: 0.0, lambda: now, collect._predictor(model)
        )
        progress = collecting.collect(environment, [workload], writer, (), options)
    records = dataset.read(tmp_path).records
    assert progress.measured == len(records) == len(submitted) == 24
    sources = Counter(record.source for record in records)
    assert sources["descent"] == 6 and sources["neighbour"] >= 1 and sources["random"] >= 12
    assert len({record.identity for record in records}) == 24
    search = opened[0].search
    assert len(search.history.measured) == 24


def test_some_sketches_are_drawn_evenly_and_keep_their_order() -> None:
    names: Any = ["a", "b", "c", "d", "e"]
    assert proposals.some_of(names, None, 1) == proposals.some_of(names, 9, 1) == names
    drawn = [proposals.some_of(names, 3, seed) for seed in range(200)]
    assert all(chosen == sorted(set(chosen)) and len(chosen) == 3 for chosen in drawn)
    counts = Counter(name for chosen in drawn for name in chosen)
    assert set(counts) == set(names) and min(counts.values()) > 90
    assert proposals.some_of(names, 3, 7) == proposals.some_of(names, 3, 7)


def test_a_search_of_some_sketches_counts_them_from_0() -> None:
    """The number of a sketch is its place among all of the task's."""
    workload = felix_bridge.workload("gemm:64,96,128")
    sketches = felix_bridge.sketches_of(felix_bridge.task_of(workload, TARGET))[1:3]
    model = collect._model(None, TARGET)
    search = descent.search(sketches, model, seed=0)
    opened = proposals.OpenWorkload(workload, sketches, Future, search=search)
    state = proposals.WorkloadState(opened, set(), Counter())
    options = proposals.CollectOptions(TARGET, "0", descend=1.0)
    candidates = list(proposals.Proposer(options, None).propose(state, 6))
    assert {c.source for c in candidates} == {"descent"} and len(candidates) == 6
    for candidate in candidates:
        assert candidate.sketch.schedule(candidate.decisions).mod is not None
        named = opened.suggestion(candidate.sketch.key, candidate.decisions)
        assert sketches[named.sketch_index] is candidate.sketch


def test_a_tournament_prefers_what_is_predicted_to_be_fast() -> None:
    model = collect._model(None, TARGET)
    predict = collect._predictor(model)
    workload = felix_bridge.workload("gemm:128,128,128")
    (sketch, *_) = felix_bridge.sketches_of(felix_bridge.task_of(workload, TARGET))
    means = {}
    for size in (1, 4):
        options = proposals.CollectOptions(target=TARGET, tvm="0", tournament=size)
        proposer = proposals.Proposer(options, predict)
        rows = proposer._preferred(sketch, sketch.sample(64, seed=5))
        assert len(rows) == 64 // size
        means[size] = float(np.mean(predict(sketch, rows)))
    assert means[4] < means[1]
