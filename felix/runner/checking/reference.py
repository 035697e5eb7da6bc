"""How candidates are compared with a reference: their arguments, what these hold, what differs.

An element is right within a relative tolerance t: |output - expected| <= t * (|expected| + rms).
Integers are equal. Those of a program with a tolerance may be rounded floats: one in a hundred may
be off by 1, as a float next to a tie is.
The tolerance and the arguments are those of the task's program (`task_program`), the rms is that
of the program's results (`Expected`). Nothing here knows programs, or imports anything of Felix:
the `run.py` of an artifact has this text (`felix.artifact.export.standalone`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_POISON_BYTE = 0x5A
#: Inputs repeat themselves after so many elements, because drawing hundreds of megabytes takes
#: seconds. It is a prime, so no two tiles of a tensor hold the same.
_PERIOD = 2**22 - 3
#: Integers made of floats that may be off by 1.
_TIES_SHARE = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """One tensor parameter of a program: what it holds before a run and whether it is output.

    `index_bound` is the exclusive upper bound of values used as an index, if they are. With
    `is_full_range` bytes take all their values: nothing of the program can overflow by them.
    Integers of an `is_divisor` are 1 or more: PyTorch refuses to divide them by 0.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_input: bool
    is_output: bool
    index_bound: int | None = None
    is_full_range: bool = False
    is_divisor: bool = False


def inputs(args: Sequence[Argument], seed: int, *, positive: bool) -> list[Array]:
    """Initial contents of every argument: random inputs, poisoned outputs."""
    return [
        _contents(arg, np.random.default_rng([seed, index]), positive)
        if arg.is_input
        else poison(arg)
        for index, arg in enumerate(args)
    ]


def poison(arg: Argument) -> Array:
    """An output no kernel has written: NaN, or all bytes 0x5A for integers."""
    dtype = np_dtype(arg.dtype)
    if is_float(arg.dtype):
        return np.full(arg.shape, np.nan, dtype=dtype)
    if dtype == np.bool_:
        return np.zeros(arg.shape, dtype=dtype)
    poisoned = bytes([_POISON_BYTE]) * dtype.itemsize
    return np.full(arg.shape, np.frombuffer(poisoned, dtype)[0])


def np_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of a TVM dtype name; bfloat16 and fp8 come from ml_dtypes.

    Raises:
        ImportError: that is not installed.
    """
    if dtype.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.dtype(dtype)


def is_float(dtype: str) -> bool:
    """Whether a TVM dtype name is a floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def mismatch(
    actual: Array, expected: Array, relative: float, size: float | None = None
) -> str | None:
    """None if `actual` equals `expected` within tolerance, else what differs, in words.

    `size` is the rms of the program's results, by default that of `expected`.
    """
    size = rms(expected) if size is None else size
    if not is_float(expected.dtype.name):
        wrong = _wrong_integers(actual, expected, may_be_rounded=relative > 0)
    else:
        wide = np.float64 if expected.dtype.itemsize > 4 else np.float32
        actual, expected = actual.astype(wide, copy=False), expected.astype(wide, copy=False)
        finite = np.isfinite(expected)
        with np.errstate(invalid="ignore", over="ignore"):
            close = np.abs(actual - expected) <= relative * (np.abs(expected) + size)
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        wrong = ~np.where(finite, close, same)
    count = int(np.count_nonzero(wrong))
    if count == 0:
        return None
    first = int(np.argmax(wrong))
    values = actual.flat[first], expected.flat[first]
    return describe_mismatch(count, first, wrong.shape, values, relative)


def _wrong_integers(actual: Array, expected: Array, may_be_rounded: bool) -> NDArray[np.bool_]:
    differs: NDArray[np.bool_] = actual != expected
    is_exact = not may_be_rounded or expected.dtype == np.bool_
    if is_exact or np.count_nonzero(differs) > _TIES_SHARE * differs.size:
        return differs
    far: NDArray[np.bool_] = np.maximum(actual, expected) - np.minimum(actual, expected) != 1
    return differs & far


def describe_mismatch(
    count: int, first: int, shape: Sequence[int], values: tuple[Any, Any], relative: float
) -> str:
    """What differs, in words: how many elements, and the actual and expected first one."""
    at = ", ".join(str(int(i)) for i in np.unravel_index(first, tuple(shape)))
    actual, expected = values
    return (
        f"{count} of {math.prod(shape)} elements differ from the reference: first at [{at}], "
        f"{actual!s} instead of {expected!s} (relative tolerance {relative:.1e})"
    )


def rms(expected: Array) -> float:
    """Root mean square of the finite elements of an expected output; 0 for no floats."""
    if not is_float(expected.dtype.name):
        return 0.0
    expected = expected.astype(
        np.float64 if expected.dtype.itemsize > 4 else np.float32, copy=False
    )
    finite = np.isfinite(expected)
    return math.sqrt(np.mean(np.square(expected, where=finite, out=np.zeros_like(expected))))


def all_finite(outputs: Mapping[int, Array], args: Sequence[Argument]) -> bool:
    """Whether the outputs, by argument index, hold neither NaN nor infinity."""
    return all(
        bool(np.isfinite(output).all()) for i, output in outputs.items() if is_float(args[i].dtype)
    )


def _contents(arg: Argument, rng: np.random.Generator, positive: bool) -> Array:
    """Random contents of an input; large ones repeat themselves, see `_PERIOD`."""
    if math.prod(arg.shape) <= _PERIOD:
        return _random(arg, rng, positive)
    array = np.empty(arg.shape, np_dtype(arg.dtype))
    period = _random(dataclasses.replace(arg, shape=(_PERIOD,)), rng, positive)
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PERIOD):
        flat[start : start + _PERIOD] = period[: flat.size - start]
    return array


def _random(arg: Argument, rng: np.random.Generator, positive: bool) -> Array:
    dtype = np_dtype(arg.dtype)
    if is_float(arg.dtype):
        wide = np.float64 if dtype.itemsize > 4 else np.float32
        if positive:
            return (rng.random(arg.shape, dtype=wide) + wide(0.5)).astype(dtype, copy=False)
        return rng.standard_normal(arg.shape, dtype=wide).astype(dtype, copy=False)
    if dtype == np.bool_:
        return rng.integers(0, 2, arg.shape).astype(dtype)
    low, high = (0, 16) if dtype.kind == "u" else (-8, 8)
    if arg.is_full_range:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1
    if arg.is_divisor:
        low = 1
    if arg.index_bound is not None:
        low, high = 0, arg.index_bound
    return rng.integers(low, high, arg.shape).astype(dtype)


# What the outputs of a program have to be, and how large its results are.
#
# An output is compared relative to its own values and to the root mean square (RMS) of all of
# them (`reference`). A sum of n random terms errs in proportion to the RMS that such sums have,
# √n times that of a term, and not to the value that one of them happens to have: terms may
# cancel, or an epilogue may cut the sum off. Where an output has fewer than `MIN_RESULTS`
# elements, its own RMS says too little. So the program is computed for further random inputs,
# and the RMS is of the results of all.
#
# A file of them is a line of JSON, then the bytes of each output in the order of the arguments.

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
    if not all_finite(outputs, args):
        outputs, positive = run(seed, True), True
    draws = [outputs, *(run(seed + i, positive) for i in range(1, 1 + _further(outputs, args)))]
    return Expected(outputs, positive, rms_of_draws(draws))


def rms_of_draws(draws: Sequence[Mapping[int, Array]]) -> dict[int, float]:
    """The RMS of each output over some draws, by argument index."""
    squares = {index: [rms(draw[index]) ** 2 for draw in draws] for index in draws[0]}
    return {index: math.sqrt(np.mean(values)) for index, values in squares.items()}


def write_expected(path: str, checked: Expected) -> None:
    """Write a file of the outputs and what belongs to them."""
    rms = {str(index): value for index, value in checked.rms.items()}
    with open(path, "wb") as file:
        file.write(json.dumps({"positive": checked.positive, "rms": rms}).encode() + b"\n")
        for index in sorted(checked.outputs):
            checked.outputs[index].tofile(file)


def read_expected(path: str, args: Sequence[Argument]) -> Expected:
    """What `write_expected` wrote, for a task with these arguments.

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
    array = np.fromfile(file, np_dtype(arg.dtype), count)
    if array.size != count:
        raise ValueError(f"the expected output {arg.name} is cut off")
    return array.reshape(arg.shape)


def _further(outputs: Mapping[int, Array], args: Sequence[Argument]) -> int:
    """How many further inputs are drawn."""
    sizes = [o.size for i, o in outputs.items() if o.size and is_float(args[i].dtype)]
    least = min(sizes, default=MIN_RESULTS)
    drawn = sum(math.prod(arg.shape) for arg in args if arg.is_input)
    affordable = max(MAX_DRAWN // max(drawn, 1), MIN_DRAWS)
    return min(-(-MIN_RESULTS // least) - 1, affordable)
