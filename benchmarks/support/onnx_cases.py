"""Cases of ONNX files: imported, run on this CPU as TVM schedules them, and compared.

A case has a name, a model, data sets (pairs of inputs and outputs) and tolerances, as those of
`onnx.backend.test` have.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx.backend.test.case import node as onnx_cases
from tvm import relax

from felix import frontend, target
from felix.frontend.onnx import conversion

#: Of 16-bit floats: a unit in the last place, relative.
_ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def collected() -> dict[str, Any]:
    """ONNX's own cases of one node each, by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in onnx_cases.collect_testcases(None)}


def by_felix(model: Any, data: Sequence[Sequence[Any]]) -> list[list[np.ndarray]]:
    """The outputs of a model for each list of inputs.

    Raises:
        FelixError: it is refused.
    """
    names = [item.name for item in model.graph.input]
    by_name = [dict(zip(names, inputs, strict=False)) for inputs in data]
    imported = _imported(model.SerializeToString(), by_name[0])
    full = tvm.target.Target({**target.parse("llvm").export(), "opt-level": 0})
    built = relax.build(
        frontend.lowered(imported), target=full, relax_pipeline=relax.get_pipeline("default_build")
    )
    machine = relax.VirtualMachine(built, tvm.cpu())
    found = []
    for inputs in by_name:
        given = [tvm.runtime.tensor(array(inputs[spec.name])) for spec in imported.inputs]
        results = machine["main"](*given, *imported.parameters)
        found.append([each.numpy() for each in results])
    return found


def _imported(content: bytes, inputs: Mapping[str, Any]) -> frontend.ImportedModel:
    """A model, with values of the inputs that shapes and the like follow from."""
    values: dict[str, Any] = {}
    while True:
        try:
            return frontend.import_onnx(content, values=values)
        except conversion.UnknownInput as error:
            found = {name: array(inputs[name]) for name in error.inputs if name in inputs}
            if not found:
                raise
            values |= found


def by_runtime(model: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of a model by ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # Not what it makes of the file: some of its fusions refuse operands that ONNX defines.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    read = {item.name for item in session.get_inputs()}
    given = {name: array(each) for name, each in inputs.items() if name in read}
    outputs: list[Any] = session.run(None, given)
    return outputs


def array(value: Any) -> np.ndarray:
    """A tensor of a case."""
    is_message = isinstance(value, onnx.TensorProto)
    return onnx.numpy_helper.to_array(value) if is_message else np.asarray(value)


def difference(actual: Sequence[np.ndarray], expected: Sequence[Any], case: Any) -> str | None:
    """In what the outputs of a model differ from those expected; None where they do not."""
    for index, (result, value) in enumerate(zip(actual, expected, strict=True)):
        if (why := _difference(result, array(value), case)) is not None:
            return f"output {index}: {why}"
    return None


def _difference(actual: np.ndarray, expected: np.ndarray, case: Any) -> str | None:
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype} {actual.shape}, not {expected.dtype} {expected.shape}"
    wide = (each.astype("float64") for each in (actual, expected))
    rtol = max(case.rtol, 2 * _ROUNDING.get(str(expected.dtype), 0.0))
    if np.allclose(*wide, rtol=rtol, atol=case.atol, equal_nan=True):
        return None
    return "other values"
