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
from collections.abc import Callable
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
)

#: From inputs by name to outputs by name.
Reference = Callable[[dict[str, Any]], dict[str, Any]]

NO_LIBRARY = "this bundle has no compiled library; see the notes in manifest.json"
HERE = pathlib.Path(__file__).resolve().parent
#: Calls are timed in so many bursts, this far apart, and in this time at most.
N_BURSTS, PAUSE_S, BUDGET_S = 8, 0.2, 30.0
#: Arrays of up to so many bytes in all get new places for each burst.
MOVED_BYTES = 64 << 20
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
#: A program with more operations is not computed by numpy beside a GPU.
NUMPY_FLOPS = 1e10
#: Outputs with fewer results are computed for more inputs, of so many elements, to say how large
#: results are: terms of a sum may cancel, and its rounding errors remain.
MIN_RESULTS, MAX_DRAWN, MIN_DRAWS = 16, 2**26, 3


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
    if manifest.get("kind") == "generated":
        return _run_generated(manifest, repeats)
    threads = manifest["target"].get("num-cores")
    if threads:
        os.environ.setdefault("TVM_NUM_THREADS", str(threads))
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    try:  # without torch, which TVM would spend seconds on and nothing here needs
        import tvm
    except ImportError as error:
        raise Failure(f"TVM is needed: pip install apache-tvm ({error})") from None
    device = device_of(tvm, "this kernel", manifest["target"]["kind"])
    if manifest["library"] is None:
        raise Failure(NO_LIBRARY)
    kernel = loaded(tvm, HERE, manifest["library"])
    inputs, expected, sizes = _references(tvm, manifest)
    arrays = [inputs.get(arg["name"], _poison(arg)) for arg in manifest["arguments"]]
    tensors = [tvm.runtime.tensor(array, device) for array in arrays]
    kernel["main"](*tensors)
    device.sync()
    outputs = {
        arg["name"]: tensor.numpy()
        for arg, tensor in zip(manifest["arguments"], tensors, strict=True)
        if arg["is_output"]
    }
    checked = _checked(outputs, expected, sizes, manifest)
    latency_us = _time_us(tvm, kernel, device, tensors, repeats, _guard(tvm, manifest))
    return _report(manifest, checked, latency_us)


def _checked(
    outputs: dict[str, Any],
    expected: dict[str, Any],
    sizes: dict[str, float],
    manifest: dict[str, Any],
) -> dict[str, float]:
    """The largest relative error by reference; `sizes` are of results of each output."""
    largest = {}
    for name, reference in expected.items():
        errors = {
            key: largest_error(
                output, reference[key], sizes[key], is_exact=manifest["tolerance"] == 0
            )
            for key, output in outputs.items()
        }
        for key, error in errors.items():
            if error > manifest["tolerance"]:
                raise Failure(
                    f"output {key} differs from {name}: relative error {error:.1e},"
                    f" tolerance {manifest['tolerance']:.1e}"
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


def _run_generated(manifest: dict[str, Any], repeats: int) -> dict[str, Any]:
    """What `run` does, for a generated kernel."""
    if manifest["library"] is None:
        raise Failure(NO_LIBRARY)
    driver, player = _module("driver"), _module("player")
    try:
        context = driver.Context()
        inputs, expected, sizes = _references_on_gpu(context, player, manifest)
        program = _program(context, player, "plan.json", manifest["library"], manifest, inputs)
        program.run()
        checked = _checked(_outputs(program, manifest), expected, sizes, manifest)
        timer = player.Timer(context, (HERE / "helpers.cubin").read_bytes())
        latency_us = timer.median_us(program, repeats)
    except driver.NoDriver as error:
        raise Failure(f"this kernel needs a cuda device and there is none here: {error}") from None
    except driver.DriverError as error:
        raise Failure(f"the GPU's driver refuses it: {error}") from None
    return _report(manifest, checked, latency_us)


def _references_on_gpu(
    context: Any, player: Any, manifest: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """Inputs by name, expected outputs by reference and name, and sizes of their results."""

    def compute(inputs: dict[str, Any]) -> dict[str, Any]:
        files = ("reference.json", "reference.cubin")
        program = _program(context, player, *files, manifest, inputs)
        program.run()
        outputs = _outputs(program, manifest)
        program.free()
        return outputs

    references: dict[str, Reference] = {}
    if "reference.cubin" in manifest["files"]:
        references["the unscheduled program"] = compute
    if "oracle.py" in manifest["files"] and manifest["task"]["flops"] <= NUMPY_FLOPS:
        references["numpy"] = _module("oracle").compute
    return _expected(manifest, references)


def _expected(
    manifest: dict[str, Any], references: dict[str, Reference]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """Inputs by name, outputs by reference and name, root mean squares of results by name.

    The first reference decides whether inputs have to be positive, and how large results are.
    """
    inputs = _inputs(manifest, positive=False)
    if not references:
        return inputs, {}, {}
    first, *others = references
    outputs, positive = references[first](inputs), False
    if not all(np.isfinite(output.astype(np.float64)).all() for output in outputs.values()):
        inputs, positive = _inputs(manifest, positive=True), True
        outputs = references[first](inputs)
    draws = [outputs]
    for number in range(1, 1 + _further_draws(inputs, outputs)):
        draws.append(references[first](_inputs(manifest, positive, number)))
    sizes = {
        name: math.sqrt(np.mean([_mean_square(draw[name]) for draw in draws])) for name in outputs
    }
    return inputs, {first: outputs} | {n: references[n](inputs) for n in others}, sizes


def _further_draws(inputs: dict[str, Any], outputs: dict[str, Any]) -> int:
    sizes = [output.size for output in outputs.values() if output.dtype.kind not in "iub"]
    drawn = sum(array.size for array in inputs.values())
    affordable = max(MAX_DRAWN // max(drawn, 1), MIN_DRAWS)
    least = max(min(sizes, default=MIN_RESULTS), 1)
    return int(min(-(-MIN_RESULTS // least) - 1, affordable))


def _mean_square(output: Any) -> float:
    values = output.astype(np.float64)
    return float(np.mean(np.square(np.where(np.isfinite(values), values, 0.0))))


def _program(
    context: Any,
    player: Any,
    plan: str,
    cubin: str,
    manifest: dict[str, Any],
    inputs: dict[str, Any],
) -> Any:
    """A plan and its cubin, files of the bundle, on the device."""
    text, code = (HERE / plan).read_text(), (HERE / cubin).read_bytes()
    arrays = [inputs.get(arg["name"], _poison(arg)) for arg in manifest["arguments"]]
    launches = _module("launch_plan").LaunchPlan.from_json(text)
    return player.LoadedProgram(context, launches, code, arrays)


def _outputs(program: Any, manifest: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a program on the device, by name."""
    arrays = zip(manifest["arguments"], program.arrays(), strict=True)
    return {arg["name"]: array for arg, array in arrays if arg["is_output"]}


def _inputs(manifest: dict[str, Any], positive: bool, draw: int = 0) -> dict[str, Any]:
    """Random inputs by name, others for each draw."""
    return {
        arg["name"]: _random(arg, [manifest["seed"], index, draw], positive)
        for index, arg in enumerate(manifest["arguments"])
        if arg["is_input"]
    }


def _references(
    tvm: Any, manifest: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """Inputs by name, expected outputs by reference and name, and sizes of their results."""
    text = (HERE / "workload.json").read_text()
    for dtype in FLOAT8:  # which TVM's code for CPUs converts wrongly
        text = text.replace(f'"{dtype}"', '"float32"')
    program = tvm.tirx.build(tvm.ir.load_json(text), "llvm")["main"]

    def compute(inputs: dict[str, Any]) -> dict[str, Any]:
        arrays = [inputs.get(arg["name"], _poison(arg)) for arg in manifest["arguments"]]
        tensors = [tvm.runtime.tensor(_without_float8(array)) for array in arrays]
        program(*tensors)
        return {
            arg["name"]: tensor.numpy().astype(_dtype(arg["dtype"]), copy=False)
            for arg, tensor in zip(manifest["arguments"], tensors, strict=True)
            if arg["is_output"]
        }

    references: dict[str, Reference] = {"the unscheduled program": compute}
    if "oracle.py" in manifest["files"]:
        references["numpy"] = _module("oracle").compute
    return _expected(manifest, references)


def _module(name: str) -> Any:
    """A module beside this file."""
    return module_of(HERE, name)


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


def _dtype(name: str) -> Any:
    if name.startswith(("bfloat", "float8")):
        try:
            import ml_dtypes
        except ImportError:
            raise Failure(
                f"numpy has no {name} without ml_dtypes: pip install ml_dtypes"
            ) from None
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def _without_float8(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype.name in FLOAT8 else array


def _is_float(arg: dict[str, Any]) -> bool:
    return str(arg["dtype"]).startswith(("float", "bfloat"))


def _random(arg: dict[str, Any], seed: list[int], positive: bool) -> Any:
    rng = np.random.default_rng(seed)
    dtype = _dtype(arg["dtype"])
    if _is_float(arg):
        values = rng.random(arg["shape"]) + 0.5 if positive else rng.standard_normal(arg["shape"])
        return values.astype(dtype)
    low, high = (0, 2) if dtype == np.bool_ else (0, 16) if dtype.kind == "u" else (-8, 8)
    if arg["is_full_range"]:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    if arg["is_divisor"]:
        low = 1
    if arg["index_bound"] is not None:
        low, high = 0, arg["index_bound"]
    return rng.integers(low, high, arg["shape"]).astype(dtype)


def _poison(arg: dict[str, Any]) -> Any:
    value = np.nan if _is_float(arg) else 0
    return np.full(arg["shape"], value, dtype=_dtype(arg["dtype"]))


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
