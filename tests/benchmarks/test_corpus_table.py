"""The results file of the corpus, and its tables."""

from __future__ import annotations

from benchmarks.support import corpus_table
from tests.corpus import __main__ as command
from tests.corpus.outcome import Kind, Outcome

RESULTS = [
    Outcome("add", "llvm", Kind.MODELLED, rows=6),
    Outcome("sort", "llvm", Kind.REFUSED, message="UnsupportedSchedule: a | sort\n"),
    Outcome("scan", "cuda", Kind.REFUSED, message="UnsupportedSchedule: a scan"),
    Outcome("pad", "cuda", Kind.ERROR, message="Traceback\nboom"),
]


def test_programs_that_only_metaschedule_models_count_against_the_share() -> None:
    data = command._data(RESULTS, [("sort", "llvm")])
    assert "reason" not in data["programs"][0]
    assert [each.get("missing") for each in data["programs"]] == [None, True, False, False]
    said = corpus_table.statement(data)
    assert said.startswith("4 programs and targets: 1 are modelled, which is 50.0% of those")
    assert "1 end in a mismatch, an error, a crash or no end. 6 schedules" in said
    tables = corpus_table.render(data)
    assert "a \\| sort" in tables and "boom" in tables and "a scan" not in tables
    assert command._share(RESULTS, [("sort", "llvm")]) == 0.5
