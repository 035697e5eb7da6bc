"""TVM's evolutionary search behind Felix's search protocol, and traces of TVM as decisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import felix
from felix import errors
from felix.measure import protocol
from felix.metaschedule import trace_lookup, tvm_search
from felix.search import interface, scoring, strategies
from felix.tuning import options
from felix.tuning import strategies as tuning_strategies
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


def make(kind: str, sketches: list[felix.Sketch], seed: int = 5) -> Any:
    return tuning_strategies.make_search(kind, sketches, Model(), SMALL, seed)


def trace_scorer(sketches: list[felix.Sketch]) -> trace_lookup.TraceScorer:
    return trace_lookup.TraceScorer(scoring.Scorer(sketches, Model()), sketches)


def measured(
    suggestions: list[interface.Suggestion],
) -> list[tuple[interface.Suggestion, protocol.Measurement]]:
    """The last one failed; the first is the fastest."""
    good = [(s, protocol.Measurement.timed([10.0 + i])) for i, s in enumerate(suggestions[:-1])]
    failed = protocol.Measurement(error=protocol.ErrorClass.TIMEOUT, message="too slow")
    return [*good, (suggestions[-1], failed)]


@pytest.mark.parametrize("kind", ["tvm-evolutionary", "tvm-xgb"])
def test_proposes_new_legal_candidates_every_round(
    kind: str, sketches: list[felix.Sketch]
) -> None:
    search = make(kind, sketches)
    earlier: set[interface.Key] = set()
    for _ in range(3):
        suggestions = search.suggest(5)
        assert len(suggestions) == 5
        assert not {s.key for s in suggestions} & earlier
        earlier |= {s.key for s in suggestions}
        for suggestion in suggestions:
            sketches[suggestion.sketch_index].schedule(np.asarray(suggestion.decisions))
        search.update(measured(suggestions))


@pytest.mark.parametrize("kind", ["tvm-evolutionary", "tvm-xgb"])
def test_goes_on_from_stored_state(kind: str, sketches: list[felix.Sketch]) -> None:
    first = make(kind, sketches)
    suggestions = first.suggest(6)
    first.update(measured(suggestions))
    state = json.loads(json.dumps(first.state_dict()))
    second = make(kind, sketches)
    second.load_state_dict(state)
    assert second.history.measured == first.history.measured
    further = second.suggest(6)
    assert further and not {s.key for s in further} & {s.key for s in suggestions}


def test_same_seed_same_candidates(sketches: list[felix.Sketch]) -> None:
    def keys(seed: int) -> list[interface.Key]:
        return [s.key for s in make("tvm-evolutionary", sketches, seed).suggest(6)]

    assert keys(1) == keys(1)
    assert keys(1) != keys(2)


def test_best_measured_are_bred_from_and_the_model_ranks(sketches: list[felix.Sketch]) -> None:
    search = make("tvm-evolutionary", sketches)
    suggestions = search.suggest(6)
    predicted_us = [s.predicted_us for s in suggestions[:-1]]
    assert predicted_us == sorted(predicted_us)
    search.update(measured(suggestions))
    records = search._database.get_all_tuning_records()
    assert len(records) == 5  # the failed one is no parent
    fastest = min(records, key=lambda record: float(record.run_secs[0]))
    scorer = trace_scorer(sketches)
    assert scorer.find(fastest.trace) == suggestions[0].key


def test_xgboost_missing_is_one_clear_error(
    sketches: list[felix.Sketch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm_search.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.TuningError, match=r"pip install .*baselines"):
        make("tvm-xgb", sketches)


@pytest.mark.parametrize("kind", ["tvm-evolutionary", "tvm-xgb"])
def test_tunes_in_the_round_loop(kind: str, task: felix.Task) -> None:
    pool = tuning_fakes.Pool(latency_of=lambda mod: 5.0 + len(str(mod)) % 97)
    chosen = options.TuneOptions(
        round_size=4, lookahead=0.0, baseline=False, search=SMALL, pool=lambda task: pool
    )
    assert kind in strategies.NAMES
    result = felix.tune(task, trials=8, strategy=kind, options=chosen)
    assert len(result.records) == 8
    assert result.best.latency_us == min(r.measurement.latency_us for r in result.records)
    assert len({(r.sketch_index, r.decisions) for r in result.records}) == 8


@pytest.mark.parametrize(
    "make_task",
    [
        lambda: felix.workloads.gemm(64, 64, 64, target="llvm -num-cores 2", epilogue="bias+relu"),
        lambda: felix.workloads.softmax((64, 64), target="llvm -num-cores 2"),
        lambda: felix.workloads.conv2d(1, 8, 8, 16, 16, 3, padding=1, target="cuda -arch=sm_80"),
    ],
    ids=["gemm-llvm", "softmax-llvm", "conv2d-cuda"],
)
def test_traces_after_postprocessors_give_their_decisions(
    make_task: Callable[[], felix.Task],
) -> None:
    sketches = felix.trace_sketches(make_task())
    scorer = trace_scorer(sketches)
    for index, sketch in enumerate(sketches):
        for row in sketch.sample(3, seed=1):
            trace = sketch.schedule(row).trace
            assert len(trace.insts) != len(sketch.trace.insts)  # postprocessors are appended
            assert scorer.find(trace) == (index, tuple(row.tolist()))
            ln_latency = scorer.scorer.predict(index, row[None])
            np.testing.assert_allclose(scorer.predict([trace]), ln_latency)


def test_a_trace_of_no_sketch_is_unknown(sketches: list[felix.Sketch], task: felix.Task) -> None:
    scorer = trace_scorer(sketches[:1])
    other = sketches[1].schedule(sketches[1].sample(1, seed=1)[0]).trace
    known = sketches[0].schedule(sketches[0].sample(1, seed=1)[0]).trace
    assert scorer.find(other) is None
    assert np.isnan(scorer.predict([other, known])).tolist() == [True, False]
    with pytest.raises(errors.UnsupportedSchedule):
        scorer.sketch_of(other)
