"""A small run of the fuzz of ONNX models and targets, and that it would see what it looks for."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="onnx is an optional extra")

from tests.security import fuzz_models
from tests.support import share


def test_random_models_and_targets_are_answered_or_refused() -> None:
    n_inputs = share.rounds(90, 400)
    figures = fuzz_models.run(n_inputs, seed=1)
    assert figures.violations == []
    assert sum(figures.outcomes.values()) == n_inputs
    assert {"onnx: read", "onnx: refused", "operator: read", "operator: refused"} <= set(
        figures.outcomes
    )


@pytest.mark.parametrize(
    "outcome, answer",
    [
        ("killed by -11", {}),
        ("raised KeyError", {"raised": "KeyError"}),
        ("refused", {"error": "cannot read SECRETS!"}),
        ("refused", {"error": f"shape [{int.from_bytes(b'SECRETS!', 'little')}, 8]"}),
        ("refused", {"error": f"no {fuzz_models.KEY}"}),
        ("refused", {"error": "in /tmp/x.py"}),
        ("refused", {"error": "two\nlines"}),
        ("refused", {"error": "x" * 3000}),
        ("read", {"error": None, "opened": ["/etc/passwd"]}),
    ],
)
def test_what_must_not_be_is_seen(outcome: str, answer: dict[str, object]) -> None:
    assert list(fuzz_models._problems(outcome, answer))
    assert not list(fuzz_models._problems("refused", {"error": "one line", "opened": []}))
