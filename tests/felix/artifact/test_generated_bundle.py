"""The bundle of a generated program: complete, and its run.py on a fake driver and on a GPU."""

from __future__ import annotations

import ctypes
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from felix import errors, launch_plan
from felix.artifact import export
from felix.builder.cuda import build as cuda_build
from felix.runner.cuda import nvrtc
from felix.templates.generated import GeneratedProgram
from tests.support import bundles, gpu, run_py
from tests.support.cuda import fakes
from tests.support.cuda import generated_programs as programs


def _export(
    folder: pathlib.Path, program: GeneratedProgram, func: Any = programs.double
) -> pathlib.Path:
    task = programs.task(func, "cuda" if gpu.IS_HERE else "h200")
    text = "boxes: rows=64, columns=32"
    best = bundles.Best(task.mod, variant="boxes", generated=program, template_text=text)
    return export.export(bundles.Result(task, best), folder)


def _manifest(folder: pathlib.Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return _export(tmp_path_factory.mktemp("out"), programs.boxes())


def test_the_bundle_is_complete(bundle: pathlib.Path) -> None:
    manifest = _manifest(bundle)
    on_disk = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == on_disk - {"manifest.json"}
    assert (manifest["kind"], manifest["library"]) == ("generated", "kernel.cubin")
    program = programs.boxes()
    assert (bundle / "kernel.cubin").read_bytes() == cuda_build.cubin_of(program)
    text = (bundle / "plan.json").read_text()
    assert launch_plan.LaunchPlan.from_json(text) == program.plan
    assert (bundle / "source" / "kernel.cu").read_text() == program.source
    assert "cp.async.bulk.tensor.2d" in (bundle / "source" / "kernel.ptx").read_text()
    assert {"reference.cubin", "reference.json", "oracle.py", "workload.json"} < on_disk
    assert "schedule.py" not in on_disk and not (bundle / "database").exists()
    assert any(
        "no database" in note and "boxes: rows=64, columns=32" in note
        for note in manifest["notes"]
    )


def test_the_scripts_need_nothing_of_felix(bundle: pathlib.Path) -> None:
    code = (
        "import sys; sys.modules['felix'] = sys.modules['tvm'] = None\n"
        f"sys.path.insert(0, {str(bundle)!r})\n"
        "import driver, launch_plan, player, run\n"
        "plan = launch_plan.LaunchPlan.from_json(open(sys.path[0] + '/plan.json').read())\n"
        "print(plan.launches[0].kernel)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "doubled\n"


@pytest.mark.slow("exports two bundles")
def test_a_schedule_s_bundle_takes_its_place(tmp_path: pathlib.Path) -> None:
    _export(tmp_path, programs.boxes())
    task = programs.task(programs.double, "llvm")
    export.export(bundles.Result(task, bundles.unscheduled(task)), tmp_path)
    assert "kind" not in _manifest(tmp_path)
    assert (tmp_path / "schedule.py").exists() and (tmp_path / "database").exists()
    names = ("plan.json", "kernel.cubin", "reference.cubin", "player.py", "source/kernel.cu")
    assert not any((tmp_path / name).exists() for name in names)


@pytest.mark.skipif(gpu.IS_HERE, reason="there is a GPU")
def test_run_py_says_that_it_needs_a_gpu(bundle: pathlib.Path) -> None:
    done = run_py.run(bundle)
    assert done.returncode == 1 and "needs a cuda device" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_nvrtc_there_is_a_note(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise errors.MeasureError("NVRTC was not found")

    monkeypatch.setattr(nvrtc, "load", missing)
    manifest = _manifest(_export(tmp_path, programs.boxes()))
    assert manifest["library"] is None and "no library: NVRTC was not found" in manifest["notes"]
    assert (tmp_path / "source" / "kernel.cu").exists()
    done = run_py.run(tmp_path)
    assert done.returncode == 1 and "no compiled library" in done.stderr


# ---------------------------------------------------------------- on a fake driver


@pytest.fixture
def script(
    bundle: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Calls the bundle's run.py in this process, on a fake driver; gives its report."""

    def run(refused: str = "", **changed: fakes.Kernel) -> dict[str, Any]:
        kernels = {**programs.kernels(lambda: driver), "main_kernel": programs.DOUBLES, **changed}
        driver = fakes.Driver(kernels)
        driver.durations_us["doubled"] = 12.0
        driver.refused.add(refused)
        monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
        module = run_py.module(bundle / "run.py")
        load = module._module

        def without_warming(name: str) -> Any:
            made = load(name)
            made.WARM_S = 0.0
            return made

        monkeypatch.setattr(module, "_module", without_warming)
        report: dict[str, Any] = module.run(module.manifest(), 40)
        return report

    yield run
    for name in ("driver", "launch_plan", "player", "oracle"):
        sys.modules.pop(name, None)


def test_run_py_checks_and_times(script: Callable[..., dict[str, Any]]) -> None:
    report = script()
    assert set(report["checked_against"]) == {"the unscheduled program", "numpy"}
    assert report["latency_us"] == pytest.approx(12.0, rel=1e-3) and report["tuned_us"] == 3.0


def test_run_py_finds_a_wrong_kernel(script: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(Exception, match="output c differs from the unscheduled program"):
        script(doubled=lambda args: None)


def test_run_py_tells_what_the_driver_refuses(script: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(Exception, match="refuses it: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        script(refused="doubled")


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("func", "make"), programs.CASES)
def test_run_py_runs_on_a_gpu(
    func: Any, make: Callable[[], GeneratedProgram], tmp_path: pathlib.Path
) -> None:
    _export(tmp_path, make(), func)
    done = run_py.run(tmp_path, "--json", "--repeats", "20")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "the unscheduled program" in report["checked_against"]
    assert 0.5 < report["latency_us"] < 1000
