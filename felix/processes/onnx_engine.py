"""A child that computes an ONNX file by ONNX Runtime or ONNX's reference evaluator, confined.

    request: [folder, file, engine, threads]; answer: {"n": outputs or null, "by": who, or why not}

The folder has the inputs; the child writes the outputs there. Floats of 16 bits are inputs and
outputs as float32; a file that an engine does not run with them is computed in float32 throughout.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from felix.processes import child, confine, policy

RUNTIME, REFERENCE = "ONNX Runtime", "ONNX's reference"
#: Files in the folder.
INPUTS, OUTPUTS = "inputs.npz", "outputs.npz"
#: CPU seconds.
LIMIT_S = 3600
#: A larger file is not computed in float32.
MOST_BYTES = 1 << 30
#: Attributes that are element types.
_TYPES = ("to", "dtype", "output_dtype")


def main(question: child.Question) -> None:
    """Entry of the child: compute and write the outputs."""
    folder, path, engine, threads = question.request
    runtime = importlib.import_module("onnxruntime") if engine == RUNTIME else None
    reference = importlib.import_module("onnx.reference")
    confine.confine(
        policy.Policy(
            folder=folder, scratch=[folder], read=[os.path.dirname(path)], cpu_s=LIMIT_S
        ),
        question.descriptors,
    )
    with np.load(pathlib.Path(folder, INPUTS)) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    answer: dict[str, Any] = {}
    for read in (str, _in_float32):
        try:
            model = read(path)
            if runtime is not None:
                by = f"{engine} {runtime.__version__}"
                results = _run(runtime, model, inputs, threads)
            else:
                by, results = engine, reference.ReferenceEvaluator(model).run(None, inputs)
            np.savez(pathlib.Path(folder, OUTPUTS), *map(_as_float32, results))
            answer = {"n": len(results), "by": by}
            break
        except Exception as error:  # whatever an engine raises: nothing is judged then
            answer = answer or {"n": None, "by": type(error).__name__}
    question.answer(answer)


def _in_float32(path: str) -> bytes:
    """A file with float32 in the place of the floats of 16 bits.

    Raises:
        ValueError: it is too large, or has none.
    """
    onnx = importlib.import_module("onnx")
    model = onnx.load(path)
    if model.ByteSize() > MOST_BYTES:
        raise ValueError("the file is too large")
    halves = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    if not _widen(onnx, model, halves):
        raise ValueError("it has no floats of 16 bits")
    content: bytes = model.SerializeToString()
    return content


def _widen(onnx: Any, message: Any, halves: Collection[int]) -> bool:
    """Give a message, and those inside, float32 for other types; whether it has had any."""
    kind = message.DESCRIPTOR.name
    if kind == "TensorProto":
        if message.data_type not in halves:
            return False
        wide = onnx.numpy_helper.to_array(message).astype(np.float32)
        message.CopyFrom(onnx.numpy_helper.from_array(wide, message.name))
        return True
    found = False
    if kind == "Tensor" and message.elem_type in halves:  # of a type
        message.elem_type, found = onnx.TensorProto.FLOAT, True
    if kind == "AttributeProto" and message.name in _TYPES and message.i in halves:
        message.i, found = onnx.TensorProto.FLOAT, True
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                found |= _widen(onnx, each, halves)
    return found


def _as_float32(result: Any) -> np.ndarray:
    array = np.asarray(result)
    return array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array


def _run(
    runtime: Any, model: str | bytes, inputs: Mapping[str, np.ndarray], threads: int
) -> list[Any]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
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
    main(child.Question(sys.argv[1]))
    os._exit(0)  # at once, whatever threads libraries have
