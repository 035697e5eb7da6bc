"""What attempts in confined and in other processes say about confinement."""

from __future__ import annotations

import pytest

from felix.processes import confine

REFUSED, MISSING = "304 in cuInit", "no driver"


@pytest.mark.parametrize(
    ("results", "verdict", "reason"),
    [
        ([None], confine.Verdict.CONFINED, None),
        ([REFUSED, MISSING], confine.Verdict.BROKEN, MISSING),
        ([REFUSED, None, None], confine.Verdict.CONFINED, None),
        ([MISSING, None, REFUSED], confine.Verdict.IN_THE_WAY, REFUSED),
    ],
)
def test_only_what_fails_twice_confined_and_works_between_is_confinements_fault(
    results: list[str | None], verdict: confine.Verdict, reason: str | None
) -> None:
    tried: list[bool] = []

    def attempt(confined: bool) -> str | None:
        tried.append(confined)
        return results[len(tried) - 1]

    assert confine.decide(attempt) == confine.Finding(verdict, reason)
    assert tried == [True, False, True][: len(results)]
