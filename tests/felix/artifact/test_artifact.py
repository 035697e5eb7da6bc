"""The bundle: complete, self-checking, runnable without Felix, and refused where unwritable.

The bundle of a program that changes an argument in place, as its tuning ships it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import pathlib
import re
import sys

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

import felix
from felix import errors, workloads
from felix.artifact import convergence, export
from felix.builder import build
from felix.builder.cuda import build as cuda_build
from felix.database import records
from felix.runner import protocol
from felix.runner.cuda import nvrtc
from felix.task import Task
from felix.tuning import options
from tests.support import bundles, elves, in_place, run_py
from tests.support import tuning_fakes as fakes


def _result(spec: str = "gemm:64,64,64,epilogue=bias+relu", wrong: bool = False) -> bundles.Result:
    task = workloads.parse(spec, "llvm -num-cores 2")
    sch = tvm.s_tir.Schedule(task.mod)
    name = str(sch.get(sch.get_child_blocks(sch.get_sblock("root"))[0]).name_hint)
    sch.parallel(sch.get_loops(sch.get_sblock(name))[0])
    if wrong:
        other = workloads.parse(spec.replace("+relu", ""), "llvm -num-cores 2")
        sch = tvm.s_tir.Schedule(other.mod)
    measured = protocol.Measurement.timed([40.0], checked=True, device="cpu")
    record = fakes.record((2, 32), measured, task_key=task.key)
    best = bundles.Best(task.mod, sch, 40.0, decisions=(2, 32))
    return bundles.Result(task, best, [(1, 0.5, 90.0), (2, 0.9, 40.0)], [record, record])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return export.export(_result(), tmp_path_factory.mktemp("out"))


def test_bundle_is_complete_and_hashed(bundle: pathlib.Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    on_disk = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == on_disk - {"manifest.json"}
    for name in ("run.py", "oracle.py", "schedule.py", "source/kernel.ll", "source/kernel.s"):
        content = (bundle / name).read_bytes()
        assert manifest["files"][name] == hashlib.sha256(content).hexdigest()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", manifest["created"])
    assert manifest["best"]["decisions"] == [2, 32] and manifest["trials"] == 2
    assert manifest["pass_config"] == {}
    assert manifest["library"] in ("kernel.so", "kernel.ll")
    assert "apache-tvm" in manifest["versions"] and manifest["device"]
    assert "T.parallel" in (bundle / "schedule.py").read_text()
    assert records.read(bundle / "records.jsonl") == _result().records
    with open(bundle / "convergence.csv") as file:
        assert list(csv.reader(file))[1:] == [["1", "0.5", "90.0"], ["2", "0.9", "40.0"]]
    assert (bundle / "convergence.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.fresh_processes
def test_run_py_checks_and_times_without_felix(bundle: pathlib.Path) -> None:
    assert "import felix" not in (bundle / "run.py").read_text()
    text = run_py.run(bundle, "--repeats", "5").stdout
    assert "agrees with numpy" in text and "GFLOP/s" in text and "tolerance" in text


def test_run_py_finds_damage(bundle: pathlib.Path, tmp_path: pathlib.Path) -> None:
    export.export(_result(), tmp_path)
    (tmp_path / "workload.json").write_text("{}")
    done = run_py.run(tmp_path)
    assert done.returncode == 1 and "workload.json is not the file" in done.stderr
    (tmp_path / "workload.json").unlink()
    assert "workload.json cannot be read" in run_py.run(tmp_path).stderr
    (tmp_path / "manifest.json").write_text("[")
    done = run_py.run(tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.slow("runs a bundle once more")
def test_run_py_finds_a_wrong_kernel(tmp_path: pathlib.Path) -> None:
    export.export(_result(wrong=True), tmp_path)
    done = run_py.run(tmp_path)
    assert done.returncode == 1 and "differs from the unscheduled program" in done.stderr


@pytest.mark.slow("exports two bundles")
def test_export_replaces_an_earlier_bundle_and_spares_other_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    export.export(_result(), tmp_path)
    export.export(_result(), tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"
    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "database"))
    assert len(database) == 1
    assert len(records.read(tmp_path / "records.jsonl")) == 2


def test_the_lock_of_a_session_is_no_part_of_the_bundle(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".tuning.lock").write_text("")
    export.export(_result(), tmp_path)
    files = json.loads((tmp_path / "manifest.json").read_text())["files"]
    assert "run.py" in files and not any(name.startswith(".") for name in files)


def test_without_a_linker_the_bundle_still_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "available_link", lambda: build.Link.JIT)
    export.export(_result(), tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["library"] == "kernel.ll" and "linker" in manifest["notes"][0]
    assert run_py.run(tmp_path, "--repeats", "2").returncode == 0


def test_without_matplotlib_the_picture_is_noted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    export.export(_result(), tmp_path)
    notes = json.loads((tmp_path / "manifest.json").read_text())["notes"]
    assert any("matplotlib" in note for note in notes)
    assert not (tmp_path / "convergence.svg").exists()


@pytest.mark.slow("tunes once more, and runs a bundle in a process")
def test_a_program_without_numpy_form_is_checked_against_tvm(tmp_path: pathlib.Path) -> None:
    export.export(_result("conv2d:1,8,8,4,4,3,padding=1"), tmp_path)
    done = run_py.run(tmp_path, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["checked_against"]) == {"the unscheduled program"}
    assert report["latency_us"] > 0 and report["tuned_us"] == 40.0


def test_unwritable_folder_is_an_output_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError, match="cannot write"):
        export.check_writable(tmp_path / "file" / "out")
    with pytest.raises(errors.OutputError, match="cannot write"):
        export.check_writable("/proc/felix-out")
    with pytest.raises(errors.OutputError):
        export.export(_result(), tmp_path / "file")
    made = export.check_writable(tmp_path / "new" / "out")
    assert made.is_dir() and not list(made.iterdir())


def _cuda_result() -> bundles.Result:
    task = workloads.parse("elementwise:64x32,ops=relu", "nvidia/nvidia-h100")
    sch = tvm.s_tir.Schedule(task.mod)
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    rows, columns = sch.get_loops(block)
    sch.bind(rows, "blockIdx.x")
    sch.bind(columns, "threadIdx.x")
    return bundles.Result(task, bundles.Best(task.mod, sch))


def test_cuda_bundle_keeps_its_source(tmp_path: pathlib.Path) -> None:
    export.export(_cuda_result(), tmp_path)
    assert "__global__" in (tmp_path / "source" / "kernel.cu").read_text()
    ptx = (tmp_path / "source" / "kernel.ptx").read_text()
    assert ".target sm_90" in ptx and ".visible .entry main_kernel(" in ptx and "\0" not in ptx
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert "source/kernel.ptx" in manifest["files"]
    assert manifest["pass_config"] == {"tirx.use_async_copy": True}
    first, *script = (tmp_path / "schedule.py").read_text().splitlines()
    assert str(manifest["pass_config"]) in first and tvm.script.from_source("\n".join(script))
    kernel = (tmp_path / "kernel.so").read_bytes()
    # a cubin, no source
    assert elves.EM_CUDA in elves.machines(kernel) and b"__global__" not in kernel
    if not tvm.runtime.device("cuda", 0).exist:
        done = run_py.run(tmp_path)
        assert done.returncode == 1 and "needs a cuda device" in done.stderr


def test_ptx_that_cannot_be_made_is_a_note(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: str, target: tvm.target.Target) -> str:
        raise nvrtc.CompileError("kernel.cu(1): error: no\nmore")

    monkeypatch.setattr(cuda_build, "ptx", refuse)
    export.export(_cuda_result(), tmp_path)
    notes = json.loads((tmp_path / "manifest.json").read_text())["notes"]
    assert "no PTX: kernel.cu(1): error: no" in notes
    assert (tmp_path / "source" / "kernel.cu").exists()
    assert not (tmp_path / "source" / "kernel.ptx").exists()


def test_the_picture_is_the_same_for_the_same_curve(tmp_path: pathlib.Path) -> None:
    curve = convergence.of_trials([(1, 0.5, 90.0), (2, 0.9, 40.0)])
    pictures = []
    for name in ("a.svg", "b.svg"):
        assert convergence.draw(curve, "two tasks: 40.00 us", tmp_path / name)
        pictures.append((tmp_path / name).read_text())
    assert "<svg" in pictures[0] and len(pictures[0]) == len(pictures[1])
    with pytest.raises(errors.OutputError, match="cannot write"):
        convergence.draw(curve, "two tasks", tmp_path / "missing" / "a.svg")


@pytest.mark.slow("builds three more bundles, and runs each in a process")
@pytest.mark.parametrize("name", in_place.PROGRAMS)
def test_run_py_agrees_with_both_references(name: str, tmp_path: pathlib.Path) -> None:
    task = Task.from_prim_func(in_place.program(name), "llvm -num-cores 1")
    felix.tune(task, trials=2, options=options.TuneOptions(n_remeasured=0)).export(tmp_path)
    done = run_py.run(tmp_path, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)["checked_against"]
    assert set(checked) == {"the unscheduled program", "numpy"}
