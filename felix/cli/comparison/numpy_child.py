"""The process that times numpy: `python -m felix.cli.comparison.numpy_child`."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from typing import Any

from felix.cli.comparison import libraries


def answer(request: Mapping[str, Any]) -> libraries.LibraryTime:
    """The time of the request's numpy program on the inputs of the correctness check."""
    from felix import without_torch  # noqa: F401  (before TVM)

    latency_us = _latency_us(request["source"], request["arguments"])
    threads = libraries.threads(int(os.environ["OPENBLAS_NUM_THREADS"]))
    version = importlib.metadata.version("numpy")
    note = f"{version}, {threads}, cold caches, its allocations included"
    return libraries.LibraryTime(latency_us, note)


def _latency_us(source: str, fields: Sequence[Mapping[str, Any]]) -> float:
    import numpy as np
    import tvm

    from felix.runner.calls import cpu_calls
    from felix.runner.checking import reference

    scope: dict[str, Any] = {}
    exec(compile(source, "oracle.py", "exec"), scope)
    arguments = [reference.Argument(**argument) for argument in fields]
    arrays = reference.inputs(arguments, 0, positive=False)
    tensors = {
        argument.name: tvm.runtime.tensor(array)
        for array, argument in zip(arrays, arguments, strict=True)
        if argument.is_input
    }
    inputs = {name: np.from_dlpack(tensor) for name, tensor in tensors.items()}
    return cpu_calls.median_us(lambda: scope["compute"](inputs), list(tensors.values()))


if __name__ == "__main__":
    libraries.serve(answer)
