"""Commands for networks and known results, and where commands look for the service."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from unittest import mock

import pytest
import torch
from torch import nn

from felix import client, errors, sketches, workloads
from felix.builder import payload
from felix.cli import main, measuring
from felix.cli.remote import connection
from felix.database import metaschedule_files, outcome, store
from felix.network.contenders import alone
from felix.task import Task
from felix.tuning import options
from tests.support import live_service, networks


@pytest.fixture
def pool(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> networks.Pool:
    """What the command measures with; known results are the test's own."""
    pool = networks.Pool()
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "known.sqlite"))

    def open_pool(self: options.TuneOptions, task: Task) -> networks.Pool:
        pool.devices = self.devices
        return pool

    monkeypatch.setattr(options.TuneOptions, "open_pool", open_pool)
    return pool


def _exported(folder: pathlib.Path) -> pathlib.Path:
    model, path = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), folder / "net.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(2, 8),)), path)
    return path


@pytest.mark.slow("tunes another network by the command")
def test_exported_program(
    tmp_path: pathlib.Path,
    pool: networks.Pool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        alone, "latencies_us", lambda *_: {}
    )  # the pool's latencies are no real ones
    path = _exported(tmp_path)
    out = tmp_path / "out"
    arguments = ["tune", str(path), "--trials", "2", "--out", str(out), "--quiet", "--json"]
    assert main.main([*arguments, "--devices", "0,1"]) == 0
    assert pool.devices == (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["reason"] == "trials" and pool.n_measured >= 2
    assert [group["ships"] for group in report["groups"]] == ["felix"]
    assert (out / "run.py").exists() and (out / "manifest.json").exists()
    n_measured = pool.n_measured
    assert main.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["reason"] is None
    assert pool.n_measured == n_measured


def test_without_time_to_build_there_is_a_report_and_no_artifact(
    tmp_path: pathlib.Path, pool: networks.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = _exported(tmp_path), tmp_path / "out"
    assert main.main(["tune", str(path), "--seconds", "0.001", "--out", str(out), "--quiet"]) == 1
    printed = capsys.readouterr().out
    assert "give more seconds" in printed and "there is no artifact" in printed
    assert not (out / "manifest.json").exists()


def test_onnx(
    tmp_path: pathlib.Path, pool: networks.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weight = onnx.numpy_helper.from_array(torch.randn(8, 4).numpy(), "w")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["y"]),
        ],
        "net",
        [
            helper.make_tensor_value_info("x", floats, ["n", 8]),
            helper.make_tensor_value_info("b", floats, [4]),
        ],
        [helper.make_tensor_value_info("y", floats, ["n", 4])],
        [weight],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    out = tmp_path / "out"
    arguments = ["tune", str(path), "--trials", "2", "--out", str(out), "--quiet"]
    assert main.main([*arguments, "--shape", "x=3x8", "--value", "b=[1,2,3,4]"]) == 0
    assert "net for llvm: 1 groups" in capsys.readouterr().out
    assert main.main(arguments) == 1
    assert "shape" in capsys.readouterr().err


def test_a_network_of_a_cluster_s_device_is_not_run_here(
    tmp_path: pathlib.Path,
    pool: networks.Pool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(measuring, "require_ray", lambda address: None)
    monkeypatch.setattr(measuring, "pool_of_cluster", lambda address: lambda task: pool)
    path, out = _exported(tmp_path), tmp_path / "out"
    arguments = ["tune", str(path), "--trials", "2", "--out", str(out), "--quiet"]
    assert main.main([*arguments, "--cluster", "head:6379"]) == 0
    told = capsys.readouterr().out
    assert "a call runs: not run where it was built" in told
    assert "run it where its device is: python" in told
    assert pool.n_measured >= 2 and "largest error" not in told
    assert json.loads((out / "manifest.json").read_text())["report"]["timing"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.onnx", "--tracker=h:1", "--key=k"], "boards run one program at a time"),
        (["--queued", "--cluster=h:1"], "tunes on this machine"),
        (["net.onnx", "--cluster=h:1", "--devices=0"], "--cluster uses all it has"),
        (["net.onnx", "gemm:8,8,8"], "tune it by itself"),
        (["missing.pt2"], "cannot read missing.pt2"),
        (["net.onnx", "--strategy", "local"], "leave out --strategy and --model"),
        (["net.onnx", "--shape", "x=axb"], "NAME=1x3x224x224"),
        (["net.pt2", "--shape", "x=1"], "has its inputs"),
        (["net.onnx", "--value", "x=a"], "NAME=[1,2]"),
    ],
)
def test_bad_arguments(
    arguments: list[str],
    message: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["tune", *arguments]) == 1
    assert message in capsys.readouterr().err


# `felix known`: what is known as a MetaSchedule database.


def test_known_results_become_a_database(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = workloads.gemm(16, 32, 8, target="llvm -num-cores 2")
    sketch = sketches(task)[0]
    (row,) = sketch.sample(1, seed=0)
    known = store.Store(tmp_path / "known.sqlite")
    schedule = outcome.Schedule(
        sketch_key=sketch.key,
        sketch_index=sketch.index,
        variant=str(sketch.variant),
        decisions=outcome.decided(sketch.variables, row),
    )
    program = payload.of(sketch.program(row), task.target)
    known.add(task, outcome.KnownResult(tuned_us=7.0, program=program, schedule=schedule))
    out = str(tmp_path / "database")
    assert main.main(["known", out, "--known-results", str(known.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schedules": 1, "out": out}
    (entry,) = metaschedule_files.import_database(out)
    assert entry.latencies_us == pytest.approx([7.0])


def test_nothing_known_is_an_error(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none.sqlite"
    assert main.main(["known", str(tmp_path / "out"), "--known-results", str(file)]) == 1
    assert "nothing is known" in capsys.readouterr().err
    assert not file.exists() and not (tmp_path / "out").exists()


def url(tmp_path: pathlib.Path, option: str | None = None, **environment: str) -> str:
    """The service's address for a caller who brings a key."""
    arguments = argparse.Namespace(url=option, key_file=None)
    with connect(arguments, {"FELIX_API_KEY": "k", **environment}) as service:
        return service._http.url


def connect(arguments: argparse.Namespace, environment: dict[str, str]) -> client.Client:
    with mock.patch.dict(os.environ, environment, clear=True):
        return connection.connect(arguments)


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"FELIX_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"FELIX_HOST": "felix.lan", "FELIX_PORT": "9000"}, "http://felix.lan:9000"),
        ({"FELIX_HOST": "0.0.0.0"}, "http://127.0.0.1:8000"),
        ({"FELIX_HOST": "::"}, "http://[::1]:8000"),
        ({"FELIX_PORT": "", "FELIX_HOST": "", "FELIX_URL": ""}, "http://127.0.0.1:8000"),
        ({"FELIX_URL": "https://felix.example", "FELIX_PORT": "9000"}, "https://felix.example"),
    ],
)
def test_the_address_is_that_of_felix_serve(
    tmp_path: pathlib.Path, environment: dict[str, str], address: str
) -> None:
    assert url(tmp_path, **environment) == address
    assert url(tmp_path, "http://other:1", **environment) == "http://other:1"


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1"])
def test_a_port_that_is_none_is_named(tmp_path: pathlib.Path, port: str) -> None:
    with pytest.raises(errors.FelixError, match=f"FELIX_PORT is '{port}'"):
        url(tmp_path, FELIX_PORT=port)


@pytest.mark.parametrize(
    ("address", "is_sent"),
    [
        ("http://127.0.0.1:9000", True),
        ("http://localhost:9000/", True),
        ("http://127.0.0.1:8000", False),
        ("http://felix.example:9000", False),
        ("https://127.0.0.1:9000", False),
        ("http://127.0.0.1:9000@felix.example", False),
        ("http://127.0.0.1:x", False),
    ],
)
def test_the_key_of_this_machine_goes_to_its_service_only(
    tmp_path: pathlib.Path, address: str, is_sent: bool
) -> None:
    (tmp_path / connection.KEY_FILE).write_text("key of this machine\n")
    environment = {"FELIX_DATA_DIR": str(tmp_path), "FELIX_PORT": "9000", "FELIX_URL": address}
    arguments = argparse.Namespace(url=None, key_file=None)
    if is_sent:
        connect(arguments, environment).close()
        return
    with pytest.raises(errors.FelixError, match="an API key is needed"):
        connect(arguments, environment)


def test_commands_reach_a_service_on_another_port(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the settings of `felix serve` alone: no URL, no key."""
    with live_service.serving(tmp_path) as live:
        (tmp_path / connection.KEY_FILE).write_text(live.key.text)
        monkeypatch.setenv("FELIX_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("FELIX_PORT", str(live.port))
        for name in ("FELIX_URL", "FELIX_API_KEY", "FELIX_HOST"):
            monkeypatch.delenv(name, raising=False)
        assert main.main(["ls", "--json"]) == 0
        assert capsys.readouterr().out.strip() == "[]"
        assert main.main(["keys", "ls", "--json"]) == 0
        assert '"name": "k"' in capsys.readouterr().out
