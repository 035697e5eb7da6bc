"""`python -m costmodel`: end to end on a made-up data set, and its error lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costmodel import __main__ as cli
from costmodel import registry
from costmodel.cli import collect
from costmodel.collect import collector as collecting
from costmodel.data import dataset, features, felix_bridge, parallel_features, replay
from costmodel.models import checkpoint, segment_mlp
from costmodel.training import model_card
from felix.processes import child
from felix.target import cpu
from tests.support import collect_fakes
from tests.support.costmodel_fakes import NAMES, FakeFeaturizer


def test_train_then_evaluate_then_load(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "llvm" / registry.FILE_NAME
    arguments = f"train --data {data} --out {out} --epochs 30 --hidden 16 --threads 1 --calibrate"
    arguments += f" --cache {tmp_path}/cache --scores {tmp_path}/scored --final"
    assert cli.main(arguments.split()) == 0
    assert str(out) in capsys.readouterr().out
    module, metadata = checkpoint.load(out, NAMES, 5)
    assert isinstance(module, segment_mlp.SegmentSumMLP) and module.options.hidden == 16
    assert metadata.device == "llvm" and metadata.device_name == "testcpu"
    assert metadata.data["workloads"] == 24
    assert metadata.command.startswith("python -m costmodel train --data")
    network = metadata.scores["reports"][0]["overall"]
    assert network["pairwise"] > 0.8
    shipped = {registry.FILE_NAME, replay.FILE_NAME, model_card.FILE_NAME}
    assert {path.name for path in out.parent.iterdir()} == shipped
    written = json.loads((tmp_path / "scored" / model_card.SCORES).read_text())
    count = int(written["part"].split()[0])
    assert count > 1 and all(len(each.pop("tasks")) == count for each in written["reports"])
    assert written == metadata.scores
    scored, _ = checkpoint.load(tmp_path / "scored" / model_card.HELD_OUT, NAMES, 5)
    assert not torch.equal(scored.head.weight, module.head.weight)

    scores = tmp_path / "scores.json"
    arguments = ["evaluate", "--data", str(data), "--model", str(out), "--out", str(scores)]
    assert cli.main([*arguments, "--part", "all", "--baselines", "--per-task"]) == 0
    table = capsys.readouterr().out
    assert "pairwise" in table and "gemm_0" in table and "analytic" in table
    content = json.loads(scores.read_text())
    assert content["part"] == "all" and len(content["reports"][0]["tasks"]) == 24
    assert "corrected" not in content

    assert cli.main([*arguments, "--part", "all", "--measured", "4", "2"]) == 0
    content = json.loads(scores.read_text())
    labels = [report["label"] for report in content["corrected"]]
    assert labels == [
        f"{text} {n}" for n in (4, 2) for text in ("before, left after", "corrected by")
    ]
    assert labels[1] in capsys.readouterr().out
    counts = [[task["count"] for task in each["tasks"]] for each in content["corrected"]]
    assert counts[0] == counts[1] and counts[2] == [count + 2 for count in counts[0]]
    assert cli.main([*arguments, "--part", "all", "--sources", "random"]) == 0
    of_random = json.loads(scores.read_text())["reports"][0]
    assert sum(task["count"] for task in of_random["tasks"]) > 0
    assert cli.main([*arguments, "--part", "all", "--sources", "descent"]) == 1
    assert "no schedule that ran was chosen by descent" in capsys.readouterr().err
    assert cli.main(["evaluate", "--data", str(data), "--baselines", "--measured", "4"]) == 1
    assert "--measured needs --model" in capsys.readouterr().err

    _, info = registry.load_for("llvm", NAMES, 5, root=tmp_path)
    assert info.source == "checkpoint"
    assert info.replay is not None and len(set(info.replay.task_ids)) == 24
    text = (out.parent / "MODEL_CARD.md").read_text()
    for part in (
        "digest",
        "calibration: ",
        "conv2d 8",
        f"{tmp_path}/scored/held_out.safetensors",
        "trained once more on all",
        "| network |",
        "--final",
        "Limits",
    ):
        assert part in text


def test_scores_lie_beside_the_model_by_default(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "m" / registry.FILE_NAME
    arguments = ["train", "--data", str(data), "--out", str(out), "--epochs", "1"]
    assert cli.main([*arguments, "--hidden", "4", "--final", "--replay", "0"]) == 0
    files = {registry.FILE_NAME, model_card.FILE_NAME, model_card.SCORES, model_card.HELD_OUT}
    assert {path.name for path in out.parent.iterdir()} == files
    assert "`scores.json` holds" in (out.parent / model_card.FILE_NAME).read_text()


class Uncalled(FakeFeaturizer):
    """Has nothing to compute, because the cache holds it."""

    def rows(self, *arguments: Any) -> features.Rows:
        raise AssertionError("not in the cache")


def test_processes_fill_the_cache_with_what_one_would_compute(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = dataset.read(data)
    caches = tmp_path / "one", tmp_path / "two"
    alone = features.load_features(stored, FakeFeaturizer(), caches[0])
    parallel_features.fill_cache(stored, FakeFeaturizer, caches[1], 2)
    files = [sorted(p.relative_to(c) for p in c.rglob("*.npz")) for c in caches]
    assert files[0] == files[1] and files[0]
    cached = features.load_features(stored, Uncalled(), caches[1])
    for task, expected in zip(cached.tasks, alone.tasks, strict=True):
        np.testing.assert_array_equal(task.rows, expected.rows)
    assert cli.main(["evaluate", "--data", str(data), "--baselines", "--jobs", "2"]) == 1
    assert "give --cache as well" in capsys.readouterr().err


def test_card_without_scores_says_so() -> None:
    metadata = checkpoint.Metadata(1, NAMES, "llvm")
    text = model_card.render("m", segment_mlp.SegmentSumMLP(NAMES), metadata)
    assert "Not scored." in text and "an unrecorded command" in text


def test_compact_through_the_command_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compact", str(data), str(tmp_path / "small")]) == 0
    assert dataset.read(data).digest in capsys.readouterr().out
    assert dataset.read(tmp_path / "small").digest == dataset.read(data).digest


class FakePool:
    """A pool over the fake bench; one for all tasks, closed at the end."""

    def __init__(self) -> None:
        self.bench = collect_fakes.Bench()
        self.timing_lock = types.SimpleNamespace(shared=self.bench.computing)
        self.served: list[str] = []
        self.closed = False

    def for_task(self, task: Any) -> FakePool:
        self.served.append(task.name)
        return self

    def submit(self, mod: Any) -> Any:
        return self.bench.submit(mod)

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_collect_measures_in_one_pool_and_resumes_with_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pools: list[FakePool] = []

    def pool_for(task: object, builders: int) -> FakePool:
        assert builders == 3
        pools.append(FakePool())
        return pools[-1]

    monkeypatch.setattr(felix_bridge, "pool_for", pool_for)
    monkeypatch.setattr(
        felix_bridge, "sketches_of", lambda task, hardware=None: [collect_fakes.FakeSketch(0)]
    )
    monkeypatch.setattr(felix_bridge, "features_version", lambda kind: 7)
    (tmp_path / "w").write_text("gemm:8,8,8\nsoftmax:4x8\n")
    arguments = ["collect", "--out", str(tmp_path / "d"), "--workloads", str(tmp_path / "w")]
    arguments += ["--builders", "3"]
    assert cli.main([*arguments, "--per-workload", "5"]) == 0
    assert "10 of 10 schedules" in capsys.readouterr().out
    (pool,) = pools
    assert len(pool.served) == 2 and pool.closed

    network = segment_mlp.seeded(collect_fakes.NAMES, segment_mlp.ModelOptions(hidden=8))
    checkpoint.save(tmp_path / "m", network, checkpoint.Metadata(7, collect_fakes.NAMES, "llvm"))
    assert cli.main([*arguments, "--per-workload", "12", "--model", str(tmp_path / "m")]) == 0
    read = dataset.read(tmp_path / "d")
    operators = {workload.operator for workload in read.workloads.values()}
    assert len(read.records) == 24 and operators == {"gemm", "softmax"}
    assert {"random"} < {r.source for r in read.records}
    assert json.loads(read.records[0].target)["kind"] == "llvm"


def test_collectors_get_the_same_options_and_a_share_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    devices: list[str | None] = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    codes = iter([0, 0, 0, 1, 1])

    def start(*command: str, environment: dict[str, str], **_: object) -> Any:
        started.append([*command])
        devices.append(environment.get("CUDA_VISIBLE_DEVICES"))
        return types.SimpleNamespace(wait=lambda: next(codes))

    monkeypatch.setattr(child, "start", start)
    monkeypatch.setattr(sys, "argv", ["another", "--jobs", "9"])  # of who calls `main`
    arguments = ["collect", "--target", '{"kind": "llvm"}', "--out", f"{tmp_path}/a folder"]
    arguments += ["--per-workload", "7", "--seconds=9.5", "--seed", "-1", "--builders", "2"]
    arguments += ["--near", "0.25", "--workloads", f"{tmp_path}/w", "--model", "m"]
    assert cli.main([*arguments, "--jobs", "3"]) == 0
    assert [command[0] for command in started] == ["costmodel"] * 3
    for index, command in enumerate(started):
        alone = cli.parser().parse_args([*arguments, "--part", f"{index}/3"])
        assert cli.parser().parse_args(command[1:]) == alone and alone.jobs == 1
    assert cli.main([*arguments, "--jobs=2", "--gpus=2"]) == 1
    assert devices == [None, None, None, "0", "1"]
    assert "2 of 2 collectors failed" in capsys.readouterr().err and len(started) == 5


def test_shares_are_counted_from_0_and_make_up_the_whole(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("gemm:8,8,8\nsoftmax:4x8\ngemm:4,4,4\n")
    arguments = ["collect", "--out", "o", "--workloads", f"{tmp_path}/w"]
    shares = []
    for part in ([], ["--part", "0/2"], ["--part", "1/2"]):
        options = cli.parser().parse_args([*arguments, *part])
        shares.append([w.operator for w in collect._workloads(options, '{"kind": "llvm"}')])
    assert shares == [["gemm", "softmax", "gemm"], ["gemm", "gemm"], ["softmax"]]


def test_every_builder_has_a_candidate_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[int] = []
    in_flight: list[int] = []

    def collected(
        environment: collecting.Environment, workloads: Any, writer: Any, known: Any, options: Any
    ) -> collecting.Progress:
        environment.open_workload(workloads[0])
        in_flight.append(options.in_flight)
        return collecting.Progress(total=0)

    def pool_for(task: object, builders: int) -> FakePool:
        pools.append(builders)
        return FakePool()

    monkeypatch.setattr(cpu, "available_cores", lambda: 16)
    monkeypatch.setattr(collecting, "collect", collected)
    monkeypatch.setattr(felix_bridge, "pool_for", pool_for)
    monkeypatch.setattr(felix_bridge, "sketches_of", lambda task: [collect_fakes.FakeSketch(0)])
    (tmp_path / "w").write_text("gemm:8,8,8\n")
    arguments = ["collect", "--out", f"{tmp_path}/d", "--workloads", f"{tmp_path}/w"]
    assert cli.main(arguments) == 0 and cli.main([*arguments, "--builders", "3"]) == 0
    assert pools == [16, 3] and in_flight == [32, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "{tmp}/none", "--out", "{tmp}/m"], "not a data set"),
        (["evaluate", "--data", "{data}", "--model", "{tmp}/none"], "cannot read"),
        (["evaluate", "--data", "{data}", "--model", "{tmp}/old"], "features version 4"),
        (["evaluate", "--data", "{data}"], "give --model"),
        (["train", "--data", "{data}", "--out", "{tmp}/m", "--test", "0.9"], "sum below 1"),
        (["train", "--data", "{data}", "--out", "{tmp}/m", "--prior", "nope"], "'nope'"),
        (["train", "--data", "{data}", "--out", "/proc/none/m", "--epochs", "1"], "cannot write"),
        (["compact", "{tmp}", "{tmp}/c"], "not a data set"),
        (["collect", "--out", "{tmp}/o", "--target", "quantum"], "unknown target"),
        (["collect", "--out", "{tmp}/o", "--workloads", "{tmp}/none"], "cannot read"),
        (["collect", "--out", "{tmp}/o", "--workloads", "{tmp}/bad"], "unknown operator"),
        (["collect", "--out", "{tmp}/o", "--workloads", "{tmp}/empty"], "no workloads"),
        (["collect", "--out", "/proc/none", "--workloads", "{tmp}/good"], "cannot write"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_1(
    arguments: list[str],
    message: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = checkpoint.Metadata(4, NAMES, "llvm")
    checkpoint.save(tmp_path / "old", segment_mlp.SegmentSumMLP(NAMES), old)
    for name, text in {"bad": "nope:1\n", "empty": "# nothing\n", "good": "gemm:8,8,8\n"}.items():
        (tmp_path / name).write_text(text)
    filled = [a.replace("{tmp}", str(tmp_path)).replace("{data}", str(data)) for a in arguments]
    assert cli.main(filled) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("costmodel: ") and message in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["nope"], "invalid choice"),
        (["train"], "required: --data"),
        (["collect", "--out", "x", "--per-workload", "0"], "0 is not positive"),
        (["collect", "--out", "x", "--seconds", "-1"], "not a positive time"),
        (["collect", "--out", "x", "--part", "0/0"], "0/0 is not I/N with I from 0 to N-1"),
        (["collect", "--out", "x", "--part", "3/3"], "3/3 is not I/N"),
        (["collect", "--out", "x", "--part", "-1/3"], "argument --part"),
        (["collect", "--out", "x", "--part", "3"], "3 is not I/N"),
        (["collect", "--out", "x", "--jobs", "3", "--part", "0/3"], "not allowed with argument"),
        (["collect", "--out", "x", "--job", "3"], "unrecognized arguments: --job 3"),
        (["train", "--data", "x", "--out", "y", "--cach", "z"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_interrupt_exits_with_130(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(features, "load_features", interrupt)
    assert cli.main(["train", "--data", str(data), "--out", "m"]) == 130


def test_help_and_import_are_light() -> None:
    code = (
        "import sys, costmodel, costmodel.__main__ as m\n"
        "m.parser().format_help()\n"
        "print(sorted({'torch', 'tvm', 'pyarrow'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "[]"
