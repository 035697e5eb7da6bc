"""The artifact of a network: a folder that runs it with TVM's runtime and numpy, without Felix.

manifest.json    versions, device, target, inputs and outputs, the report, sha256 of each file
network.so       the compiled network, without its parameters
parameters.bin   the parameters, in the order in which the network takes them
examples.bin     inputs of a call, and the model's outputs on them
run.py           loads the network, checks it against the examples and times it; a program that
                 imports it calls `Network(folder)(*inputs)`
report.txt       the report as people read it
torch_functions.py  runs the groups that PyTorch's operators run, if there are any; then torch is
                 needed, too

The two `.bin` files are what `tvm.runtime.save_param_dict` writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import tvm

from felix import errors, files, records, target
from felix.artifact import export as task_artifact
from felix.frontend.torch_calls.form import form_from_json
from felix.measure import build
from felix.network import executable, imported, report, shipping
from felix.network.bundle import run_script
from felix.network.pytorch import functions

#: Version of the folder's layout.
FORMAT = 1
LIBRARY, PARAMETERS, EXAMPLES = "network.so", "parameters.bin", "examples.bin"
FUNCTIONS = "torch_functions.py"


def write(
    network: imported.Network,
    built: executable.Executable,
    summary: report.Report,
    folder: str | os.PathLike[str],
) -> pathlib.Path:
    """Write the folder; files of an earlier artifact in it are replaced.

    Raises:
        OutputError: the folder cannot be written, or there is no linker.
    """
    path = task_artifact.check_writable(folder)
    outputs = built(list(network.examples))
    expected = list(network.expected) if network.expected is not None else outputs
    try:
        _library(built, path)
        parameters = {f"p{i}": value for i, value in enumerate(built.parameters)}
        _save(path / PARAMETERS, parameters)
        _save(path / EXAMPLES, _named("input", network.examples) | _named("output", expected))
        shutil.copyfile(run_script.__file__, path / "run.py")
        (path / "report.txt").write_text(f"{summary}\n")
        forms = _forms(network, summary)
        names = [LIBRARY, PARAMETERS, EXAMPLES, "run.py", "report.txt"]
        if forms:
            shutil.copyfile(functions.__file__, path / FUNCTIONS)
            names.append(FUNCTIONS)
        manifest = _manifest(network, len(built.parameters), summary, expected)
        manifest["pytorch"] = forms
        manifest["files"] = {name: _sha256(path / name) for name in names}
        files.write_atomically(path / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    except OSError as error:
        raise errors.OutputError(f"cannot write to {path}: {error.strerror}") from error
    return path


def _forms(network: imported.Network, summary: report.Report) -> dict[str, str]:
    """What PyTorch runs: by the name that the library calls, the form as text."""
    forms = [
        each.group.form for each in summary.groups if each.contender is shipping.Contender.PYTORCH
    ]
    forms += [form for each in summary.attentions if each.ships for form in each.forms]
    left = network.imported.pytorch.values()
    forms += [form_from_json(text) for every in left for text in every]
    return {form.function_name: form.to_json() for form in forms if not isinstance(form, str)}


def _library(built: executable.Executable, path: pathlib.Path) -> None:
    try:
        build.export_executable(built.built, str(path / LIBRARY))
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[-1]
        raise errors.OutputError(f"the network's library cannot be linked: {line}") from error


def _manifest(
    network: imported.Network,
    n_parameters: int,
    summary: report.Report,
    expected: Sequence[torch.Tensor],
) -> dict[str, Any]:
    model = network.imported
    return {
        "felix_network": FORMAT,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": records.versions(),
        "platform": platform.platform(),
        "device": target.hardware(network.target).name,
        "target": json.loads(target.describe(network.target)),
        "network": network.name,
        "inputs": [_tensor_json(spec.name, each) for spec, each in
                   zip(model.inputs, network.examples, strict=True)],
        "outputs": [_tensor_json(spec.name, each) for spec, each in
                    zip(model.outputs, expected, strict=True)],
        "n_parameters": n_parameters,
        "allow_tf32": network.allow_tf32,
        "tolerance": network.tolerance,
        "report": summary.to_json(),
    }  # fmt: skip


def _tensor_json(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"name": name, "shape": list(tensor.shape), "dtype": dtype}


def _named(prefix: str, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    return {
        f"{prefix}{number}": tvm.runtime.from_dlpack(executable.as_stored(tensor))
        for number, tensor in enumerate(tensors)
    }


def _save(path: pathlib.Path, tensors: Mapping[str, Any]) -> None:
    host = tvm.runtime.device("cpu", 0)
    on_host = {name: value if value.device == host else value.copyto(host)
               for name, value in tensors.items()}  # fmt: skip
    files.write_atomically(path, bytes(tvm.runtime.save_param_dict(on_host)))


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
