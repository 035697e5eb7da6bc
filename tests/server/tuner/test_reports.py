"""What an engine's process says of its devices is checked before it is written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from felix.measure import conditions
from server.tuner import reports

GOOD = dataclasses.asdict(conditions.Condition("cpu:0", 1, 2, 1, "busy"))


def test_what_makes_sense_is_taken() -> None:
    assert reports.checked([GOOD]) == {"cpu:0": conditions.Condition("cpu:0", 1, 2, 1, "busy")}


@pytest.mark.parametrize(
    "said",
    [
        [GOOD | {"queue": -1}],
        [GOOD | {"n_failed": 1.5}],
        [GOOD | {"queue": 10**12}],
        [GOOD | {"place": "x" * 2000}],
        [GOOD | {"fault": 5}],
        [GOOD | {"more": 1}],
        [5],
        5,
    ],
)
def test_what_makes_none_is_refused(said: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        reports.checked(said)


def test_a_device_is_reported_with_its_condition() -> None:
    device = {
        "place": "node:1",
        "host": "rack-2",
        "target_keys": ["cuda", "cuda/sm_90"],
        "fault": None,
        "versions": {"felix": "2"},
        "now": {"clock_ghz": float("nan"), "driver": "550"},
    }
    by_place = {"node:1": conditions.Condition("node:1", 4, 10, 2, "throttled")}
    (seen,) = reports.seen([device, {"name": "of an older tuner"}], by_place, {})
    assert (seen.host, seen.target_key, seen.queue) == ("rack-2", "cuda/sm_90", 4)
    assert (seen.fault, seen.driver, seen.clock_ghz) == ("throttled", "550", None)
    (alone,) = reports.seen([device | {"fault": "silent"}], {}, {})
    assert (alone.fault, alone.n_measured) == ("silent", 0)
