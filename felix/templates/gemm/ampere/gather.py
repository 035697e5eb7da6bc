"""Gathered operands: the C++ that says where rows and places of k lie, and what may be copied.

A row has the offset of its first tap, and bits: one says that the row is inside of the operand,
and each tap of a padded window has one that says whether it is inside of the data. A place of k
has an offset from the first tap, and the bits that it needs. Both divide by constants alone: rows
once in a kernel, places of k once in a step, for all rows of a thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from felix.templates.gemm.ampere import dtypes
from felix.templates.gemm.problem import Gather, Operand, Window

#: Bits of the widest mask.
MOST_BITS = 64
#: Bytes that one cp.async may copy, the best first.
_COPIES = (16, 8, 4)
_LARGEST_INT = 2**31 - 1

TEXT = """
// Tiles of an operand whose rows a class G gathers.
template <class Tile, class G>
struct Gathered : Tile {
  static constexpr int UNIT = G::COPY_BYTES / int(sizeof(Element));
  static constexpr int PITCH = THREADS / Tile::CHUNKS;
  static constexpr int COPIES = (Tile::LINES + PITCH - 1) / PITCH;
  static_assert(THREADS % Tile::CHUNKS == 0, "a thread copies the same chunk of each line");

  struct Source {
    const Element* data;
    typename G::Offset first[COPIES];
    typename G::Mask inside[COPIES];

    __device__ __forceinline__ Source(const Element* matrix, int row) : data(matrix) {
      #pragma unroll
      for (int i = 0; i < COPIES; ++i)
        first[i] = G::first_tap(row + int(threadIdx.x / Tile::CHUNKS) + i * PITCH, inside[i]);
    }

    // Copies the tile at a value of k; zeros beyond the operand and beyond the data.
    __device__ __forceinline__ void copy(u8* tile, int k) const {
      const u32 chunk = threadIdx.x % Tile::CHUNKS;
      #pragma unroll
      for (int unit = 0; unit < CHUNK; unit += UNIT) {
        const int place = k + int(chunk) * CHUNK + unit;
        typename G::Mask taps;
        const Element* const from = data + G::place(place, taps);
        const bool is_summed = K % BLOCK_K == 0 || place < K;
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
          const u32 line = threadIdx.x / Tile::CHUNKS + i * PITCH;
          if ((i + 1) * PITCH > Tile::LINES && line >= Tile::LINES) break;
          const bool is_inside = is_summed && (inside[i] & taps) == taps;
          u8* const to = tile + Tile::position(line, chunk) + unit * int(sizeof(Element));
          copy_async<G::COPY_BYTES>(to, from + first[i], is_inside ? G::COPY_BYTES : 0);
        }
      }
    }
  };
};
"""

_PLACES = """
struct {name} {{
  typedef {offset} Offset;
  typedef {mask} Mask;
  static constexpr int COPY_BYTES = {copy_bytes};

  static __device__ __forceinline__ Offset first_tap(int row, Mask& inside) {{
    int rest = row;
{outputs}    inside = Mask(row < {rows});
{inside}    return {first};
  }}
  static __device__ __forceinline__ Offset place(int k, Mask& taps) {{
    int rest = k / {channels};
{digits}    taps = {bits};
    return k % {channels}{place};
  }}
}};
"""


def copy_bytes(operand: Operand, gather: Gather, batch_strides: Sequence[int]) -> int | None:
    """Bytes that one cp.async copies; None where channels do not lie in pieces of any size."""
    size = dtypes.STORAGE[operand.dtype].size_bytes
    strides = [w.element_stride for w in gather.windows]
    strides += [*batch_strides, operand.offset, gather.image_stride, gather.channels]
    if gather.channel_stride != 1 and gather.channels > 1:
        return None
    fits = (b for b in _COPIES if all(stride * size % b == 0 for stride in strides))
    return next(fits, None)


def mask_bits(gather: Gather) -> int:
    """Bits of a row."""
    return 1 + sum(window.taps for window in gather.windows if not window.is_inside)


def distinct_elements(gather: Gather) -> int:
    """Elements of the data that a group reads."""
    places = math.prod(len(set(_places(window))) for window in gather.windows)
    return gather.images * gather.channels * places


def inside_elements(gather: Gather) -> int:
    """Elements of the operand, rows times k, that are inside of the data."""
    places = math.prod(len(_places(window)) for window in gather.windows)
    return gather.images * gather.channels * places


def _places(window: Window) -> list[int]:
    """Of all outputs and taps, inside of the dimension."""
    every = (
        output * window.stride + tap * window.dilation - window.before
        for output in range(window.outputs)
        for tap in range(window.taps)
    )
    return [place for place in every if 0 <= place < window.extent]


def places(name: str, gather: Gather, bytes_of_copy: int) -> str:
    """The class of these rows and places of k."""
    windows = list(enumerate(gather.windows))
    outputs, digits, inside = "", "", ""
    first, place = f"Offset(rest) * {gather.image_stride}", ""
    bits, bit = ["Mask(1)"], 1
    for i, w in reversed(windows):
        outputs += f"    const int at{i} = rest % {w.outputs} * {w.stride} - {w.before};\n"
        outputs += f"    rest /= {w.outputs};\n"
        digits += f"    const int tap{i} = {f'rest % {w.taps}' if i else 'rest'};\n"
        digits += f"    rest /= {w.taps};\n" if i else ""
    for i, w in windows:
        first += f" + Offset(at{i}) * {w.element_stride}"
        place += f" + Offset(tap{i}) * {w.dilation * w.element_stride}"
        if not w.is_inside:
            inside += (
                f"    #pragma unroll\n    for (int t = 0; t < {w.taps}; ++t)\n"
                f"      inside |= Mask(u32(at{i} + t * {w.dilation}) < {w.extent}u) << "
                f"({bit} + t);\n"
            )
            bits.append(f"Mask(1) << ({bit} + tap{i})")
            bit += w.taps
    return _PLACES.format(
        name=name, offset=_offset(gather), mask="u32" if bit <= 32 else "u64",
        copy_bytes=bytes_of_copy, outputs=outputs, rows=gather.rows,
        inside=inside, first=first, channels=gather.channels, digits=digits,
        bits=" | ".join(bits), place=place,
    )  # fmt: skip


def _offset(gather: Gather) -> str:
    """The narrowest type of offsets in a group's data, those of padding included."""
    span = gather.images * gather.image_stride + gather.channels
    for w in gather.windows:
        reach = w.outputs * w.stride + w.taps * w.dilation + abs(w.before) + w.extent
        span += reach * w.element_stride
    return "int" if span <= _LARGEST_INT else "long long"
