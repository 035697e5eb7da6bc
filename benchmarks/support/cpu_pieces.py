"""The pieces of `benchmarks/cpu_tuning.py`, each in its process: tuning with a tool, comparing.

A comparison times all winners, and PyTorch where it is installed, in turns with one timer: by the
clock around a call from Python. PyTorch runs eager, with as many threads, in every layout that the
operator has; the best one counts. It allocates its output, as a user's call would.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import math
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.support import common

STOCK = "stock"
TOOLS = ("felix", STOCK)
COMPARE = "compare"
#: PyTorch in a comparison.
TORCH = "torch"
#: TVM's sentinels for a failed run are beyond this.
FAILED_US = 1e14
#: Turns of every call, and repeats in a turn, of `MIN_REPEAT_S` where calls are warm.
TURNS, REPEATS, MIN_REPEAT_S = 10, 5, 0.02
#: Between turns, so that idle threads of another library sleep.
PAUSE_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """What is timed, and the tensors that are flushed from the caches before a cold call."""

    call: Callable[[], object]
    tensors: list[Any]


def run(request: dict[str, Any]) -> None:
    """Do the piece that a request asks for, and write what it gives beside the piece's file."""
    path = pathlib.Path(request["path"])
    work = {"felix": _tune_felix, COMPARE: _compare}.get(request["tool"], _tune_stock)
    common.write(path.with_suffix(".piece"), work(request, path.parent))


def _tune_felix(request: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    import tempfile

    import felix
    from felix import workloads

    with tempfile.TemporaryDirectory() as cache:
        os.environ["FELIX_CACHE_DIR"] = cache
        task = workloads.parse(request["workload"])
        start = time.perf_counter()
        result = felix.tune(task, trials=request["trials"], seed=request["seed"])
        wall_s = time.perf_counter() - start
    _write_module(folder / "felix.module", result.best.schedule.mod, task.target)
    return {
        "wall_s": wall_s,
        "n_measured": len(result.records),
        "n_ran": sum(r.measured.ok for r in result.records),
    }


def _tune_stock(request: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    import tempfile

    from felix import workloads
    from felix.target import cpu

    importlib.import_module("tvm.s_tir.tensor_intrin")
    from tvm.s_tir import meta_schedule as ms

    task = workloads.parse(request["workload"])
    cores = cpu.available_cores()
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        database = ms.tune_tir(
            task.mod,
            task.target,
            work_dir=scratch,
            max_trials_global=request["trials"],
            builder=ms.builder.LocalBuilder(max_workers=cores, timeout_sec=common.STOCK_BUILD_S),
            num_tuning_cores=cores,
            seed=request["seed"] + 1,
        )
        wall_s = time.perf_counter() - start
        best = ms.tir_integration.compile_tir(database, task.mod, task.target)
        times = [
            sorted(float(s) * 1e6 for s in record.run_secs or ())
            for record in database.get_all_tuning_records()
        ]
    ran = [t[len(t) // 2] for t in times if t and t[-1] < FAILED_US]
    if best is None or not ran:
        raise RuntimeError("stock tuning found no schedule that runs")
    _write_module(folder / f"{request['tool']}.module", best.mod, task.target)
    return {"wall_s": wall_s, "n_measured": len(times), "n_ran": len(ran)}


def _write_module(path: pathlib.Path, mod: Any, target: Any) -> None:
    import tvm

    path.write_text(tvm.ir.save_json([mod, target]))


def _compare(request: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Check the winners, then time them and PyTorch in turns.

    Felix's are compiled as they ship (`felix.builder.build`), the others by TVM alone.
    """
    import tvm

    from felix import target, workloads
    from felix.builder import build, task_program
    from felix.runner.checking import reference

    task = workloads.parse(request["workload"])
    args = task_program.arguments(task.mod)
    contents = reference.inputs(args, 0, positive=False)
    expected = _outputs(
        tvm.tirx.build(task_program.scheduled(task.mod), task.target), args, contents
    )
    calls, results = {}, {}
    for tool in TOOLS:
        if not (folder / f"{tool}.module").exists():
            continue
        mod, built_for = tvm.ir.load_json((folder / f"{tool}.module").read_text())
        compile_ = build.module if tool == "felix" else tvm.tirx.build
        library = compile_(mod, built_for)
        outputs = _outputs(library, args, contents)
        wrong = [
            reference.mismatch(outputs[i], expected[i], task_program.tolerance(task.mod))
            for i in expected
        ]
        results[tool] = {"correct": not any(wrong), "mismatch": next(filter(None, wrong), "")}
        tensors = [tvm.runtime.tensor(array) for array in contents]
        calls[tool] = Call(functools.partial(library["main"], *tensors), tensors)
    by_layout = _torch_calls(request["workload"])
    hardware = target.hardware(task.target)
    cache_bytes = hardware.l3_bytes or hardware.l2_bytes
    for name, flush in (("cold", True), ("warm", False)):
        for tool, times in _in_turns(calls | by_layout, flush, cache_bytes).items():
            result = results.setdefault(tool, {})
            result[f"{name}_us"] = statistics.median(times)
    return _with_best_layout(results, by_layout)


def _torch_calls(workload: str) -> dict[str, Call]:
    """PyTorch's call in each layout, its weights in PyTorch's order; none without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch
    import tvm

    from benchmarks.support.searches import vendor
    from felix.target import cpu

    torch.set_num_threads(cpu.available_cores())
    torch.set_grad_enabled(False)
    calls = {}
    for layout, (operator, params) in vendor.variants(workload).items():
        call, inputs = vendor.program(operator, params, "cpu")
        flat = [tvm.runtime.from_dlpack(each.as_strided((each.numel(),), (1,))) for each in inputs]
        calls[f"{TORCH}: {layout}"] = Call(functools.partial(call, *inputs), flat)
    return calls


def _with_best_layout(
    results: dict[str, dict[str, Any]], by_layout: Mapping[str, Call]
) -> dict[str, Any]:
    """The results with one entry for PyTorch, whose latencies are those of its best layouts."""
    if not by_layout:
        return results
    layouts = {layout: results.pop(layout) for layout in by_layout}
    best = {key: min(times[key] for times in layouts.values()) for key in ("cold_us", "warm_us")}
    return results | {TORCH: best}


def _outputs(library: Any, args: Any, contents: Any) -> dict[int, Any]:
    import tvm

    tensors = [tvm.runtime.tensor(array) for array in contents]
    library["main"](*tensors)
    return {i: tensors[i].numpy() for i, arg in enumerate(args) if arg.is_output}


def _in_turns(calls: Mapping[str, Call], flush: bool, cache_bytes: int) -> dict[str, list[float]]:
    """Latencies of every call in us, a few repeats at a time, in an order that alternates."""
    from felix.runner.cpu import timing as cpu_timing

    empty = cpu_timing.flusher(cache_bytes)
    times: dict[str, list[float]] = {tool: [] for tool in calls}
    for turn in range(TURNS):
        for tool in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            timed = calls[tool]
            time.sleep(PAUSE_S)
            bundle = 1 if flush else math.ceil(MIN_REPEAT_S / _seconds(timed.call, 1))
            _seconds(timed.call, 1)
            for _ in range(REPEATS):
                if flush:
                    empty(*timed.tensors)
                times[tool].append(_seconds(timed.call, bundle) / bundle * 1e6)
    return times


def _seconds(call: Callable[[], object], n_calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(n_calls):
        call()
    return time.perf_counter() - begin
