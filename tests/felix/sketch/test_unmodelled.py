"""Defects of modelling cost a sketch, by name; what is no defect passes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import felix
from felix import errors
from felix.sketch import sketch, unmodelled


def test_a_defect_costs_the_sketch_it_is_met_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = felix.workloads.gemm(16, 16, 16)
    n_sketches = len(felix.sketches(task))
    parse, numbers = sketch.interpret.parse, iter(range(n_sketches))

    def broken(trace: Any) -> Any:
        if next(numbers) == 1:
            raise KeyError("a loop nobody thought of")
        return parse(trace)

    monkeypatch.setattr(sketch.interpret, "parse", broken)
    notes: list[str] = []
    with caplog.at_level(logging.WARNING, unmodelled.__name__):
        rest = sketch.sketches(task, on_left_out=notes.append)
    assert [each.index for each in rest] == [i for i in range(n_sketches) if i != 1]
    (note,) = notes
    assert "sketch 1 left out" in note and "a loop nobody thought of" in note
    (record,) = caplog.records
    assert record.exc_info and vars(record)["action"] == "unforeseen_form"


def test_where_all_are_defects_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trace: Any) -> Any:
        raise KeyError("a loop nobody thought of")

    monkeypatch.setattr(sketch.interpret, "parse", broken)
    with pytest.raises(errors.UnforeseenForm, match=r"gemm_16x16x16: .*KeyError.*please report"):
        felix.sketches(felix.workloads.gemm(16, 16, 16))


@pytest.mark.parametrize("error", [errors.UnsupportedSchedule("left out"), MemoryError()])
def test_what_is_no_defect_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, unmodelled.reported():
        raise error
    assert caught.value is error
