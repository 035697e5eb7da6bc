"""A program as a torch function: one autograd function around its two passes.

Only this module of `felix.autodiff` loads torch: exact evaluation and the formula cache do not
need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from felix.autodiff import program as autodiff_program

_LN2 = float(np.log(2.0))


class _Smooth(torch.autograd.Function):
    """x [batch, n_symbols] -> outputs [batch, n_outputs], reverse pass by its `backward`."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, program: autodiff_program.FormulaProgram, temperature: float
    ) -> torch.Tensor:
        points = np.ascontiguousarray(x.detach().double().cpu().numpy().T)
        values, buffer = program.passes.forward(points, temperature)
        ctx.again = (points, temperature)
        ctx.program, ctx.buffer, ctx.slopes, ctx.x = program, buffer, None, x
        if program.log_outputs.any():
            flags = program.log_outputs[:, None]
            size = 1.0 + np.abs(values)
            ctx.slopes = np.where(flags, 1.0 / (_LN2 * size), 1.0)
            values = np.where(flags, autodiff_program.signed_log2(values), values)
        return torch.from_numpy(values).T.to(x.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        outer = gradient.detach().double().cpu().numpy().T
        if ctx.slopes is not None:
            outer = outer * ctx.slopes
        if ctx.buffer is None:  # a second reverse pass (retain_graph): the first one overwrote X
            _, ctx.buffer = ctx.program.passes.forward(*ctx.again)
        inner = ctx.program.passes.backward(ctx.buffer, outer)
        ctx.buffer = None
        return torch.from_numpy(inner).T.to(ctx.x), None, None


def smooth(
    program: autodiff_program.FormulaProgram, x: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Smooth values of a program's outputs, differentiable (once) in x.

    Args:
        program: what to evaluate.
        x: [batch, n_symbols] relaxed values of the variables (not their logarithms).
        temperature: > 0.

    Returns:
        [batch, n_outputs], float64.
    """
    if x.ndim != 2 or x.shape[1] != len(program.symbols):
        raise ValueError(f"expected [batch, {len(program.symbols)}], got {list(x.shape)}")
    if not temperature > 0.0:
        raise ValueError("the temperature must be above 0; use exact() for the limit")
    result: torch.Tensor = _Smooth.apply(x, program, temperature)  # type: ignore[no-untyped-call]
    return result
