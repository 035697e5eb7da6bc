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
    said = corpus_table.render(data)
    llvm, cuda = ([c.strip() for c in line.split("|")[1:-1]] for line in said.splitlines()[2:4])
    assert llvm == ["llvm", "2", "1", "1", "0", "0", "1", "50.0%"]
    assert cuda == ["cuda", "2", "0", "1", "0", "1", "0", "0.0%"]
    assert said.endswith("6 schedules were compared with TVM's.")
    assert command._share(RESULTS, [("sort", "llvm")]) == 0.5
