"""Operands in global and shared memory.

A tile of an operand lies in shared memory as lines of whole chunks of 16 bytes. Lines are rows of
the tile where the operand is contiguous along k, else they are values of k. Chunk c of line l
lies at chunk c ^ (l / period % group) of its line: eight lines' chunks of one number, which
ldmatrix reads together, then lie in different banks.

Of a gathered operand, C++ says where rows and places of k lie, and what may be copied. A row has
the offset of its first tap, and bits: one says that the row is inside of the operand, and each tap
of a padded window has one that says whether it is inside of the data. A place of k has an offset
from the first tap, and the bits that it needs. Both divide by constants alone: rows once in a
kernel, places of k once in a step, for all rows of a thread.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from felix.templates.gemm import indexing
from felix.templates.gemm.phases import Phases
from felix.templates.gemm.problem import Gather, GemmProblem, Operand, Window

CHUNK_BYTES = 16
#: Chunks of 128 bytes: all banks.
_BANK_CHUNKS = 8
#: Bytes that one cp.async may copy, the best first.
_COPIES = (16, 8, 4)


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """An operand in global memory.

    Attributes:
        operand: its parameter, dtype and strides.
        rows: of A, or columns of B.
        problem: whose operand it is.
    """

    operand: Operand
    rows: int
    problem: GemmProblem

    @property
    def is_along_k(self) -> bool:
        """Whether elements that follow in k are neighbours in memory, in pieces if gathered."""
        is_contiguous = self.operand.strides[2] == 1 or self.problem.k == 1
        return self.operand.gather is not None or is_contiguous

    @property
    def elements(self) -> int:
        """That the products have, of all matrices; those outside of gathered data left out."""
        of = self.operand.gather
        if of is None:
            lengths = self.problem.lengths
            return self.rows * sum(length * count for length, count in lengths.items())
        phases = self.problem.phases
        count = phases.count if phases else 1
        return self.problem.batch // count * inside_elements(of, phases)

    @property
    def distinct_elements(self) -> int:
        """Of all matrices, each counted once."""
        of, matrices = self.operand.gather, self.problem.matrices(self.operand)
        if of is not None:
            return matrices * distinct_elements(of, self.problem.phases)
        is_of_phases = self.problem.phases is not None and self.operand.outer_stride
        return self.elements if is_of_phases else matrices * self.rows * self.problem.k

    def swizzle_group(self, block: int, block_k: int) -> int:
        """Chunks that are permuted, in lines of a tile of `block` rows and `block_k` of k."""
        line_bytes = (block_k if self.is_along_k else block) * self.operand.element_bytes
        return math.gcd(line_bytes // CHUNK_BYTES, _BANK_CHUNKS)

    @property
    def line_stride(self) -> int:
        """Elements from one line to the next."""
        _, row, k = self.operand.strides
        return row if self.is_along_k else k

    @property
    def copy_bytes(self) -> int | None:
        """Bytes that one cp.async copies; None where lines are not aligned enough for any.

        Tensors themselves begin at multiples of 256 bytes.
        """
        if self.operand.gather:
            return copy_bytes(self.problem, self.operand)
        lines = self.rows if self.is_along_k else self.problem.k
        line_stride = self.line_stride if lines > 1 else 0
        strides = [*self.problem.batch_strides(self.operand), line_stride, self.operand.offset]
        return _piece_bytes(self.operand, strides)


def matrices(problem: GemmProblem) -> tuple[Matrix, Matrix]:
    """A and B."""
    return Matrix(problem.a, problem.m, problem), Matrix(problem.b, problem.n, problem)


#: Bits of the widest mask.
MOST_BITS = 64
_LARGEST_INT = 2**31 - 1

GATHERED = """
// Tiles of an operand whose rows a class G gathers.
template <class Tile, class G>
struct Gathered : Tile {
  static constexpr int UNIT = G::COPY_BYTES / int(sizeof(Element));
  static constexpr int PITCH = THREADS / Tile::CHUNKS;
  static constexpr int COPIES = (Tile::LINES + PITCH - 1) / PITCH;
  static_assert(THREADS % Tile::CHUNKS == 0, "a thread copies the same chunk of each line");

  struct Source {
    const Element* data;
    const int batch;
    typename G::Offset first[COPIES];
    typename G::Mask inside[COPIES];

    __device__ __forceinline__ Source(const Element* matrix, int b, int row)
        : data(matrix), batch(b) {
      const int first_row = row + int(threadIdx.x / Tile::CHUNKS);
      #pragma unroll
      for (int i = 0; i < COPIES; ++i)
        first[i] = G::first_tap(batch, first_row + i * PITCH, inside[i]);
    }

    // Copies the tile at a value of k; zeros beyond the operand and beyond the data.
    __device__ __forceinline__ void copy(u8* tile, int k) const {
      const u32 chunk = threadIdx.x % Tile::CHUNKS;
      #pragma unroll
      for (int unit = 0; unit < CHUNK; unit += UNIT) {
        const int place = k + int(chunk) * CHUNK + unit;
        typename G::Mask taps;
        const Element* const from = data + G::place(batch, place, taps);
        const bool is_summed = LENGTHS_ARE_STEPS || place < length_of(batch);
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

  static __device__ __forceinline__ Offset first_tap(int batch, int row, Mask& inside) {{
{phases}    int rest = row;
{outputs}    inside = Mask(row < {rows});
{inside}    return {first};
  }}
  static __device__ __forceinline__ Offset place(int batch, int k, Mask& taps) {{
{uneven}    int rest = k / {channels};
{digits}    taps = {bits};
    return k % {channels}{place};
  }}
}};
"""


def copy_bytes(problem: GemmProblem, operand: Operand) -> int | None:
    """Bytes of a gathered operand that one cp.async copies; None where channels do not lie in
    pieces of any size."""
    gather = operand.gather
    assert gather is not None
    if gather.channel_stride != 1 and gather.channels > 1:
        return None
    strides = [w.element_stride for w in gather.windows]
    strides += [*problem.batch_strides(operand), operand.offset]
    strides += [gather.image_stride, gather.channels]
    return _piece_bytes(operand, strides)


def _piece_bytes(operand: Operand, strides: Sequence[int]) -> int | None:
    """The largest copy of which all strides in elements are multiples."""
    size = operand.element_bytes
    fits = (b for b in _COPIES if all(stride * size % b == 0 for stride in strides))
    return next(fits, None)


def mask_bits(gather: Gather, of_phases: Phases | None) -> int:
    """Bits of a row."""
    every = zip(gather.windows, moves_of(gather, of_phases), strict=True)
    return 1 + sum(window.taps for window, moves in every if not _is_inside(window, moves))


def moves_of(gather: Gather, of_phases: Phases | None) -> tuple[tuple[int, ...], ...]:
    """Of each window, how far it reads further on in each phase."""
    return of_phases.moves if of_phases else ((0,),) * len(gather.windows)


def _is_inside(window: Window, moves: Sequence[int]) -> bool:
    """Whether no tap of any output lies outside in any phase."""
    moved = (dataclasses.replace(window, before=window.before - move) for move in moves)
    return all(each.is_inside for each in moved)


def distinct_elements(gather: Gather, of_phases: Phases | None) -> int:
    """Elements of the data that a group reads."""
    places = math.prod(len(set(each)) for each in _places(gather, of_phases))
    return gather.images * gather.channels * places


def inside_elements(gather: Gather, of_phases: Phases | None) -> int:
    """Elements of the operand, rows times k of all phases, that are inside of the data."""
    places = math.prod(len(each) for each in _places(gather, of_phases))
    return gather.images * gather.channels * places


def _places(gather: Gather, of_phases: Phases | None) -> list[list[int]]:
    """Of each window those of all phases, outputs and taps, inside of the dimension."""
    result = []
    for number, w in enumerate(gather.windows):
        axis = of_phases.axes[number] if of_phases else None
        moved = zip(axis.moves, axis.phase_taps, strict=True) if axis else [(0, w.taps)]
        every = (
            output * w.stride + tap * w.dilation - w.before + move
            for move, taps in moved
            for output in range(w.outputs)
            for tap in range(taps)
        )
        result.append([place for place in every if 0 <= place < w.extent])
    return result


def places(name: str, problem: GemmProblem, gather: Gather, bytes_of_copy: int) -> str:
    """The class of these rows and places of k."""
    windows = list(enumerate(gather.windows))
    moves = moves_of(gather, problem.phases)
    inner_batch = problem.batch_extents[1]
    of_batch = indexing.phase_of_batch(problem.phases, inner_batch) if problem.phases else ""
    counts = [str(w.taps) for _, w in windows]
    counts = indexing.tap_counts(problem.phases) if problem.phases else counts
    is_uneven = not all(map(str.isdigit, counts))
    outputs, digits, inside = "", "", ""
    first, place = f"Offset(rest) * {gather.image_stride}", ""
    bits, bit = ["Mask(1)"], 1
    for i, w in reversed(windows):
        move = f" + {indexing.stepped(moves[i], f'phase{i}')}" if problem.phases else ""
        outputs += f"    const int at{i} = rest % {w.outputs} * {w.stride} - {w.before}{move};\n"
        outputs += f"    rest /= {w.outputs};\n"
        taps = counts[i]
        digits += f"    const int tap{i} = {f'rest % {taps}' if i else 'rest'};\n"
        digits += f"    rest /= {taps};\n" if i else ""
    for i, w in windows:
        first += f" + Offset(at{i}) * {w.element_stride}"
        place += f" + Offset(tap{i}) * {w.dilation * w.element_stride}"
        if not _is_inside(w, moves[i]):
            inside += (
                f"    #pragma unroll\n    for (int t = 0; t < {w.taps}; ++t)\n"
                f"      inside |= Mask(u32(at{i} + t * {w.dilation}) < {w.extent}u) << "
                f"({bit} + t);\n"
            )
            bits.append(f"Mask(1) << ({bit} + tap{i})")
            bit += w.taps
    return _PLACES.format(
        name=name,
        offset=_offset(gather, moves),
        phases=of_batch,
        uneven=of_batch if is_uneven else "",
        mask="u32" if bit <= 32 else "u64",
        copy_bytes=bytes_of_copy,
        outputs=outputs,
        rows=gather.rows,
        inside=inside,
        first=first,
        channels=gather.channels,
        digits=digits,
        bits=" | ".join(bits),
        place=place,
    )


def _offset(gather: Gather, moves: Sequence[Sequence[int]]) -> str:
    """The narrowest type of offsets in a group's data, those of padding included."""
    span = gather.images * gather.image_stride + gather.channels
    for w, of_window in zip(gather.windows, moves, strict=True):
        reach = w.outputs * w.stride + w.taps * w.dilation + abs(w.before) + w.extent
        reach += max(map(abs, of_window))
        span += reach * w.element_stride
    return "int" if span <= _LARGEST_INT else "long long"
