"""What PyTorch computes in place of a product that a norm is folded into.

The function that stands for the product itself, of the norm's input and the scaled weights; then
its rows are scaled by the statistics, and outer products are added, as the program's epilogue does
(`felix.templates.gemm.norms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felix.frontend.torch_calls.form import TorchCall, TorchForm
from felix.templates.gemm.norms import folding

_PRODUCTS = ("matmul", "matmul_transposed")
_FLOAT = "float32"


def of_product(
    form: TorchForm | None,
    folded: folding.Folded,
    names: Sequence[int | str],
    shape: Sequence[int],
    dtype: str,
) -> TorchForm | None:
    """The form of a folded product; None where none is known.

    Outer products are added to sums in float32 alone: PyTorch would round a sum of operands of 16
    bits to as many, and what is left of it less a mean would be of few bits.

    Args:
        form: of the product as it was.
        folded: its folded form.
        names: what each input of `form` is among those of the folded product.
        shape: of the product.
        dtype: of its operands.
    """
    if form is None or form.calls[0].function not in _PRODUCTS:
        return None
    if folded.added and dtype != _FLOAT:
        return None
    product, *behind = form.calls
    inputs = folded.product.inputs
    writer = _Writer(len(inputs))
    known = {number: inputs.index(name) for number, name in enumerate(names)}
    value = writer.add(product.renumbered(known.__getitem__))
    statistics = inputs.index(folding.STATISTICS)
    rows = [*shape[:-1], 1]
    value = writer.call("multiply", [value, writer.row(statistics, 0, rows)], product.dtype)
    n_rows = 1
    for number, has_row in enumerate(folded.added):
        added = inputs.index(folding.column(number))
        if has_row:
            row = writer.row(statistics, n_rows, rows)
            added = writer.call("multiply", [row, added], _FLOAT)
            n_rows += 1
        value = writer.call("add", [value, added], product.dtype)
    known[form.n_inputs] = value
    for number, call in enumerate(behind, form.n_inputs + 1):
        known[number] = writer.add(call.renumbered(known.__getitem__))
    return TorchForm(len(inputs), writer.calls, form.allow_tf32)


class _Writer:
    """Calls one behind the other; each gives the number of its result."""

    def __init__(self, n_inputs: int) -> None:
        self.calls: list[TorchCall] = []
        self._n_inputs = n_inputs

    def add(self, call: TorchCall) -> int:
        self.calls.append(call)
        return self._n_inputs + len(self.calls) - 1

    def call(self, function: str, operands: list[Any], dtype: str, **options: Any) -> int:
        return self.add(TorchCall(function, operands, options, dtype))

    def row(self, statistics: int, number: int, shape: list[int]) -> int:
        """One of the statistics, with a column for it."""
        one = self.call("narrow", [statistics], _FLOAT, dim=0, start=number, length=1)
        return self.call("reshape", [one], _FLOAT, shape=shape)
