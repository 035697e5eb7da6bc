"""Kernels without a GPU's driver, and GPUs without TVM: libraries, data and cubins are enough."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import nvidia
import pytest
import tvm

from felix import errors, target, workloads
from felix.builder import payload
from felix.builder.cuda import build, embedded, tvm_module
from felix.space import sketch
from felix.space.template_sketch import TemplateSketch
from tests.support.cuda import generated_programs as programs
from tests.support.cuda import library

without_driver = pytest.mark.skipif(not embedded.is_needed(), reason="there is a GPU's driver")


#: `blob_child`, which needs no torch, that TVM would load.
_CHILD = (
    "import sys; from felix import without_torch; from tests.support.cuda import blob_child; "
    "blob_child.main(sys.argv[1])"
)


def child(path: pathlib.Path, *folders: pathlib.Path) -> list[str]:
    """What `blob_child` prints of a file with these folders of libraries."""
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    command = [sys.executable, "-c", _CHILD, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.slow("builds a library twice, in processes")
@without_driver
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_is_the_one_that_tvm_makes_beside_a_driver(tmp_path: pathlib.Path) -> None:
    library.make_stub(tmp_path)
    task = workloads.parse("gemm:64,64,64", target="cuda -arch sm_90a")
    traced = sketch.trace_sketches(task)[0]
    program = traced.schedule(traced.sample(1, seed=1)[0]).mod
    (tmp_path / "program.json").write_text(payload.of(program, task.target))
    runtime = [each for root in nvidia.__path__ for each in pathlib.Path(root).glob("*/lib")]
    needed, hashes = child(tmp_path / "program.json")
    beside, expected = child(tmp_path / "program.json", tmp_path, *runtime)
    assert (needed, beside) == ("needed", "not needed")
    assert hashes == expected


@without_driver
def test_kernels_that_are_kept_as_source_are_named() -> None:
    full = target.parse("cuda -arch sm_90a")
    program = tvm_module.with_prefix(programs.plain(), "net")
    named: list[list[str]] = []

    def cubin_of(names: list[str], source: str) -> bytes:
        assert all(f"void {name}(" in source for name in names)
        named.append(sorted(names))
        return b"a cubin"

    module = tvm_module.module(
        program, programs.task(programs.square_sum).mod, full, runs_here=False
    )
    blob = tvm.get_global_func("runtime.ModulePackImportsToTensor")(module).numpy().tobytes()
    changed = embedded.with_cubins(blob, cubin_of)
    assert named == [["net_squares", "net_sums"]]
    assert b"a cubin" in changed and b"__global__" in blob and b"__global__" not in changed
    assert int.from_bytes(changed[:8], "little") == len(changed) - 8


def _no_kernel(names: list[str], source: str) -> bytes:
    raise AssertionError("there are no kernels")


@without_driver
def test_an_unknown_layout_is_refused() -> None:
    content = embedded._text(b"cuda") + (1).to_bytes(8, "little") + b"x" * 40
    for broken in (
        b"",
        b"x" * 40,
        embedded._text(embedded._text(b"cuda") + embedded._text(content)),
        embedded._text(embedded._text(b"cuda") + embedded._text(content)[:-4]),
    ):
        with pytest.raises(errors.MeasureError, match="on a machine with a GPU's driver"):
            embedded.with_cubins(broken, _no_kernel)


def test_other_bytes_that_look_like_kernels_stay() -> None:
    blob = embedded._text(b"constants: " + embedded._text(b"cuda") + b" and no module")
    assert embedded.with_cubins(blob, _no_kernel) == blob


@pytest.mark.parametrize("device", ["h200", "a100"])
@pytest.mark.parametrize(
    "text",
    [
        "gemm:512,512,512",
        "gemm:64,64,8192,dtype=bfloat16",
        "gemm:1,4096,4096,transpose_b=true,dtype=float16",
        "conv2d:1,28,28,64,64,3,padding=1,dtype=bfloat16",
    ],
)
def test_kernels_of_every_template_can_be_given_a_prefix(text: str, device: str) -> None:
    task = workloads.parse(text, target=device)
    every = [each for each in sketch.sketches(task) if isinstance(each, TemplateSketch)]
    assert every
    for each in every:
        for row in each.sample(16, seed=0):
            program = each.program(row)
            named = tvm_module.with_prefix(program, "net")
            assert {launch.kernel for launch in named.plan.launches} == {
                f"net_{launch.kernel}" for launch in program.plan.launches
            }
            assert named.source.replace("net_", "") == program.source


def test_a_prefix_changes_names_and_nothing_else() -> None:
    program = programs.plain()
    named = tvm_module.with_prefix(program, "net")
    assert build.cubin_of(named) != build.cubin_of(program)
    wrong = dataclasses.replace(program, source=program.source.replace("sums(", "others("))
    with pytest.raises(errors.MeasureError, match="0 kernels of a program are named sums"):
        tvm_module.with_prefix(wrong, "net")


#: Importing these raises an error, as where they are not installed.
_MISSING = ("tvm", "tvm_ffi", "torch", "felix.templates", "felix.tir", "felix.target")
_WITHOUT = f"import sys\nfor name in {_MISSING!r}: sys.modules[name] = None\n"

_PREPARED_AND_RUN = """
import dataclasses, pathlib
import numpy as np
from felix.launch_plan import Launch, LaunchPlan
from felix.runner import timing
from felix.runner.checking import reference
from felix.runner import description
from felix.runner.cuda import driver, runner
from felix.runner.cuda import nvrtc
from felix.runner.description import Description
from felix.runner.checking.reference import Argument
from tests.support.cuda import fakes

N = 64
folder = pathlib.Path(sys.argv[1])

def add(args, more=0.0):
    a, b, c = (fakes.array(fakes.word(address), N) for address in args)
    c[:] = a + b + np.float32(more)

fake = fakes.Driver({"add": add, "right": add, "wrong": lambda args: add(args, 1.0)})
driver.libcuda = lambda: fake
nvrtc.compile_cubin = lambda *args, **named: b"cubin"

def argument(name, is_output):
    return Argument(name, "float32", (N,), is_input=not is_output, is_output=is_output)

def program(kernel):
    path = str(folder / f"{kernel}.cubin")
    launch = Launch(kernel, (1, 1, 1, N, 1, 1), 0, (0, 1, 2))
    description.write_program(path, LaunchPlan(3, (), (launch,)), b"cubin")
    return path

task = Description(
    device="cuda", target="sm_90", tolerance=1e-5, seed=0,
    arguments=(argument("a", False), argument("b", False), argument("c", True)),
)
outputs = str(folder / "made.outputs")
made = runner.Runner(str(folder), quiet=lambda: None)
options = dataclasses.asdict(timing.GPU)

def run(name, kernel):
    return made.run(str(folder / name), program(kernel), options, cache_bytes=4096, best_us=None)

assert made.open("sm_90") == {}
assert made.prepare(str(folder / "by plan"), task.to_json(), program("add")) == {}
assert "error" not in run("by plan", "right")
assert run("by plan", "wrong")["error"] == "wrong_result"
checked = reference.read_expected(str(folder / "by plan" / "expected.outputs"), task.arguments)
reference.write_expected(outputs, checked)
assert made.prepare(str(folder / "by outputs"), task.to_json(), outputs) == {}
assert "error" not in run("by outputs", "right")
assert run("by outputs", "wrong")["error"] == "wrong_result"
"""


@pytest.mark.parametrize(
    "code",
    ["from felix.measure import gpu_fork_server_main", _PREPARED_AND_RUN],
    ids=["the fork server", "a task and its candidates"],
)
def test_a_run_worker_needs_no_tvm(code: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", _WITHOUT + code, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
