"""The benchmark of repeated networks: what is reused, and the memory that it sees."""

from __future__ import annotations

import functools
import pathlib
import time

import pytest

import felix
from benchmarks.networks import repeated, results
from felix.network import optimize
from tests.support import networks

CASE = {
    "name": "dcgan",
    "dtype": "float32",
    "small": True,
    "target": networks.TARGET,
    "batches": [1, 2],
    "trials": 32,
}
MIB = 1 << 20


def test_the_same_network_is_known_and_another_batch_is_similar(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = networks.tune_options(networks.Pool())
    fake = functools.partial(optimize.optimize, options=options, pytorch=False)
    monkeypatch.setattr(felix, "optimize", fake)
    first = repeated._optimize(CASE, 1, tmp_path)
    assert (first["known"], first["similar"], first["trials"]) == (0, 0, 32)
    assert first["tasks"] > 2 and first["max_error"] < 1e-4
    again = repeated._optimize(CASE, 1, tmp_path)
    assert (again["known"], again["similar"], again["trials"]) == (first["tasks"], 0, 0)
    other = repeated._optimize(CASE, 2, tmp_path)
    assert (other["known"], other["similar"]) == (0, other["tasks"])
    run = {**CASE, "first": first, "again": again, "batch": other, "peak_gib": 0.5}
    row = results.render_repeated({"runs": [run]}).splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")[1:3]] == ["dcgan-small-float32", "32"]


def test_memory_of_this_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "_EVERY_S", 0.01)
    before_bytes, memory = repeated._used_bytes(), repeated.Memory()
    held = bytearray(128 * MIB)
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(0.5)
    peak_bytes = memory.end()
    assert peak_bytes - before_bytes > 100 * MIB
