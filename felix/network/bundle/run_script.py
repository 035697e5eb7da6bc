"""Load, check and time a tuned network: `python run.py` in its folder.

Needs TVM and numpy, not Felix; torch, too, where PyTorch's operators run a part of the network. It
verifies the files against the manifest, runs the network on the stored inputs, compares the
outputs with the stored ones, then times calls with warm caches. Exit
status: 0 if everything agrees, 1 with one line on stderr otherwise.

In a program of your own, with tensors of TVM or of PyTorch, or arrays of numpy:

    network = run.Network("net/")
    outputs = network(*inputs)      # a list
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

import numpy as np

from felix.artifact.run_common import (
    Failure,
    checked_manifest,
    command_line,
    device_of,
    difference,
    loaded,
    module_of,
    tvm_for,
)

HERE = pathlib.Path(__file__).resolve().parent
#: Seconds that timing takes at most.
BUDGET_S = 10.0
#: TVM's programs expect tensors to begin at a multiple of this.
ALIGNMENT_BYTES = 64
#: Of names of modules, which other code does not find by their files' names.
PREFIX = "_felix_network_"


class Network:
    """The network in a folder.

    Args:
        folder: where `manifest.json` is.
    """

    def __init__(self, folder: str | os.PathLike[str] = HERE) -> None:
        self._folder = pathlib.Path(folder)
        self.manifest = checked_manifest(self._folder)
        self._tvm = tvm = tvm_for(self.manifest, self._folder, PREFIX)
        self.device = device_of(tvm, "this network", self.manifest["target"]["kind"])
        _register(tvm, self._folder, self.manifest.get("pytorch", {}))
        _register_tensor_maps(tvm, self._folder, self.manifest)
        machine = tvm.relax.VirtualMachine(loaded(tvm, self._folder, "network.so"), self.device)
        self._main = machine["main"]
        # Memory for intermediate values, made once: `main` takes it behind all else.
        has_workspace = machine.module.implements_function("workspace")
        self._workspace = list(machine["workspace"]()) if has_workspace else []
        stored = self.load("parameters.bin")
        parameters = [stored[f"p{i}"] for i in range(self.manifest["n_parameters"])]
        if self.manifest.get("prepacks", False):
            parameters = list(machine["main_transform_params"](tuple(parameters)))
        self._parameters = parameters

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs of one call; inputs as `inputs` in the manifest says."""
        specs = self.manifest["inputs"]
        if len(inputs) != len(specs):
            raise Failure(f"the network takes {len(specs)} inputs, not {len(inputs)}")
        ready = [self._ready(*pair) for pair in zip(inputs, specs, strict=True)]
        outputs = self._main(*ready, *self._parameters, *self._workspace)
        return [outputs] if hasattr(outputs, "shape") else list(outputs)

    def load(self, name: str) -> dict[str, Any]:
        """The tensors of a file of the folder, on the device."""
        host = self._tvm.runtime.load_param_dict_from_file(str(self._folder / name))
        if self.device == self._tvm.cpu():
            return dict(host)
        return {key: value.copyto(self.device) for key, value in host.items()}

    def _ready(self, value: Any, spec: dict[str, Any]) -> Any:
        """An input as the network reads it: whole, aligned; an array of numpy on the device."""
        dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        shape = [int(extent) for extent in getattr(value, "shape", ())]
        if dtype != spec["dtype"] or shape != spec["shape"]:
            raise Failure(
                f"the input {spec['name']} is {dtype} {shape}, not {spec['dtype']} {spec['shape']}"
            )
        if isinstance(value, np.ndarray):
            return self._tvm.runtime.tensor(value.copy(order="C"), self.device)
        if not hasattr(value, "is_contiguous") or not hasattr(value, "detach"):
            return value
        whole = value.detach().contiguous()
        return whole if whole.data_ptr() % ALIGNMENT_BYTES == 0 else whole.clone()


def main() -> int:
    """Check and time; the exit status."""
    return command_line("this tuned network", lambda repeats: run(Network(), repeats), _lines)


def _lines(report: dict[str, Any]) -> list[str]:
    return [
        f"{report['network']} on {report['device']}",
        f"  agrees with the stored outputs (largest relative error {report['max_error']:.1e})",
        f"  {report['latency_us']:.1f} us a call, warm caches",
    ]


def run(network: Network, repeats: int) -> dict[str, Any]:
    """Check a network against its examples and time it."""
    examples = network.load("examples.bin")
    manifest = network.manifest
    inputs = [examples[f"input{i}"] for i in range(len(manifest["inputs"]))]
    outputs = network(*inputs)
    if len(outputs) != len(manifest["outputs"]):
        raise Failure(f"{len(outputs)} outputs, not {len(manifest['outputs'])}")
    worst = 0.0
    for number, output in enumerate(outputs):
        error = difference(
            output.numpy(), examples[f"output{number}"].numpy(), manifest["tolerance"] == 0
        )
        if not error <= manifest["tolerance"]:
            raise Failure(
                f"output {number} differs from the stored one: relative error {error:.1e}, "
                f"tolerance {manifest['tolerance']:.1e}"
            )
        worst = max(worst, error)
    return {
        "network": manifest["network"],
        "device": manifest["device"],
        "max_error": worst,
        "latency_us": _time_us(network, inputs, repeats),
    }


def _register(tvm: Any, folder: pathlib.Path, forms: dict[str, str]) -> None:
    """Make what PyTorch runs known to TVM."""
    if not forms:
        return
    try:
        import torch
    except ImportError as error:
        raise Failure(
            f"PyTorch's operators run a part of this network: pip install torch ({error})"
        ) from None
    del torch
    functions = module_of(folder, "torch_functions", PREFIX)
    for name, form in forms.items():
        tvm.register_global_func(name, functions.packed(form), override=True)


def _register_tensor_maps(tvm: Any, folder: pathlib.Path, manifest: dict[str, Any]) -> None:
    """Make known to TVM what encodes the tensor maps that its own runtime cannot."""
    if "driver.py" not in manifest["files"]:
        return
    driver, launch_plan = (module_of(folder, name, PREFIX) for name in ("driver", "launch_plan"))

    def encode(descriptor: Any, pointer: Any, text: str) -> None:
        driver.fill(descriptor, launch_plan.tensor_map_of(json.loads(text)), pointer)

    tvm.register_global_func("felix.encode_im2col_tensor_map", encode, override=True)


def _time_us(network: Network, inputs: list[Any], repeats: int) -> float:
    latencies_us: list[float] = []
    end = time.perf_counter() + BUDGET_S
    while len(latencies_us) < repeats and (not latencies_us or time.perf_counter() < end):
        network.device.sync()
        begin = time.perf_counter()
        network(*inputs)
        network.device.sync()
        latencies_us.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(latencies_us)


if __name__ == "__main__":
    sys.exit(main())
