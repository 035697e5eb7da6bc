"""Calls that are timed in turns."""

from __future__ import annotations

import time

from felix.measure import timing
from felix.measure.calls import cpu_calls


def test_a_call_without_hope_has_one_turn() -> None:
    calls = {"fast": lambda: time.sleep(0.001), "slow": lambda: time.sleep(0.02)}
    latencies_us = cpu_calls.in_turns_us(calls, [], turns=3, burst=2, hopeless=2.0)
    assert {name: len(each) for name, each in latencies_us.items()} == {"fast": 6, "slow": 2}
    latencies_us = cpu_calls.in_turns_us(calls, [], turns=3, burst=2)
    assert {name: len(each) for name, each in latencies_us.items()} == {"fast": 6, "slow": 6}


def test_equal_calls_contend_to_the_end() -> None:
    assert timing.left_in_turns({"a": [], "b": []}, 2.0) == ["a", "b"]
    assert timing.left_in_turns({"a": [1.0, 9.0, 1.0], "b": [1.9, 1.9]}, 2.0) == ["a", "b"]
    assert timing.left_in_turns({"a": [1.0, 1.0], "b": [900.0, 1.5, 900.0]}, 2.0) == ["a", "b"]
    assert timing.left_in_turns({"a": [1.0], "b": [2.1]}, 2.0) == ["a"]
