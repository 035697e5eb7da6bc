"""The CUDA text of the kernel that copies operands (`packing`)."""

from __future__ import annotations

import math

from felix.templates.gemm import indexing
from felix.templates.gemm.ampere import instructions, packing
from felix.templates.gemm.phases import Phases

_COPY = """
// Copies {n} channels of an operand; neighbouring threads read neighbours in memory.
__device__ __forceinline__ void {name}(long long index, const {element}* __restrict__ from,
                                       {element}* __restrict__ to) {{
  if (index >= {total}ll) return;
  union {{ {vector} whole; {element} values[{n}]; }} piece;
  const int channel = int({channel}) * {n}, place = int({place});
  const long long row = {row};
  const long long batch = row / {rows};
  const {element}* const source = from + {offset}ll + batch / {inner} * {outer_stride}ll
      + batch % {inner} * {inner_stride}ll + row % {rows} * {row_stride}ll
      + place * {place_stride}ll + channel * {channel_stride}ll;
  #pragma unroll
  for (int i = 0; i < {n}; ++i)
    piece.values[i] = channel + i < {channels} ? source[i * {channel_stride}ll]
                                               : static_cast<{element}>(0);
  *reinterpret_cast<{vector}*>(to + (row * {places} + place) * {padded} + channel) = piece.whole;
}}
"""
_KERNEL = """
extern "C" __global__ void __launch_bounds__({threads}) pack({parameters}) {{
  int block = int(blockIdx.x);
{calls}}}
"""
#: As _COPY, of the taps of each phase; `batch` is the matrix of the copy.
_COPY_PHASES = """
// Copies {n} channels of a tap of a phase; neighbouring threads read neighbours in memory.
__device__ __forceinline__ void {name}(long long index, const {element}* __restrict__ from,
                                       {element}* __restrict__ to) {{
  if (index >= {total}ll) return;
  union {{ {vector} whole; {element} values[{n}]; }} piece;
  const long long row = {row};
  const int channel = int({channel}) * {n}, place = int({place}), batch = int({batch});
{phases}{taps}  const bool is_tap = {is_tap};
  const {element}* const source = from + {offset}ll + batch % {inner} * {inner_stride}ll
      + row * {row_stride}ll{tap_offset} + channel * {channel_stride}ll;
  #pragma unroll
  for (int i = 0; i < {n}; ++i)
    piece.values[i] = is_tap && channel + i < {channels} ? source[i * {channel_stride}ll]
                                                         : static_cast<{element}>(0);
  *reinterpret_cast<{vector}*>(to + ((batch * {rows}ll + row) * {places} + place) * {padded}
                               + channel) = piece.whole;
}}
"""


def source(of: packing.Packed) -> str:
    """Its text."""
    parameters, calls, text = [], "", ""
    for number, copy in enumerate(of.copies):
        name, element = f"copy{number}", instructions.STORAGE[copy.dtype].c_type
        parameters += [f"const {element}* from{number}", f"{element}* to{number}"]
        index = f"block * {packing.THREADS}ll + threadIdx.x"
        calls += (
            f"  if (block < {copy.blocks}) return {name}({index}, from{number}, to{number});\n"
        )
        calls += f"  block -= {copy.blocks};\n"
        text += _copy_text(name, copy)
    return text + _KERNEL.format(
        threads=packing.THREADS, parameters=", ".join(parameters), calls=calls
    )


def _copy_text(name: str, copy: packing.Copy) -> str:
    if copy.phases:
        return _phases_text(name, copy, copy.phases)
    storage = instructions.STORAGE[copy.dtype]
    n = copy.piece_bytes // storage.size_bytes
    pieces, places = copy.padded // n, copy.places
    is_last = copy.channel_stride == 1
    row, channel = f"index / {pieces * places}", f"index / {places} % {pieces}"
    if copy.is_along_rows:
        rows = math.prod(copy.batches) * copy.rows
        row, channel = f"index % {rows}", f"index / {rows}"
    return _COPY.format(
        name=name,
        n=n,
        element=storage.c_type,
        vector=packing.VECTORS[copy.piece_bytes],
        total=copy.elements // n,
        channel=f"index % {pieces}" if is_last else channel,
        place=f"index / {pieces} % {places}" if is_last else f"index % {places}",
        row=row,
        rows=copy.rows,
        places=places,
        padded=copy.padded,
        channels=copy.channels,
        offset=copy.offset,
        inner=copy.batches[1],
        outer_stride=copy.batch_strides[0],
        inner_stride=copy.batch_strides[1],
        row_stride=copy.row_stride,
        place_stride=copy.place_stride,
        channel_stride=copy.channel_stride,
    )


def _phases_text(name: str, copy: packing.Copy, of: Phases) -> str:
    storage = instructions.STORAGE[copy.dtype]
    n = copy.piece_bytes // storage.size_bytes
    sizes = {"row": copy.rows, "channel": copy.padded // n, "place": copy.places}
    strides = {"row": copy.row_stride, "channel": copy.channel_stride}
    first = min(strides, key=lambda axis: strides[axis])
    order = [first, *(axis for axis in sizes if axis != first)]
    digits, rest = {}, "index"
    for axis in order:
        digits[axis] = f"{rest} % {sizes[axis]}"
        rest += f" / {sizes[axis]}"
    taps, is_tap, tap_offset, inner = "", [], "", "place"
    windows = list(enumerate(zip(copy.taps, of.axes, strict=True)))
    for number, (window, of_window) in reversed(windows):
        first_tap = indexing.stepped(of_window.first_taps, f"phase{number}")
        count = indexing.tap_counts(of)[number]
        digit = f"{f'({inner}) % {count}' if number else inner} * {window.dilation}"
        taps += f"  const int tap{number} = {digit} + {first_tap};\n"
        inner += f" / {count}"
        is_tap.append(f"tap{number} < {window.extent}")
        tap_offset += f" + tap{number} * ({window.element_stride}ll)"
    return _COPY_PHASES.format(
        name=name, n=n, element=storage.c_type, vector=packing.VECTORS[copy.piece_bytes],
        total=copy.elements // n, batch=rest, **digits,
        phases=indexing.phase_of_batch(of, copy.batches[1]), taps=taps, is_tap=" && ".join(is_tap),
        offset=copy.offset, inner=copy.batches[1], inner_stride=copy.batch_strides[1],
        row_stride=copy.row_stride, tap_offset=tap_offset, channel_stride=copy.channel_stride,
        channels=copy.channels, rows=copy.rows, places=copy.places, padded=copy.padded,
    )  # fmt: skip
