"""A child that computes an ONNX file by ONNX Runtime or ONNX's reference evaluator, confined.

    python -m felix.processes.onnx_engine FOLDER FILE ENGINE THREADS

The folder has the inputs; the child writes the outputs there, and an answer that says who computed
them, or that nobody could.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from felix.processes import confine, policy

RUNTIME, REFERENCE = "ONNX Runtime", "ONNX's reference"
#: Files in the folder.
ANSWER, INPUTS, OUTPUTS = "answer.json", "inputs.npz", "outputs.npz"
#: CPU seconds.
LIMIT_S = 3600


def main(folder: str, path: str, engine: str, threads: str) -> None:
    """Entry of the child: compute and write the outputs."""
    runtime = importlib.import_module("onnxruntime") if engine == RUNTIME else None
    reference = importlib.import_module("onnx.reference")
    confine.confine(
        policy.Policy(folder=folder, scratch=[folder], read=[os.path.dirname(path)], cpu_s=LIMIT_S)
    )
    with np.load(pathlib.Path(folder, INPUTS)) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    try:
        if runtime is not None:
            by, results = (
                f"{engine} {runtime.__version__}",
                _run(runtime, path, inputs, int(threads)),
            )
        else:
            by, results = engine, reference.ReferenceEvaluator(path).run(None, inputs)
        np.savez(pathlib.Path(folder, OUTPUTS), *results)
        answer = {"n": len(results), "by": by}
    except Exception as error:  # whatever an engine raises: nothing is judged then
        answer = {"n": None, "by": type(error).__name__}
    pathlib.Path(folder, ANSWER).write_text(json.dumps(answer))


def _run(runtime: Any, path: str, inputs: Mapping[str, np.ndarray], threads: int) -> list[Any]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {}
    for item in session.get_inputs():
        dtype = _dtype(item.type)
        if item.name in inputs:
            given[item.name] = inputs[item.name].astype(dtype)
        else:  # without elements, or that nothing reads
            shape = [extent if isinstance(extent, int) else 1 for extent in item.shape]
            given[item.name] = np.zeros(shape, dtype)
    results: list[Any] = session.run(None, given)
    return results


def _dtype(kind: str) -> str:
    """NumPy's name of "tensor(float)"."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # at once, whatever threads libraries have
