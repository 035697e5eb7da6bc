"""What others compute of an ONNX file: ONNX Runtime, and where it differs ONNX's reference.

A file is read by a confined child, from its path where it has one. Models of 16 bits are computed
as these say, which sum in float32.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from felix.processes import child, onnx_engine
from felix.target import cpu

RUNTIME, REFERENCE = onnx_engine.RUNTIME, onnx_engine.REFERENCE
#: Seconds that a judge may take.
LIMIT_S = 120.0
_HALF = (torch.float16, torch.bfloat16)


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """Outputs of a model, or None; `by` says who computed them, or why nobody did.

    Floats of 16 bits are float32.
    """

    outputs: tuple[torch.Tensor, ...] | None
    by: str


def outputs(
    model: str | pathlib.Path | bytes, inputs: Mapping[str, Any], engine: str = RUNTIME
) -> Judgement:
    """What an engine computes of an ONNX file.

    Args:
        model: the file, or its bytes.
        inputs: tensors and values by the names of the model's inputs.
        engine: `RUNTIME` or `REFERENCE`.
    """
    if engine == RUNTIME and importlib.util.find_spec("onnxruntime") is None:
        return Judgement(None, "ONNX Runtime is not installed: pip install onnxruntime")
    arrays: dict[str, Any] = {}
    for name, value in inputs.items():
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.tensor(value)
        arrays[name] = (tensor.float() if tensor.dtype in _HALF else tensor).numpy()
    with tempfile.TemporaryDirectory(prefix="felix-judge-") as folder:
        path = pathlib.Path(folder, "model.onnx")
        if isinstance(model, bytes):
            path.write_bytes(model)
        else:
            path = pathlib.Path(model).resolve()
        np.savez(pathlib.Path(folder, onnx_engine.INPUTS), **arrays)
        return _answer(folder, path, engine)


def _answer(folder: str, path: pathlib.Path, engine: str) -> Judgement:
    request = [folder, str(path), engine, cpu.available_cores()]
    try:
        answer = child.ask(onnx_engine.__name__, request, LIMIT_S)
    except TimeoutError:
        return Judgement(None, f"{engine} takes more than {LIMIT_S:.0f} s")
    except OSError as error:
        return Judgement(None, f"{engine} cannot be started: {error.strerror}")
    except child.Unanswered:
        return Judgement(None, f"{engine} does not run it")
    if answer["n"] is None:
        return Judgement(None, f"{engine} does not run it ({answer['by']})")
    with np.load(pathlib.Path(folder, onnx_engine.OUTPUTS)) as arrays:
        tensors = [torch.from_numpy(np.array(arrays[f"arr_{i}"])) for i in range(answer["n"])]
    return Judgement(tuple(tensors), answer["by"])
