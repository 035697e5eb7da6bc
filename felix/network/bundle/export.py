"""The artifact of a network: a folder that runs it with TVM's runtime and numpy, without Felix.

manifest.json    versions, device, target, inputs and outputs, the report, sha256 of each file
network.so       the compiled network, without its parameters
parameters.bin   the parameters, in the order in which the network takes them
examples.bin     inputs of a call, and the model's outputs on them
run.py           loads the network, checks it against the examples and times it; a program that
                 imports it calls `Network(folder)(*inputs)`
report.txt       the report as people read it
convergence.svg  the network's latency against the seconds since the call, if it was tuned
driver.py, launch_plan.py  of a network for a GPU: they encode tensor maps that TVM cannot
openmp.py, launch.ll  of a network for a CPU: let it run on PyTorch's threads
torch_functions.py  runs the groups that PyTorch's operators run, if there are any; then torch is
                 needed, too

The two `.bin` files are what `tvm.runtime.save_param_dict` writes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import tvm
from tvm import relax

from felix import errors, files, launch_plan
from felix.artifact import convergence
from felix.artifact import export as task_artifact
from felix.builder import build
from felix.network import executable, imported, report
from felix.network.bundle import run_script
from felix.network.contenders import shipping
from felix.runner.cpu import openmp
from felix.runner.cuda import driver
from felix.torch_calls import functions
from felix.torch_calls.form import form_from_json

#: Version of the folder's layout.
FORMAT = 1
LIBRARY, PARAMETERS, EXAMPLES = "network.so", "parameters.bin", "examples.bin"
FUNCTIONS = "torch_functions.py"
#: What encodes im2col tensor maps for kernels of a GPU.
_TENSOR_MAP_SCRIPTS = {"driver.py": driver, "launch_plan.py": launch_plan}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A built network as the folder has it.

    Attributes:
        executable: the compiled network.
        parameters: what `main` takes behind the inputs of a call; with `prepacks`, what the
            network's function `prepacking.TRANSFORM` makes that of.
        outputs: of the model on the examples, or else of the network.
        prepacks: whether parameters are prepacked when the network is loaded.
        cubins: of generated kernels by name, for a library that is made without a GPU's driver.
    """

    executable: relax.VMExecutable
    parameters: Sequence[Any]
    outputs: Sequence[torch.Tensor]
    prepacks: bool = False
    cubins: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def write(
    network: imported.Network,
    built: Content,
    summary: report.Report,
    folder: str | os.PathLike[str],
) -> pathlib.Path:
    """Write the folder; files of an earlier artifact in it are replaced.

    Raises:
        OutputError: the folder cannot be written, or there is no linker.
    """
    path = task_artifact.check_writable(folder)
    with errors.writing(f"to {path}"):
        _library(built, network, path)
        _save(path / PARAMETERS, _named("p", built.parameters))
        tensors = _named("input", network.examples) | _named("output", built.outputs)
        _save(path / EXAMPLES, tensors)
        (path / "run.py").write_text(task_artifact.standalone(run_script))
        (path / "report.txt").write_text(f"{summary}\n")
        forms = _forms(network, summary)
        names = [LIBRARY, PARAMETERS, EXAMPLES, "run.py", "report.txt"]
        title, label = f"{network.name}: groups, cold caches", "sum of the groups (us)"
        picture = path / convergence.FILE_NAME
        if summary.curve and convergence.draw({"seconds": summary.curve}, title, picture, label):
            names.append(convergence.FILE_NAME)
        scripts = {FUNCTIONS: functions} if forms else {}
        is_gpu = network.target.kind.name == "cuda"
        scripts |= _TENSOR_MAP_SCRIPTS if is_gpu else {}
        for name, module in scripts.items():
            shutil.copyfile(str(module.__file__), path / name)
            names.append(name)
        names += [] if is_gpu else openmp.copy(path)
        manifest = _manifest(network, built, summary)
        manifest["pytorch"] = forms
        manifest["files"] = {name: task_artifact.sha256(path / name) for name in names}
        files.write_atomically(path / "manifest.json", json.dumps(manifest, indent=2) + "\n")
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


def _library(built: Content, network: imported.Network, path: pathlib.Path) -> None:
    try:
        build.export_executable(
            built.executable, str(path / LIBRARY), network.target, built.cubins
        )
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[-1]
        raise errors.OutputError(f"the network's library cannot be linked: {line}") from error


def _manifest(network: imported.Network, built: Content, summary: report.Report) -> dict[str, Any]:
    model = network.imported
    return {
        "felix_network": FORMAT,
        **task_artifact.made_by_and_for(network.target),
        "network": network.name,
        "inputs": [
            _tensor_json(spec.name, each)
            for spec, each in zip(model.inputs, network.examples, strict=True)
        ],
        "outputs": [
            _tensor_json(spec.name, each)
            for spec, each in zip(model.outputs, built.outputs, strict=True)
        ],
        "n_parameters": len(built.parameters),
        "prepacks": built.prepacks,
        "allow_tf32": network.allow_tf32,
        "tolerance": network.tolerance,
        "report": summary.to_json(),
    }


def _tensor_json(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"name": name, "shape": list(tensor.shape), "dtype": dtype}


def _named(prefix: str, tensors: Sequence[Any]) -> dict[str, Any]:
    return {f"{prefix}{number}": each for number, each in enumerate(tensors)}


def _save(path: pathlib.Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors as TVM does, one after the other: together they may be gigabytes."""
    host = tvm.runtime.device("cpu", 0)
    on_host = {name: executable.on_device(value, host) for name, value in tensors.items()}
    with files.temporary(path.parent) as (file, part):
        tvm.runtime.save_param_dict_to_file(on_host, str(part))
        os.fsync(file.fileno())
        part.replace(path)
