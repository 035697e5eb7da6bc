"""What the outputs of a program have to be, and how large its results are.

An output is compared relative to its own values and to the root mean square (RMS) of all of them
(`reference`). A sum of n random terms errs in proportion to the RMS that such sums have, √n times
that of a term, and not to the value that one of them happens to have: terms may cancel, or an
epilogue may cut the sum off. Where an output has fewer than `MIN_RESULTS` elements, its own RMS
says too little. So the program is computed for further random inputs, and the RMS is of the
results of all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from felix.measure import reference
from felix.measure.reference import Argument, Array

#: Elements that an RMS should be of.
MIN_RESULTS = 16
#: Further inputs have so many elements in all, but where so few of them would be drawn.
MAX_DRAWN, MIN_DRAWS = 2**26, 3

#: Outputs by argument index, of the inputs that a seed gives; positive ones if `positive`.
Run = Callable[[int, bool], dict[int, Array]]


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The reference of a task.

    Attributes:
        outputs: by argument index.
        positive: whether inputs have to be positive, so that outputs are finite.
        rms: of the results of each output, by argument index; 0 for no floats.
    """

    outputs: dict[int, Array]
    positive: bool
    rms: dict[int, float]


def compute(run: Run, args: Sequence[Argument], seed: int) -> Expected:
    """The reference of a task with these arguments."""
    outputs, positive = run(seed, False), False
    if not reference.all_finite(outputs, args):
        outputs, positive = run(seed, True), True
    draws = [outputs, *(run(seed + i, positive) for i in range(1, 1 + _further(outputs, args)))]
    return Expected(outputs, positive, rms(draws))


def rms(draws: Sequence[Mapping[int, Array]]) -> dict[int, float]:
    """The RMS of each output over some draws, by argument index."""
    squares = {index: [reference.rms(draw[index]) ** 2 for draw in draws] for index in draws[0]}
    return {index: math.sqrt(np.mean(values)) for index, values in squares.items()}


def _further(outputs: Mapping[int, Array], args: Sequence[Argument]) -> int:
    """How many further inputs are drawn."""
    sizes = [o.size for i, o in outputs.items() if o.size and reference.is_float(args[i].dtype)]
    least = min(sizes, default=MIN_RESULTS)
    drawn = sum(math.prod(arg.shape) for arg in args if arg.is_input)
    affordable = max(MAX_DRAWN // max(drawn, 1), MIN_DRAWS)
    return min(-(-MIN_RESULTS // least) - 1, affordable)
