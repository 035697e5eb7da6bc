"""What the outputs of a program have to be, and how large its results are.

An output is compared relative to its own values and to the root mean square (RMS) of all of them
(`reference`). A sum of n random terms errs in proportion to the RMS that such sums have, √n times
that of a term, and not to the value that one of them happens to have: terms may cancel, or an
epilogue may cut the sum off. Where an output has fewer than `MIN_RESULTS` elements, its own RMS
says too little. So the program is computed for further random inputs, and the RMS is of the
results of all.

A file of them is a line of JSON, then the bytes of each output in the order of the arguments.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from felix.measure.checking import reference
from felix.measure.checking.reference import Argument, Array

#: Elements that an RMS should be of.
MIN_RESULTS = 16
#: Further inputs have so many elements in all, but where so few of them would be drawn.
MAX_DRAWN, MIN_DRAWS = 2**26, 3

#: Bytes of the line before the outputs of a file, at most.
_MAX_HEAD_BYTES = 1 << 16

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


def write(path: str, checked: Expected) -> None:
    """Write a file of the outputs and what belongs to them."""
    rms = {str(index): value for index, value in checked.rms.items()}
    with open(path, "wb") as file:
        file.write(json.dumps({"positive": checked.positive, "rms": rms}).encode() + b"\n")
        for index in sorted(checked.outputs):
            checked.outputs[index].tofile(file)


def read(path: str, args: Sequence[Argument]) -> Expected:
    """What `write` wrote, for a task with these arguments.

    Raises:
        ValueError: it is for other arguments, or no such file.
    """
    with open(path, "rb") as file:
        head = json.loads(file.readline(_MAX_HEAD_BYTES))
        rms = {int(index): float(value) for index, value in head["rms"].items()}
        outputs = {i: _output(file, arg) for i, arg in enumerate(args) if arg.is_output}
        if rms.keys() != outputs.keys() or file.read(1):
            raise ValueError("these are expected outputs of another task")
    return Expected(outputs, head["positive"] is True, rms)


def _output(file: BinaryIO, arg: Argument) -> Array:
    count = math.prod(arg.shape)
    array = np.fromfile(file, reference.np_dtype(arg.dtype), count)
    if array.size != count:
        raise ValueError(f"the expected output {arg.name} is cut off")
    return array.reshape(arg.shape)


def _further(outputs: Mapping[int, Array], args: Sequence[Argument]) -> int:
    """How many further inputs are drawn."""
    sizes = [o.size for i, o in outputs.items() if o.size and reference.is_float(args[i].dtype)]
    least = min(sizes, default=MIN_RESULTS)
    drawn = sum(math.prod(arg.shape) for arg in args if arg.is_input)
    affordable = max(MAX_DRAWN // max(drawn, 1), MIN_DRAWS)
    return min(-(-MIN_RESULTS // least) - 1, affordable)
