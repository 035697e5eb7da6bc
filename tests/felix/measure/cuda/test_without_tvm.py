"""What runs on a GPU needs neither TVM nor a client's program: data and cubins are enough."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

#: Importing these raises an error, as where they are not installed.
_MISSING = ("tvm", "tvm_ffi", "torch", "felix.templates", "felix.tir", "felix.target")
_WITHOUT = f"import sys\nfor name in {_MISSING!r}: sys.modules[name] = None\n"

_PREPARED_AND_RUN = """
import dataclasses, pathlib
import numpy as np
from felix.launch_plan import Launch, LaunchPlan
from felix.measure import timing
from felix.measure.checking import reference
from felix.measure import description
from felix.measure.cuda import driver, runner
from felix.measure.cuda.building import nvrtc
from felix.measure.description import Description
from felix.measure.checking.reference import Argument
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
assert run("by plan", "right")["checked"]
assert run("by plan", "wrong")["error"] == "wrong_result"
checked = reference.read_expected(str(folder / "by plan" / "expected.outputs"), task.arguments)
reference.write_expected(outputs, checked)
assert made.prepare(str(folder / "by outputs"), task.to_json(), outputs) == {}
assert run("by outputs", "right")["checked"]
assert run("by outputs", "wrong")["error"] == "wrong_result"
assert made.prepare(str(folder / "unchecked"), task.to_json(), "") == {}
assert not run("unchecked", "wrong")["checked"]
"""


@pytest.mark.parametrize(
    "code",
    ["from felix.measure.pool import gpu_fork_server_main", _PREPARED_AND_RUN],
    ids=["the fork server", "a task and its candidates"],
)
def test_a_run_worker_needs_no_tvm(code: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", _WITHOUT + code, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
