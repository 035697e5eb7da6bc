"""`felix` on the command line: a real run end to end, bad input, interruption, output forms."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

from felix import workloads
from felix.cli import interrupts, main
from felix.database import records
from tests.support import run_py, waiting

ROOT = pathlib.Path(__file__).parents[3]
ENV = os.environ | {"PYTHONPATH": str(ROOT)}
GEMM = "gemm:64,64,64,epilogue=relu"


def _felix(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "felix", *arguments],
        capture_output=True,
        text=True,
        env=ENV,
        check=False,
        timeout=120,
        **options,
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, Any]]:
    """A finished run: its folder and its JSON."""
    out = tmp_path_factory.mktemp("cli") / "out"
    how = ["--trials=8", "--round=4", "--strategy=local", f"--out={out}"]
    done = _felix("tune", GEMM, *how, "--json")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def test_json_says_everything(tuned: tuple[pathlib.Path, dict[str, Any]]) -> None:
    out, result = tuned
    assert result["command"] == "tune" and result["reason"] == "trials" and result["trials"] == 8
    assert result["out"] == str(out)
    (task,) = result["tasks"]
    assert task["name"] == "gemm_64x64x64_relu" and task["target"] == "llvm"
    assert task["trials"] == 8 and task["error"] is None
    best = task["best"]
    assert 0 < best["latency_us"] < task["unscheduled_us"]
    assert task["speedup"] == pytest.approx(task["unscheduled_us"] / best["latency_us"])
    assert task["torch_speedup"] == pytest.approx(task["torch_us"] / best["latency_us"])
    assert "cold caches" in task["torch_note"]
    assert task["torch_note"].startswith(torch.__version__)
    assert (task["inductor_us"], task["inductor_note"]) == (None, "not timed")
    assert best["gflops"] == pytest.approx(task["flops"] / best["latency_us"] / 1e3)
    assert task["curve"][-1][0] == 8 and task["curve"][-1][2] == best["latency_us"]
    assert result["latency_us"] == best["latency_us"]
    spent = result["time"]
    named = [
        value
        for name, value in spent.items()
        if name not in ("total_s", "build_work_s", "run_work_s")
    ]
    assert sum(named) == pytest.approx(spent["total_s"], rel=0.01)
    assert spent["build_work_s"] > 0


@pytest.mark.slow("tunes once more by the command")
def test_schedules_of_a_database_are_measured_first(
    tuned: tuple[pathlib.Path, dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    out, result = tuned
    (known,) = result["tasks"]
    how = ["--trials=1", "--seed=7", f"--database={out / 'database'}", f"--out={tmp_path}"]
    done = _felix("tune", GEMM, *how, "--json", "--compare=none")
    assert done.returncode == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["trials"] == 1
    for part in ("sketch_index", "decisions"):
        assert task["best"][part] == known["best"][part]


def test_artifact_runs(tuned: tuple[pathlib.Path, dict[str, Any]]) -> None:
    out, _ = tuned
    done = run_py.run(out)
    assert done.returncode == 0, done.stderr
    assert "agrees with numpy" in done.stdout
    assert (out / "convergence.svg").stat().st_size > 1000
    assert records.read(out / "records.jsonl") == records.read(out / "tuning" / "records.jsonl")


@pytest.mark.parametrize("form", ["folder", "records", "session", "artifact"])
def test_compile_rebuilds_the_best(
    tuned: tuple[pathlib.Path, dict[str, Any]],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    out, result = tuned
    source = {
        "folder": out,
        "records": out / "tuning" / "records.jsonl",
        "session": out / "tuning",
        "artifact": out / "records.jsonl",
    }[form]
    assert main.main(["compile", str(source), "--out", str(tmp_path), "--json"]) == 0
    (built,) = json.loads(capsys.readouterr().out)
    best = result["tasks"][0]["best"]
    assert built["decisions"] == best["decisions"]
    assert built["latency_us"] == best["latency_us"]
    assert (tmp_path / "kernel.so").exists() and (tmp_path / "manifest.json").exists()


@pytest.mark.slow("tunes twice more by the command")
def test_resume_adds_to_the_run(
    tuned: tuple[pathlib.Path, dict[str, Any]],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import shutil

    out, _ = tuned
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    before = records.read(copy / "tuning" / "records.jsonl")
    options = ["--trials", "12", "--out", str(copy), "--resume", "--compare", "none"]
    code, (out_text, err_text) = main.main(["tune", GEMM, *options]), capsys.readouterr()
    assert code == 0, err_text
    after = records.read(copy / "tuning" / "records.jsonl")
    assert after[: len(before)] == before
    trials = [r for r in after if not r.repeat]
    assert len(trials) == 12 and [r for r in before if not r.repeat] == trials[:8]
    assert len({(r.sketch_index, r.decisions) for r in trials}) == 12
    assert {(r.sketch_index, r.decisions) for r in after if r.repeat} <= {
        (r.sketch_index, r.decisions) for r in trials
    }
    assert "8 trials done before" in err_text
    assert "gemm_64x64x64_relu" in out_text and "GFLOP/s" in out_text
    assert f"python {copy / 'run.py'}" in out_text
    assert "\x1b" not in err_text + out_text  # no terminal, no colours


def test_interrupted_run_reports_what_it_has(tmp_path: pathlib.Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "felix", "tune", GEMM, "--trials", "5000", "--out", str(tmp_path),
         "--json", "--compare", "none"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV,
    )  # fmt: skip
    log = tmp_path / "tuning" / "records.jsonl"
    waiting.until(lambda: log.exists() and log.read_bytes().count(b'"error":null') >= 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    result = json.loads(out)
    assert result["reason"] == "interrupted"
    assert result["trials"] == len(records.read(log)) >= 3
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune", "gemmm:8,8,8"], "unknown operator 'gemmm'; did you mean gemm?"),
        (["tune", "gemm:-8,8,8"], "m must be at least 1"),
        (["tune", "gemm:0,8,8"], "m must be at least 1"),
        (["tune", "gemm:8,8"], "missing parameter k"),
        (["tune", "gemm:8,8,n"], "k"),
        (["tune", "gemm:8,8,8,dtype=int7"], "dtype"),
        (["tune", "gemm:8,8,8", "--target", "tpu"], "unknown target 'tpu'"),
        (["tune", "gemm:8,8,8", "--target", "llvm -num-cores 0"], "num-cores"),
        (["tune", "gemm:8,8,8", "--out", "FILE/out"], "cannot write"),
        (["tune", "gemm:8,8,8", "--out", "/proc/felix"], "cannot write"),
        (["tune", "MISSING.json"], "cannot read"),
        (["tune", "MALFORMED.json"], "not valid JSON"),
        (["tune", "BINARY.json"], "not a text file"),
        (["tune", "HOSTILE.json"], "TVM cannot read the JSON"),
        (["tune", "DYNAMIC.json"], "dynamic shape"),
        (["tune", "gemm:8,8,8", "--model", "MISSING.st"], "cannot read"),
        (["tune", "gemm:8,8,8", "--model", "MALFORMED.json"], "not a checkpoint"),
        (["tune", "gemm:8,8,8", "--model", "OLD.st"], "features version"),
        (["tune", "gemm:8,8,8", "gemm:8,8,8"], "twice"),
        (["features", "gemm:8,8,8", "--sketch", "99"], "sketches"),
        (["features", "gemm:8,8,8", "--target", "cuda -arch 9"], "arch"),
        (["compile", "MISSING"], "there is no"),
        (["compile", "."], "no tuning session"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str],
    said: str,
    bad_files: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(bad_files)
    assert main.main(arguments) == 1
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len([line for line in lines if line.startswith("felix: error: ")]) == 1
    assert lines[-1].startswith("felix: error: ") and said in lines[-1]
    assert captured.out == ""


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder of files that are not what commands take."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "FILE").write_text("")
    (folder / "MALFORMED.json").write_text('{"a": ')
    (folder / "BINARY.json").write_bytes(bytes(range(128, 256)))
    text = json.loads(workloads.gemm(8, 8, 8, target="llvm").to_json())
    (folder / "HOSTILE.json").write_text(json.dumps(text | {"mod": '{"nodes": [[]]}'}))
    (folder / "DYNAMIC.json").write_text(_dynamic())
    _old_checkpoint(folder / "OLD.st")
    return folder


def _dynamic() -> str:
    """JSON of a function whose extent is a variable."""
    import tvm
    from tvm import te

    n = te.var("n", "int64")
    a = te.placeholder((n,), name="a")
    func = te.create_prim_func([a, te.compute((n,), lambda i: a[i] + 1.0, name="b")])
    return str(tvm.ir.save_json(tvm.IRModule({"main": func})))


def _old_checkpoint(path: pathlib.Path) -> None:
    from costmodel.models import checkpoint, segment_mlp
    from felix.features import spec

    metadata = checkpoint.Metadata(
        features_version=spec.FEATURES_VERSION + 1, feature_names=spec.NAMES, device="llvm"
    )
    checkpoint.save(path, segment_mlp.SegmentSumMLP(spec.NAMES), metadata)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frob"],
        ["tune"],
        ["tune", GEMM, "--trials", "0"],
        ["tune", GEMM, "--trials", "x"],
        ["tune", GEMM, "--seconds", "-1"],
        ["tune", GEMM, "--strategy", "magic"],
        ["tune", GEMM, "--seed", "-1"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_help_and_version_load_nothing_heavy() -> None:
    script = (
        "import sys\nfrom felix.cli import main\n"
        "try:\n    main.main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'tvm', 'torch', 'numpy', 'sympy', 'rich', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for option in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", script, option],
            capture_output=True,
            text=True,
            env=ENV,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "felix" in done.stdout


def test_task_from_json_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "task.json"
    path.write_text(workloads.gemm(16, 16, 16, target="cuda").to_json())
    for option, threads in (([], True), (["--target", "llvm"], False)):
        assert main.main(["features", str(path), "--sketch", "0", "--json", *option]) == 0
        task_features = json.loads(capsys.readouterr().out)
        assert task_features["task"] == "gemm_16x16x16"
        column = [feature["name"] for feature in task_features["features"]].index("block_threads")
        assert (task_features["sketches"][0]["values"][0][0][column] > 1) == threads


def test_features_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["features", "gemm:32,32,32", "--samples", "2", "--sketch", "0", "--seed", "5"]
    assert main.main([*common, "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    names = [feature["name"] for feature in as_json["features"]]
    (sketch,) = as_json["sketches"]
    flat = [values for sample in sketch["values"] for values in sample]
    assert len(flat) == 2 * len(sketch["rows"]) and {len(each) for each in flat} == {len(names)}
    trips = names.index("trip_count")
    assert max(values[trips] for values in flat) == 32**3
    assert len(sketch["decisions"]) == 2 and len(sketch["decisions"][0]) == len(
        sketch["variables"]
    )


def test_features_of_a_template_have_their_own_table(capsys: pytest.CaptureFixture[str]) -> None:
    from felix.templates import spec

    text, target = "gemm:64,64,64,dtype=float16", "cuda -arch sm_80"
    common = ["features", text, "--target", target, "--samples", "1"]
    assert main.main([*common, "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert [feature["name"] for feature in as_json["template_features"]] == list(spec.NAMES)
    assert [sketch["kind"] for sketch in as_json["sketches"]][-1] == "template"
    template = as_json["sketches"][-1]
    assert template["variant"] == "gemm-mma"
    (product, _) = template["values"][0]
    assert product[spec.NAMES.index("problem_ops")] == 2 * 64**3
    assert main.main([*common, "--sketch", str(template["sketch"])]) == 0
    assert "tensor_instructions" in capsys.readouterr().out


def test_features_say_why_no_kernel_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    softmax = "softmax:8x64,dtype=bfloat16"
    assert main.main(["features", softmax, "--target", "h200", "--sketch", "0", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["task"] == "softmax_8x64_axis1_bfloat16"
    assert said.err.startswith("felix: softmax_8x64_axis1_bfloat16: no generated kernel: it ")


def test_features_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["features", "softmax:8x16", "--sketch", "0"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"trip_count\s+iterations\s+\d", out)
    assert "buf0.bytes" in out


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["devices", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)
    assert devices[0]["kind"] == "llvm" and devices[0]["hardware"]["cores"] >= 1
    assert main.main(["devices"]) == 0
    assert "llvm" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_swallows_still_ends_the_run(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The KeyboardInterrupt is caught on its way here; what was noted ends the run."""
    from felix.tuning import pacing

    stop_after_signal: list[bool] = []

    def tune(tasks: Any, *, options: Any, **_: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        stop_after_signal.append(options.should_stop())
        raise pacing.Stopped

    monkeypatch.setattr(importlib.import_module("felix.tuning.tune"), "tune", tune)
    before = signal.getsignal(signal.SIGINT)
    assert main.main(["tune", GEMM, "--out", str(tmp_path), "--quiet"]) == interrupts.EXIT_CODE
    assert stop_after_signal == [True] and signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("text", "devices"), [("all", "all"), ("0", (0,)), ("2,0", (2, 0))])
def test_devices_are_numbers_or_all(text: str, devices: Any) -> None:
    arguments = main._parser().parse_args(["tune", GEMM, "--devices", text])
    assert arguments.devices == devices


@pytest.mark.parametrize("text", ["", "0,", "-1", "cuda:1", "all,0"])
def test_other_devices_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main._parser().parse_args(["tune", GEMM, f"--devices={text}"])
    assert "neither 'all' nor numbers like 0,1" in capsys.readouterr().err
