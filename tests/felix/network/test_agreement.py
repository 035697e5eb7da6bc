"""What counts as the same output."""

from __future__ import annotations

import pytest
import torch

from felix.network import agreement

INTEGERS = torch.arange(1000, dtype=torch.int32)


@pytest.mark.parametrize(
    ("n_off", "by", "is_exact", "is_right"),
    [
        (10, 1, False, True),
        (11, 1, False, False),
        (10, 2, False, False),
        (1, 1, True, False),
        (0, 0, True, True),
    ],
)
def test_few_integers_beside_floats_may_be_off_by_one(
    n_off: int, by: int, is_exact: bool, is_right: bool
) -> None:
    output = INTEGERS.clone()
    output[:n_off] += by
    assert (agreement.difference(output, INTEGERS, is_exact) == 0.0) == is_right


def test_bools_and_far_integers_are_exact() -> None:
    bools = torch.zeros(1000, dtype=torch.bool)
    other = bools.clone()
    other[3] = True
    assert agreement.difference(other, bools, is_exact=False) == float("inf")
    far = torch.zeros(1000, dtype=torch.int64)
    far[3] = torch.iinfo(torch.int64).min
    assert agreement.difference(far, torch.zeros_like(far), is_exact=False) == float("inf")
