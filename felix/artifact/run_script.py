"""Load, check and time a tuned kernel: `python run.py` in its folder.

Needs TVM and numpy, not Felix. It verifies the files against the manifest, runs the kernel on
random inputs, compares the outputs with the unscheduled program (`workload.json`, built here)
and with `oracle.py` (the numpy reference) where there is one, then times the kernel with cold
caches. Exit status: 0 if everything agrees, 1 with one line on stderr otherwise.

A generated kernel needs no TVM, but a GPU and its driver: `player.py` runs it, and the unscheduled
program, which is `reference.cubin`.
"""

from __future__ import annotations

import functools
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from felix.artifact.run_common import (
    Failure,
    checked_manifest,
    command_line,
    device_of,
    largest_error,
    loaded,
    module_of,
    tvm_for,
)
from felix.runner.checking.reference import Argument, compute, inputs, np_dtype

#: From the contents of arguments to outputs, by the number of the argument.
Reference = Callable[[Sequence[Any]], dict[int, Any]]

NO_LIBRARY = "this bundle has no compiled library; see the notes in manifest.json"
HERE = pathlib.Path(__file__).resolve().parent
#: A module beside this file, by its name.
_module = functools.partial(module_of, HERE)
#: Calls are timed in so many bursts, this far apart, and in this time at most.
N_BURSTS, PAUSE_S, BUDGET_S = 8, 0.2, 30.0
#: Arrays of up to so many bytes in all get new places for each burst.
MOVED_BYTES = 64 << 20
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
#: A program with more operations is not computed by numpy beside a GPU.
NUMPY_FLOPS = 1e10


def main() -> int:
    """Check and time; the exit status."""
    return command_line("this tuned kernel", lambda repeats: run(manifest(), repeats), _lines)


def manifest() -> dict[str, Any]:
    """What this folder says of itself."""
    return checked_manifest(HERE)


def _lines(report: dict[str, Any]) -> list[str]:
    allowed = f"tolerance {report['tolerance']:.1e}"
    return [
        f"{report['task']} on {report['device']}",
        *(
            f"  agrees with {name} (largest relative error {error:.1e}, {allowed})"
            for name, error in report["checked_against"].items()
        ),
        f"  {report['latency_us']:.2f} us, {report['gflops']:.1f} GFLOP/s"
        f" (tuned: {report['tuned_us']:.2f} us)",
    ]


def run(manifest: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Everything `main` does after reading the manifest."""
    args = _arguments(manifest)
    if manifest.get("kind") == "generated":
        return _run_generated(manifest, args, repeats)
    # without torch, which TVM would spend seconds on and nothing here needs
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    tvm = tvm_for(manifest, HERE)
    device = device_of(tvm, "this kernel", manifest["target"]["kind"])
    if manifest["library"] is None:
        raise Failure(NO_LIBRARY)
    kernel = loaded(tvm, HERE, manifest["library"])
    arrays, expected, sizes = _expected(manifest, args, _unscheduled(tvm, args), math.inf)
    tensors = [tvm.runtime.tensor(array, device) for array in arrays]
    kernel["main"](*tensors)
    device.sync()
    outputs = _outputs(args, [tensor.numpy() for tensor in tensors])
    checked = _checked(outputs, expected, sizes, manifest)
    latency_us = _time_us(tvm, kernel, device, tensors, repeats, _guard(tvm, manifest))
    return _report(manifest, checked, latency_us)


def _arguments(manifest: dict[str, Any]) -> list[Argument]:
    """The arguments of the kernel, of types that numpy has here."""
    args = [Argument(**each) for each in manifest["arguments"]]
    for arg in args:
        try:
            np_dtype(arg.dtype)
        except ImportError:
            raise Failure(
                f"numpy has no {arg.dtype} without ml_dtypes: pip install ml_dtypes"
            ) from None
    return args


def _outputs(args: Sequence[Argument], arrays: Sequence[Any]) -> dict[int, Any]:
    """The outputs among the contents of arguments, by number."""
    return {i: array for i, array in enumerate(arrays) if args[i].is_output}


def _checked(
    outputs: dict[int, Any],
    expected: dict[str, dict[int, Any]],
    sizes: dict[int, float],
    manifest: dict[str, Any],
) -> dict[str, float]:
    """The largest relative error by reference; `sizes` are of results of each output."""
    largest = {}
    for name, reference in expected.items():
        errors = {
            number: largest_error(
                output, reference[number], sizes[number], is_exact=manifest["tolerance"] == 0
            )
            for number, output in outputs.items()
        }
        for number, error in errors.items():
            if error > manifest["tolerance"]:
                raise Failure(
                    f"output {manifest['arguments'][number]['name']} differs from {name}: "
                    f"relative error {error:.1e}, tolerance {manifest['tolerance']:.1e}"
                )
        largest[name] = max(errors.values())
    return largest


def _report(
    manifest: dict[str, Any], checked: dict[str, float], latency_us: float
) -> dict[str, Any]:
    kind, tuned_on = manifest["target"]["kind"], manifest["device"]
    return {
        "task": manifest["task"]["name"],
        "device": tuned_on if kind == "llvm" else f"{kind} (tuned: {tuned_on})",
        "checked_against": checked,
        "tolerance": manifest["tolerance"],
        "latency_us": latency_us,
        "gflops": manifest["task"]["flops"] / latency_us / 1e3,
        "tuned_us": manifest["best"]["latency_us"],
    }


def _run_generated(
    manifest: dict[str, Any], args: Sequence[Argument], repeats: int
) -> dict[str, Any]:
    """What `run` does, for a generated kernel."""
    if manifest["library"] is None:
        raise Failure(NO_LIBRARY)
    driver, player = _module("driver"), _module("player")
    try:
        context = driver.Context()
        unscheduled = None
        if "reference.cubin" in manifest["files"]:
            unscheduled = _unscheduled_on_gpu(context, player, args)
        arrays, expected, sizes = _expected(manifest, args, unscheduled, NUMPY_FLOPS)
        program = _program(context, player, "plan.json", manifest["library"], arrays)
        program.run()
        checked = _checked(_outputs(args, program.arrays()), expected, sizes, manifest)
        timer = player.Timer(context, (HERE / "helpers.cubin").read_bytes())
        latency_us = timer.median_us(program, repeats)
    except driver.NoDriver as error:
        raise Failure(f"this kernel needs a cuda device and there is none here: {error}") from None
    except driver.DriverError as error:
        raise Failure(f"the GPU's driver refuses it: {error}") from None
    return _report(manifest, checked, latency_us)


def _program(context: Any, player: Any, plan: str, cubin: str, arrays: Sequence[Any]) -> Any:
    """A plan and its cubin, files of the bundle, on the device."""
    launches = _module("launch_plan").LaunchPlan.from_json((HERE / plan).read_text())
    return player.LoadedProgram(context, launches, (HERE / cubin).read_bytes(), arrays)


def _unscheduled_on_gpu(context: Any, player: Any, args: Sequence[Argument]) -> Reference:
    def run(arrays: Sequence[Any]) -> dict[int, Any]:
        program = _program(context, player, "reference.json", "reference.cubin", arrays)
        program.run()
        outputs = _outputs(args, program.arrays())
        program.free()
        return outputs

    return run


def _unscheduled(tvm: Any, args: Sequence[Argument]) -> Reference:
    text = (HERE / "workload.json").read_text()
    for dtype in FLOAT8:  # which TVM's code for CPUs converts wrongly
        text = text.replace(f'"{dtype}"', '"float32"')
    program = tvm.tirx.build(tvm.ir.load_json(text), "llvm")["main"]

    def run(arrays: Sequence[Any]) -> dict[int, Any]:
        tensors = [tvm.runtime.tensor(_without_float8(array)) for array in arrays]
        program(*tensors)
        outputs = _outputs(args, [tensor.numpy() for tensor in tensors])
        return {i: array.astype(np_dtype(args[i].dtype)) for i, array in outputs.items()}

    return run


def _oracle(args: Sequence[Argument]) -> Reference:
    """The program as numpy computes it."""
    oracle = _module("oracle")

    def run(arrays: Sequence[Any]) -> dict[int, Any]:
        pairs = list(zip(args, arrays, strict=True))
        computed = oracle.compute({arg.name: array for arg, array in pairs if arg.is_input})
        return {i: computed[arg.name] for i, arg in enumerate(args) if arg.is_output}

    return run


def _expected(
    manifest: dict[str, Any],
    args: Sequence[Argument],
    unscheduled: Reference | None,
    most_numpy_flops: float,
) -> tuple[list[Any], dict[str, dict[int, Any]], dict[int, float]]:
    """Contents of the arguments, outputs by reference, and how large results of each output are.

    The first reference decides whether inputs have to be positive, and how large results are.
    """
    references = {} if unscheduled is None else {"the unscheduled program": unscheduled}
    if "oracle.py" in manifest["files"] and manifest["task"]["flops"] <= most_numpy_flops:
        references["numpy"] = _oracle(args)
    if not references:
        return inputs(args, manifest["seed"], positive=False), {}, {}
    first, *others = references

    def run(seed: int, positive: bool) -> dict[int, Any]:
        return references[first](inputs(args, seed, positive=positive))

    made = compute(run, args, manifest["seed"])
    arrays = inputs(args, manifest["seed"], positive=made.positive)
    expected = {first: made.outputs} | {name: references[name](arrays) for name in others}
    return arrays, expected, made.rms


def _guard(tvm: Any, manifest: dict[str, Any]) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function that times the kernel: on a CPU, when its cores are at full speed."""
    if manifest["target"]["kind"] != "llvm":
        return lambda measure: measure()
    contention = _module("calm")
    threads = int(manifest["target"].get("num-cores") or os.cpu_count() or 1)
    guard = contention.ContentionGuard(
        contention.multiply_adds(tvm.target.Target(manifest["target"]), threads)
    )
    guard.learn()
    return lambda measure: guard.measure_stable(measure)


def _without_float8(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype.name in FLOAT8 else array


def _time_us(
    tvm: Any,
    kernel: Any,
    device: Any,
    tensors: list[Any],
    repeats: int,
    guard: Callable[[Callable[[], Any]], Any],
) -> float:
    """Median latency of single calls with cold caches, in bursts as when the tuner re-measures.

    Between bursts the cores rest, so that the host of a virtual machine may place them anew, and
    small arrays change their places in memory, which are worth some percent.
    """
    settings: dict[str, Any] = {"cache_flush_bytes": 1 << 28}
    if device.dlpack_device_type() == 1:
        flush = tvm.get_global_func("cache_flush_cpu_non_first_arg")
        spared = tvm.runtime.tensor(np.zeros(1, "int32"))
        tvm.register_global_func("run.flush", lambda *args: flush(spared, *args), override=True)
        settings = {"f_preproc": "run.flush"}

    def burst(calls: int) -> list[float]:
        timer = kernel.time_evaluator("main", device, number=1, repeat=calls, **settings)
        return list(timer(*places[-1]).results)

    arrays, places, seconds = [tensor.numpy() for tensor in tensors], [tensors], []
    start, calls = time.perf_counter(), 1
    while calls > 0:
        seconds += guard(functools.partial(burst, calls))
        done, spent_s = len(seconds), time.perf_counter() - start
        affordable = int((BUDGET_S - spent_s) * done / spent_s)
        calls = min(math.ceil(repeats / N_BURSTS), repeats - done, affordable)
        if calls > 0:
            time.sleep(PAUSE_S)
            if sum(array.nbytes for array in arrays) <= MOVED_BYTES:
                places.append([tvm.runtime.tensor(array, device) for array in arrays])
    return float(statistics.median(seconds)) * 1e6


if __name__ == "__main__":
    sys.exit(main())
