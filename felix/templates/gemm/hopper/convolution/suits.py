"""Which convolutions the copy engine can gather, and in a sentence why it cannot others."""

from __future__ import annotations

from felix import launch_plan
from felix.templates.gemm.hopper.convolution import channel_blocks
from felix.templates.gemm.hopper.convolution.pixels import pixels_of
from felix.templates.gemm.problem import GemmProblem, Window


def unsuited(problem: GemmProblem) -> str | None:
    """Why a problem with a gathered operand is not for the template; None if it is."""
    if problem.a.gather is None and problem.b.gather is None:
        return None
    is_a = channel_blocks.pixels_are_a(problem)
    if is_a is None:
        return "both of its operands are gathered from windows that move"
    pixels = pixels_of(problem.a if is_a else problem.b, problem)
    if not pixels.is_aligned and pixels.packable is None:
        return "pixels that the copy engine cannot read are not evenly spaced either"
    if pixels.rank not in launch_plan.CORNERS:
        return (
            f"images, groups and windows are {pixels.rank} dimensions with the channels, "
            f"the copy engine has {max(launch_plan.CORNERS)}"
        )
    return next(filter(None, (_why_not(w, pixels.rank) for w in pixels.gather.windows)), None)


def _why_not(window: Window, rank: int) -> str | None:
    """Why no tensor map of so many dimensions has a window."""
    if not 1 <= window.stride <= launch_plan.LARGEST_STRIDE:
        return f"the copy engine has no stride of {window.stride}"
    least, most = launch_plan.CORNERS[rank]
    after = (window.outputs - 1) * window.stride - window.before - (window.extent - 1)
    if not least <= -window.before <= most or not least <= after <= most:
        return (
            f"windows begin {window.before} before their dimension and the last {-after} before "
            f"its end, the copy engine has {least} to {most}"
        )
    reach = (window.taps - 1) * window.dilation
    if not 0 <= reach <= launch_plan.LARGEST_OFFSET[rank]:
        return (
            f"a window reaches over {reach} places, the copy engine over "
            f"{launch_plan.LARGEST_OFFSET[rank]}"
        )
    return None
