"""What attempts in confined and in other processes say about confinement."""

from __future__ import annotations

import pytest

from felix.processes import trial

REFUSED, MISSING = "304 in cuInit", "no driver"


@pytest.mark.parametrize(
    ("results", "verdict", "reason"),
    [
        ([None], trial.Verdict.CONFINED, None),
        ([REFUSED, MISSING], trial.Verdict.BROKEN, MISSING),
        ([REFUSED, None, None], trial.Verdict.CONFINED, None),
        ([MISSING, None, REFUSED], trial.Verdict.IN_THE_WAY, REFUSED),
    ],
)
def test_only_what_fails_twice_confined_and_works_between_is_confinements_fault(
    results: list[str | None], verdict: trial.Verdict, reason: str | None
) -> None:
    tried: list[bool] = []

    def attempt(confined: bool) -> str | None:
        tried.append(confined)
        return results[len(tried) - 1]

    assert trial.decide(attempt) == trial.Outcome(verdict, reason)
    assert tried == [True, False, True][: len(results)]
