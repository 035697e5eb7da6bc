"""Short spellings for the programs of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import te, tirx, topi

#: The tensors of a program: inputs, then outputs; or its TIR.
Program: TypeAlias = list[te.Tensor] | tirx.PrimFunc
Builder = Callable[[], Program]


def tensor(*shape: int, name: str = "x", dtype: str = "float32") -> te.Tensor:
    """An input of this shape."""
    return te.placeholder(shape, dtype, name=name)


def apply(
    function: Callable[..., Any],
    *shapes: Sequence[int],
    dtype: str = "float32",
    dtypes: Sequence[str] | None = None,
    **options: Any,
) -> Builder:
    """`function` of inputs of these shapes, with these further arguments by name.

    Args:
        dtypes: of each input; all are of `dtype` when left out.
    """

    def build() -> list[te.Tensor]:
        inputs = [
            tensor(*shape, name=f"x{i}", dtype=dtype if dtypes is None else dtypes[i])
            for i, shape in enumerate(shapes)
        ]
        return [*inputs, *outputs(function(*inputs, **options))]

    return build


def outputs(result: Any) -> list[te.Tensor]:
    """The tensors a function of topi returned."""
    return [result] if isinstance(result, te.Tensor) else list(result)


def chain(shape: Sequence[int], *steps: Callable[[te.Tensor], te.Tensor]) -> Builder:
    """One function of a tensor after the other."""

    def build() -> list[te.Tensor]:
        start = value = tensor(*shape)
        for step in steps:
            value = step(value)
        return [start, value]

    return build


def gelu(x: te.Tensor) -> te.Tensor:
    """0.5 x (1 + erf(x / sqrt(2))), of operators of topi."""
    return topi.multiply(
        topi.multiply(x, 0.5), topi.add(topi.erf(topi.multiply(x, 0.7071067811865476)), 1.0)
    )
