"""ONNX's own cases of one node each.

Each case is imported, lowered, built for this CPU as TVM schedules it, and run; its outputs are
compared with the case's, by the case's tolerances; of 16-bit floats, whose expected values ONNX
rounds at every step, by two units in the last place.
"""

from __future__ import annotations

from typing import Any

from benchmarks.conformance import ledger
from benchmarks.support import onnx_cases

#: Cases whose values are not what ONNX's text says, and what is taken for right: ONNX Runtime's.
#: By the text ends are aligned by whole lengths; the cases take those before they are rounded.
_DISPUTED = frozenset(
    f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("cubic", "linear")
)


class Cases:
    """The cases by their names.

    Attributes:
        limit_s: seconds that a case may take.
        head: what the ledger says of itself.
    """

    limit_s = 60.0
    head = ""

    def __init__(self) -> None:
        self._cases = onnx_cases.collected()

    @property
    def names(self) -> list[str]:
        return list(self._cases)

    def judge(self, name: str) -> ledger.Found:
        """The state of a case."""
        return ledger.judged(lambda: _compared(self._cases[name]))


def _compared(case: Any) -> ledger.Found:
    results = onnx_cases.by_felix(case.model, [inputs for inputs, _ in case.data_sets])
    names = [item.name for item in case.model.graph.input]
    for outputs, (inputs, expected) in zip(results, case.data_sets, strict=True):
        if case.name in _DISPUTED:
            by_name = dict(zip(names, inputs, strict=False))
            expected = onnx_cases.by_runtime(case.model, by_name)
        if (why := onnx_cases.difference(outputs, expected, case)) is not None:
            return ledger.Found("wrong", why)
    return ledger.Found("right")
