"""A real Ray cluster on this machine: a head, workers, a tuner; a token or nothing."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.cluster_machines import Machines

pytest.importorskip("ray", reason="needs the extra [cluster]")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("cluster"))
    made.head()
    yield made
    made.close()


def _measures(text: str) -> bool:
    return "felix worker: measures on" in text


def _trials(folder: pathlib.Path) -> list[str]:
    path = folder / "records.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_a_tuner_measures_on_workers_one_of_which_is_killed(machines: Machines) -> None:
    workers = []
    for _ in range(2):  # one after the other: each is some ten processes
        workers.append(machines.worker())
        machines.until(workers[-1], _measures, 240)
    tuner = machines.tune("out", "--trials=96")
    records = machines.folder / "out"
    until_s = time.monotonic() + 240
    while len(_trials(records)) < 8:
        assert tuner.poll() is None and time.monotonic() < until_s, machines.log(tuner)
        time.sleep(0.05)
    os.killpg(workers[0].pid, signal.SIGKILL)
    assert tuner.poll() is None, "it was too quick"
    assert tuner.wait(300) == 0, machines.log(tuner)
    trials = [json.loads(line) for line in _trials(records)]
    first = {(each["sketch_key"], *each["decisions"]) for each in trials}
    assert len(first) == 96  # all were measured; finals have records of their own
    assert all(each["measurement"]["error"] != "infrastructure" for each in trials)


def test_without_a_token_nothing_starts(machines: Machines) -> None:
    machines.environment = {
        name: value for name, value in machines.environment.items() if "RAY_AUTH" not in name
    } | {"HOME": str(machines.folder)}
    for process in (machines.worker(), machines.tune("none")):
        assert process.wait(120) == 1
        assert "with a token only" in machines.log(process)


def test_a_wrong_token_reaches_nothing(machines: Machines) -> None:
    machines.environment = machines.environment | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 32,
    }  # fmt: skip
    tuner = machines.tune("wrong")
    assert tuner.wait(180) != 0
    assert _trials(machines.folder / "wrong") == []
