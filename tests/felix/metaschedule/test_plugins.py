"""The MetaSchedule plug-ins inside stock `ms.tune_tir`.

One run uses TVM's own builder and runner processes; the others replace both by functions.
`tvm.s_tir.tensor_intrin` is an empty module here, in the build workers too: importing it parses
every tensor intrinsic, 20 s and more, and none of them is used."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

import felix
from costmodel.online import finetune
from felix import errors
from felix.metaschedule import cost_model, search_strategy, trace_lookup
from felix.search import cost_model as models
from felix.search import descent, gradient, scoring
from tests.support import share

sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("tvm.s_tir.tensor_intrin"))

SMALL = gradient.GradientOptions(
    n_seeds=4, n_samples=16, n_polish=1, descent=descent.DescentOptions(steps=10)
)
#: How a cost model learns in a run.
QUICK = finetune.FineTuneOptions(steps=6)
#: Half of a first round is random.
HALF_RANDOM = dataclasses.replace(
    SMALL, warm_selection=dataclasses.replace(SMALL.warm_selection, random_share=0.5)
)


@derived_object
class Builder(ms.builder.PyBuilder):
    """Builds nothing; the artifact's path says which candidate it was."""

    def __init__(self) -> None:
        self.mods: list[Any] = []

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        first = len(self.mods)
        self.mods += [item.mod for item in build_inputs]
        paths = [pathlib.Path(tempfile.mkdtemp(), str(i)) for i in range(first, len(self.mods))]
        return [ms.builder.BuilderResult(str(path), None) for path in paths]


@derived_object
class Done(ms.runner.PyRunnerFuture):
    """A result that is there already."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if self._seconds is None:
            return ms.runner.RunnerResult(None, "it crashed")
        return ms.runner.RunnerResult([self._seconds], None)


@derived_object
class Runner(ms.runner.PyRunner):
    """Every third candidate fails; the others take a made-up time."""

    def __init__(self) -> None:
        self.seconds: list[float | None] = []

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        futures = []
        for item in runner_inputs:
            number = int(pathlib.Path(item.artifact_path).name)
            self.seconds.append(None if number % 3 == 2 else 1e-5 * (1 + number % 5))
            futures.append(Done(self.seconds[-1]))
        return futures


def space(kind: str = "llvm") -> Any:
    return ms.space_generator.PostOrderApply(sch_rules=kind, postprocs=kind, mutator_probs=kind)


def tune(task: felix.Task, folder: pathlib.Path, **options: Any) -> Any:
    """Stock `ms.tune_tir`, without processes unless options say so."""
    arguments = {
        "max_trials_global": 8,
        "num_trials_per_iter": 4,
        "builder": Builder(),
        "runner": Runner(),
        "num_tuning_cores": 1,
        "seed": 3,
        "space": space(),
        **options,
    }
    # pytest hangs handlers without names on this logger, which TVM cannot bear
    logging.getLogger("tvm.s_tir.meta_schedule").handlers.clear()
    with mock.patch.object(models, "fine_tuning", lambda seed: QUICK):
        return ms.tune_tir(task.mod, task.target, work_dir=str(folder), **arguments)


def proposed(
    task: felix.Task, folder: pathlib.Path, sizes: Any = SMALL, **options: Any
) -> list[Any]:
    """The modules that a search of these sizes has built."""
    builder, strategy = Builder(), search_strategy.GradientSearch(options=sizes)
    tune(task, folder, strategy=strategy, cost_model="random", builder=builder, **options)
    return builder.mods


@pytest.fixture(scope="module")
def task() -> felix.Task:
    return TRACED[0]()


def context_of(task: felix.Task, strategy: Any = None) -> Any:
    return ms.TuneContext(
        mod=task.mod,
        target=task.target,
        space_generator=space(),
        search_strategy=strategy,
        task_name=task.name,
        rand_state=7,
        num_threads=1,
        logger=logging.getLogger("felix.tests"),
    )


@functools.cache
def scheduled(task: felix.Task) -> list[list[Any]]:
    """Six legal candidates of every sketch of a task."""
    candidates = []
    for sketch in felix.trace_sketches(task):
        schedules = [sketch.schedule(row) for row in sketch.sample(6, seed=2)]
        candidates.append(
            [
                ms.search_strategy.MeasureCandidate(
                    schedule,
                    ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True),
                )
                for schedule in schedules
            ]
        )
    return candidates


def candidates_of(task: felix.Task, n: int = 6) -> list[Any]:
    """Legal candidates of every sketch, n of each."""
    return [candidate for of_sketch in scheduled(task) for candidate in of_sketch[:n]]


def times(us: Sequence[float | None]) -> list[Any]:
    return [
        ms.runner.RunnerResult(None, "failed")
        if value is None
        else ms.runner.RunnerResult([value * 1e-6], None)
        for value in us
    ]


@pytest.mark.slow("starts builders and runners of TVM")
def test_tunes_with_tvms_own_builder_and_runner(task: felix.Task, tmp_path: pathlib.Path) -> None:
    model = cost_model.MLPCostModel()
    database = tune(
        task,
        tmp_path,
        strategy=search_strategy.GradientSearch(model, options=SMALL),
        cost_model=model,
        builder=ms.builder.LocalBuilder(
            max_workers=2,
            initializer=lambda: __import__("sys").modules.setdefault(
                "tvm.s_tir.tensor_intrin", __import__("types").ModuleType("stub")
            ),
        ),
        runner=ms.runner.LocalRunner(
            evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=0)
        ),
    )
    records = database.get_all_tuning_records()
    ran = [r for r in records if float(r.run_secs[0]) < 1e9]
    assert len(records) == 8
    assert len(ran) >= 7, [[float(s) for s in r.run_secs] for r in records]
    best = ms.tir_integration.compile_tir(database, task.mod, task.target)
    assert best is not None and not best.mod["main"].body.same_as(task.mod["main"].body)


@pytest.mark.parametrize(
    ("shared", "random"),
    [(True, False), (False, False), (True, True)],
    ids=["one model", "two models", "the strategy's model beside TVM's"],
)
def test_both_plug_ins_learn_once(
    shared: bool, random: bool, task: felix.Task, tmp_path: pathlib.Path
) -> None:
    model, runner = cost_model.MLPCostModel(), Runner()
    strategy = search_strategy.GradientSearch(model if shared else None, options=SMALL)
    of_tvm = "random" if random else model
    database = tune(task, tmp_path, strategy=strategy, cost_model=of_tvm, runner=runner)
    n_ran = sum(s is not None for s in runner.seconds)
    assert len(runner.seconds) == 8 and n_ran < 8  # some failed
    assert len(model.online._network.tuner) == n_ran
    traces = {"\n".join(r.trace.as_python(True)) for r in database.get_all_tuning_records()}
    assert len(traces) == 8


def test_cost_model_serves_tvms_evolutionary_search(
    task: felix.Task, tmp_path: pathlib.Path
) -> None:
    model = cost_model.MLPCostModel()
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=24, init_min_unmeasured=8, genetic_num_iters=1
    )
    database = tune(task, tmp_path, strategy=strategy, cost_model=model)
    assert len(database.get_all_tuning_records()) == 8
    assert len(model.online._network.tuner) > 0


@pytest.mark.parametrize("n_structures", share.of([2, 0], 1))
def test_same_seed_same_candidates(
    n_structures: int, task: felix.Task, tmp_path: pathlib.Path
) -> None:
    sizes = dataclasses.replace(HALF_RANDOM, n_structures=n_structures)

    def mods(name: str, seed: int) -> list[str]:
        made = proposed(task, tmp_path / name, sizes, seed=seed, max_trials_global=4)
        return [str(mod) for mod in made]

    first = mods("a", 5)
    assert first == mods("b", 5)
    assert first != mods("c", 6)


def test_proposes_cuda_schedules_without_a_gpu(tmp_path: pathlib.Path) -> None:
    gpu = felix.workloads.gemm(64, 64, 64, target="cuda -arch=sm_80")
    builder, model = Builder(), cost_model.MLPCostModel()
    tune(
        gpu,
        tmp_path,
        strategy=search_strategy.GradientSearch(model, options=SMALL),
        cost_model=model,
        builder=builder,
        space=space("cuda"),
    )
    assert len({str(mod) for mod in builder.mods}) == 8
    assert all("threadIdx.x" in str(mod) for mod in builder.mods)


def test_a_small_space_ends_the_task(tmp_path: pathlib.Path) -> None:
    small = felix.workloads.elementwise((7,), target="llvm -num-cores 2")
    assert 0 < len(proposed(small, tmp_path, max_trials_global=64)) < 64


@pytest.mark.slow("tunes until the model has learnt")
def test_predictions_rank_what_was_learnt(task: felix.Task) -> None:
    candidates = candidates_of(task)
    context = context_of(task)
    model = cost_model.MLPCostModel()
    latencies_us = [10.0 * 1.2**i for i in range(len(candidates))]
    for _ in range(3):
        model.update(context, candidates, times(latencies_us))
    scores = model.predict(context, candidates)
    assert scores.dtype == np.float64 and (scores > 0).all()
    assert np.corrcoef(np.log(scores), -np.log(latencies_us))[0, 1] > 0.8


def test_failed_runs_teach_the_model_nothing(task: felix.Task) -> None:
    candidates = candidates_of(task, 2)
    model = cost_model.MLPCostModel()
    sentinel = ms.runner.RunnerResult([1e16], None)
    results = [*times([None] * (len(candidates) - 1)), sentinel]
    model.update(context_of(task), candidates, results)
    assert model.online._network is None


def test_save_and_load(task: felix.Task, tmp_path: pathlib.Path) -> None:
    candidates, context = candidates_of(task, 4), context_of(task)
    model = cost_model.MLPCostModel()
    path = tmp_path / "model.safetensors"
    with pytest.raises(errors.CheckpointError):
        model.save(str(path))
    model.update(context, candidates, times([5.0 + i for i in range(len(candidates))]))
    model.save(str(path))
    other = cost_model.MLPCostModel()
    other.load(str(path))
    ratio = model.predict(context, candidates) / other.predict(context, candidates)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    path.write_bytes(b"nothing")
    with pytest.raises(errors.CheckpointError):
        other.load(str(path))


def test_unknown_traces_get_the_median_score(
    task: felix.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates, context = candidates_of(task, 3), context_of(task)
    model = cost_model.MLPCostModel()
    known = candidates[0].sch.trace.simplified(True).as_python(True)
    n_known_instructions = len(known)
    make = cost_model.Workload.sketch

    def only_the_first(self: Any, trace: Any, number: int) -> Any:
        if len(trace.insts) != n_known_instructions:
            raise errors.UnsupportedSchedule("for the test")
        return make(self, trace, number)

    monkeypatch.setattr(cost_model.Workload, "sketch", only_the_first)
    scores = model.predict(context, candidates)
    np.testing.assert_allclose(scores[3:], np.median(scores[:3]))
    monkeypatch.setattr(cost_model.Workload, "sketch", _refuse)
    assert cost_model.MLPCostModel().predict(context, candidates).tolist() == [1.0] * 9


def test_an_unmodelled_design_space_is_left_out(
    task: felix.Task, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, refused = cost_model.Workload.sketch, []

    def not_the_first(self: Any, trace: Any, number: int) -> Any:
        if not refused:
            refused.append(trace)
            raise errors.UnsupportedSchedule("for the test")
        return make(self, trace, number)

    monkeypatch.setattr(cost_model.Workload, "sketch", not_the_first)
    assert len(proposed(task, tmp_path)) == 8


def test_errors_arrive_with_their_type_and_the_strategy_can_be_used_again(
    task: felix.Task, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = search_strategy.GradientSearch(options=SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(cost_model.Workload, "sketch", _refuse)
        with pytest.raises(errors.TuningError, match=r"no design space .* for the test"):
            tune(task, tmp_path / "a", strategy=strategy, cost_model="random")
    with pytest.raises(errors.TuningError, match="before pre_tuning"):
        strategy.generate_measure_candidates()
    builder = Builder()
    tune(task, tmp_path / "b", strategy=strategy, cost_model="random", builder=builder)
    assert len(builder.mods) == 8


def test_a_model_of_another_device_is_refused(task: felix.Task) -> None:
    model = cost_model.MLPCostModel()
    model.predict(context_of(task), candidates_of(task, 1))
    gpu = felix.workloads.gemm(64, 64, 64, target="cuda -arch=sm_80")
    sketch = felix.trace_sketches(gpu)[0]
    schedule = sketch.schedule(sketch.sample(1, seed=1)[0])
    candidate = ms.search_strategy.MeasureCandidate(schedule, [])
    context = ms.TuneContext(mod=gpu.mod, target=gpu.target, num_threads=1)
    with pytest.raises(errors.TuningError, match="serves llvm"):
        model.predict(context, [candidate])


def _refuse(*args: Any) -> Callable[..., Any]:
    raise errors.UnsupportedSchedule("for the test")


def test_the_package_offers_all_plug_ins() -> None:
    assert felix.metaschedule.GradientSearch is search_strategy.GradientSearch
    assert felix.metaschedule.MLPCostModel is cost_model.MLPCostModel
    with pytest.raises(AttributeError):
        _ = felix.metaschedule.NoSuchName


# --------------------------------------------------------- traces of TVM as sketches and decisions


class Model(torch.nn.Module):
    """Any deterministic function of the rows that real sketches have."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return 1e-3 * (rows.mean(dim=2) * mask).sum(dim=1)


def trace_scorer(sketches: list[felix.Sketch]) -> trace_lookup.TraceScorer:
    return trace_lookup.TraceScorer(scoring.Scorer(sketches, Model()), sketches)


TRACED = [
    lambda: felix.workloads.gemm(64, 64, 64, target="llvm -num-cores 2", epilogue="bias+relu"),
    lambda: felix.workloads.softmax((64, 64), target="llvm -num-cores 2"),
    lambda: felix.workloads.conv2d(1, 8, 8, 16, 16, 3, padding=1, target="cuda -arch=sm_80"),
]


@pytest.mark.parametrize("make_task", share.of(TRACED, 1))
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


def test_a_trace_of_no_sketch_is_unknown() -> None:
    sketches = felix.trace_sketches(TRACED[0]())
    scorer = trace_scorer(sketches[:1])
    other = sketches[1].schedule(sketches[1].sample(1, seed=1)[0]).trace
    known = sketches[0].schedule(sketches[0].sample(1, seed=1)[0]).trace
    assert scorer.find(other) is None
    assert np.isnan(scorer.predict([other, known])).tolist() == [True, False]
    with pytest.raises(errors.UnsupportedSchedule):
        scorer.sketch_of(other)
