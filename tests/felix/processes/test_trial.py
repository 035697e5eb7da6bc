"""What attempts in confined and in other processes say about confinement."""

from __future__ import annotations

import pytest

from felix.processes import confine

REFUSED, MISSING = "304 in cuInit", "no driver"


@pytest.mark.parametrize(
    ("results", "is_in_the_way", "reason"),
    [
        ([None], False, None),
        ([REFUSED, MISSING], False, MISSING),
        ([REFUSED, None, None], False, None),
        ([MISSING, None, REFUSED], True, REFUSED),
    ],
)
def test_only_what_fails_twice_confined_and_works_between_is_confinements_fault(
    results: list[str | None], is_in_the_way: bool, reason: str | None
) -> None:
    tried: list[bool] = []

    def attempt(confined: bool) -> str | None:
        tried.append(confined)
        return results[len(tried) - 1]

    assert confine.decide(attempt) == confine.Finding(is_in_the_way, reason)
    assert tried == [True, False, True][: len(results)]
