"""What the bundle of a generated program has in place of a library of TVM.

kernel.cubin, plan.json        the program, as it was measured (`felix.launch_plan`)
reference.cubin, reference.json the unscheduled program, which `run.py` compares with, on a GPU
helpers.cubin                  what empties the GPU's cache before each timed call
player.py, driver.py, launch_plan.py  play a plan through the CUDA driver
source/                        its CUDA C++ and PTX
"""

from __future__ import annotations

import pathlib
import shutil
from typing import TYPE_CHECKING

from felix import errors, launch_plan
from felix.artifact import player
from felix.builder.cuda import build
from felix.builder.cuda import reference as cuda_reference
from felix.runner.cuda import driver, nvrtc, tensors
from felix.templates.generated import GeneratedProgram

if TYPE_CHECKING:
    from felix.task import Task

LIBRARY = "kernel.cubin"
#: Modules of ours that run beside `run.py`.
_SCRIPTS = {"player.py": player, "driver.py": driver, "launch_plan.py": launch_plan}
#: All that `write` may write into the bundle's folder.
FILES = (LIBRARY, "plan.json", "reference.cubin", "reference.json", "helpers.cubin", *_SCRIPTS)


def write(
    program: GeneratedProgram, task: Task, folder: pathlib.Path, notes: list[str]
) -> str | None:
    """Compile a generated program of a task and write all that runs it; the cubin's file name.

    None, and a note that says why, if this machine cannot compile it.
    """
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "kernel.cu").write_text(program.source)
    (folder / "plan.json").write_text(program.plan.to_json() + "\n")
    for name, module in _SCRIPTS.items():
        shutil.copyfile(str(module.__file__), folder / name)
    try:
        (folder / LIBRARY).write_bytes(build.cubin_of(program))
        (source / "kernel.ptx").write_text(build.ptx_of(program))
        helpers = nvrtc.compile_cubin(tensors.SOURCE, program.arch, options=())
        (folder / "helpers.cubin").write_bytes(helpers)
        reference = cuda_reference.program(task.mod, task.target)
    except (errors.MeasureError, nvrtc.CompileError) as error:
        notes.append(f"no library: {str(error).splitlines()[0]}")
        return None
    if reference is None:
        notes.append("no reference.cubin: the unscheduled program does not run on a GPU")
        return LIBRARY
    plan, cubin = reference
    (folder / "reference.json").write_text(plan.to_json() + "\n")
    (folder / "reference.cubin").write_bytes(cubin)
    return LIBRARY
