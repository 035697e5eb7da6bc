"""What version 0.1.0 wrote still works: an output folder, its session, a service's database."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tarfile

import pytest

from felix import records

ARCHIVE = pathlib.Path(__file__).parent / "data" / "version_0_1_0.tar.xz"
TARGET = "llvm -num-cores 2 -mcpu x86-64-v3"
#: Latency of the best schedule in the folder of the run.
BEST_US = 7.8969999999999985


@pytest.fixture
def stored(tmp_path: pathlib.Path) -> pathlib.Path:
    """The unpacked files of version 0.1.0."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "version_0_1_0"


def felix(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "felix", *arguments, "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_session_is_resumed(stored: pathlib.Path) -> None:
    out = stored / "run"
    before = records.read(out / "tuning" / "records.jsonl")
    felix("tune", "gemm:64,64,64,epilogue=relu", "--target", TARGET, "--trials", "16",
          "--round", "4", "--seed", "3", "--no-numpy", "--quiet", "--resume",
          "--out", str(out))  # fmt: skip
    after = records.read(out / "tuning" / "records.jsonl")
    assert after[: len(before)] == before
    measured = [record for record in after if not record.repeat]
    assert len(measured) == 16
    assert len({(r.sketch_index, r.decisions) for r in measured}) == 16, (
        "nothing is measured twice"
    )


def test_the_best_schedule_is_built_from_stored_records(
    stored: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "built"
    felix("compile", str(stored / "run"), "--out", str(out))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["best"]["latency_us"] == BEST_US
    old = json.loads((stored / "run" / "manifest.json").read_text())
    assert set(manifest) == set(old)
    assert manifest["task"] == old["task"] and manifest["best"] == old["best"]
    assert set(manifest["files"]) == set(old["files"]) - {".tuning.lock"}
    for name in ("schedule.py", "workload.json"):
        assert (out / name).read_text() == (stored / "run" / name).read_text(), name


def test_an_artifact_runs_by_itself(stored: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(stored / "run" / "run.py"), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["checked_against"]) == {"the unscheduled program", "numpy"}
