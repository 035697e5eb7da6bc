"""TVM's evolutionary search behind Felix's search protocol."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import felix
from benchmarks.support.searches import tvm_search
from felix.metaschedule import trace_lookup
from felix.search import interface, scoring
from felix.tuning import options
from tests.support import tuning_fakes

SMALL = tvm_search.TVMEvolutionOptions(population=32, generations=2, init_unmeasured=8, threads=1)


class Model(torch.nn.Module):
    """Any deterministic function of the rows that real sketches have."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return 1e-3 * (rows.mean(dim=2) * mask).sum(dim=1)


@pytest.fixture(scope="module")
def task() -> felix.Task:
    return felix.workloads.gemm(64, 64, 64, target="llvm -num-cores 2", epilogue="bias+relu")


@pytest.fixture(scope="module")
def sketches(task: felix.Task) -> list[felix.Sketch]:
    return felix.trace_sketches(task)


def make(sketches: Any, model: Any = None, seed: int = 5) -> tvm_search.TVMEvolutionarySearch:
    return tvm_search.TVMEvolutionarySearch(sketches, model or Model(), SMALL, seed)


def measured(
    candidates: list[interface.Candidate],
) -> list[tuple[interface.Candidate, float | None]]:
    """The last one failed; the first is the fastest."""
    return [(s, 10.0 + i) for i, s in enumerate(candidates[:-1])] + [(candidates[-1], None)]


def test_proposes_new_legal_candidates_every_round(sketches: list[felix.Sketch]) -> None:
    search = make(sketches)
    earlier: set[interface.Key] = set()
    for _ in range(3):
        candidates = search.ask(5)
        assert len(candidates) == 5
        assert not {s.key for s in candidates} & earlier
        earlier |= {s.key for s in candidates}
        for candidate in candidates:
            sketches[candidate.sketch_index].schedule(np.asarray(candidate.decisions))
        search.tell(measured(candidates))


def test_goes_on_from_stored_state(sketches: list[felix.Sketch]) -> None:
    first = make(sketches)
    candidates = first.ask(6)
    first.tell(measured(candidates))
    state = json.loads(json.dumps(first.state_dict()))
    second = make(sketches)
    second.load_state_dict(state)
    assert second.history.measured == first.history.measured
    further = second.ask(6)
    assert further and not {s.key for s in further} & {s.key for s in candidates}


def test_same_seed_same_candidates(sketches: list[felix.Sketch]) -> None:
    def keys(seed: int) -> list[interface.Key]:
        return [s.key for s in make(sketches, seed=seed).ask(6)]

    assert keys(1) == keys(1)
    assert keys(1) != keys(2)


def test_best_measured_are_bred_from_and_the_model_ranks(sketches: list[felix.Sketch]) -> None:
    search = make(sketches)
    candidates = search.ask(6)
    predicted_us = [s.predicted_us for s in candidates[:-1]]
    assert predicted_us == sorted(predicted_us)
    search.tell(measured(candidates))
    records = search._database.get_all_tuning_records()
    assert len(records) == 5  # the failed one is no parent
    fastest = min(records, key=lambda record: float(record.run_secs[0]))
    scorer = trace_lookup.TraceScorer(scoring.Scorer(sketches, Model()), sketches)
    assert scorer.find(fastest.trace) == candidates[0].key


def test_tunes_in_the_round_loop(task: felix.Task) -> None:
    pool = tuning_fakes.Pool(latency_of=lambda mod: 5.0 + len(str(mod)) % 97)
    chosen = options.TuneOptions(
        round_size=4, lookahead=0.0, baseline=False, make_search=make, pool=lambda task: pool
    )
    result = felix.tune(task, trials=8, options=chosen)
    assert len(result.records) == 8
    assert result.best.latency_us == min(r.latency_us for r in result.records)
    assert len({(r.sketch_index, r.decisions) for r in result.records}) == 8
