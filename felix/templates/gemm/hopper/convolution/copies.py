"""C++ of how a block copies its shares of a stage's tiles of pixels and weights.

Panels follow each other by blocks of channels, then by taps: block number b of the sum is block
b % BLOCKS_OF_TAP of tap b / BLOCKS_OF_TAP. What lies behind the last tap, or behind the last
pixel, is copied from channels that there are not: zeros.
"""

from __future__ import annotations

from felix.templates.gemm import indexing
from felix.templates.gemm.hopper import layout
from felix.templates.gemm.hopper.convolution.operands import Pixels, Weights

_COPY = """
__device__ __forceinline__ void {name}(u32 to, const TensorMap& map, u32 barrier{parameters}) {{
  asm volatile(
      "cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
      "{suffix} [%0], [%1, {{{places}}}], [%2]{offsets}{mask};"
      :: "r"(to), "l"(&map), "r"(barrier){operands} : "memory");
}}
"""

_SHARES = """
// Copies this block's share of a tile of A or B into a stage, of all blocks that need the tile.
template <class Operand> __device__ __forceinline__ void copy_share(
    const TensorMap& map, u32 to, u32 barrier, int line, int k, int batch, int share, u16 blocks) {
  const int first = line + share * Operand::SHARE_ROWS;
  if constexpr (Operand::IS_GATHERED) {
    const bool has_pixels = first < PIXELS;
    const Start start = start_of(has_pixels ? first : 0, batch);
    #pragma unroll
    for (int panel = 0; panel < Operand::PANELS; ++panel) {
      const int block = k / CHANNEL_BLOCK + panel, tap = block / BLOCKS_OF_TAP;
      const bool is_read = has_pixels && tap < TAPS;
      const int channel = is_read ? block % BLOCKS_OF_TAP * CHANNEL_BLOCK : NO_CHANNEL;
      const Offsets offsets = offsets_of(is_read ? tap : 0);
      const u32 address = to + panel * Operand::PANEL_BYTES + share * Operand::SHARE_BYTES;
      if (Operand::SHARERS > 1)
        copy_pixels_to_all(address, map, barrier, channel, start, offsets, blocks);
      else copy_pixels(address, map, barrier, channel, start, offsets);
    }
  } else if constexpr (Operand::IS_K_MAJOR) {
    #pragma unroll
    for (int panel = 0; panel < Operand::PANELS; ++panel) {
      const int block = k / CHANNEL_BLOCK + panel;
      const int channel = block % BLOCKS_OF_TAP * CHANNEL_BLOCK;
      const int tap = block / BLOCKS_OF_TAP;
      const u32 address = to + panel * Operand::PANEL_BYTES + share * Operand::SHARE_BYTES;
      if (Operand::SHARERS > 1)
        copy_weights_to_all(address, map, barrier, channel, tap, first, batch, blocks);
      else copy_weights(address, map, barrier, channel, tap, first, batch);
    }
  } else {
    constexpr int ROWS = Operand::SHARE_ROWS < CHANNEL_BLOCK ? Operand::SHARE_ROWS : CHANNEL_BLOCK;
    #pragma unroll
    for (int panel = 0; panel < Operand::PANELS; ++panel) {
      #pragma unroll
      for (int row = 0; row < Operand::SHARE_ROWS; row += ROWS) {
        const int at = share * Operand::SHARE_ROWS + row;
        const int block = (k + at) / CHANNEL_BLOCK, x = line + panel * Operand::INNER;
        const int channel = block % BLOCKS_OF_TAP * CHANNEL_BLOCK + at % CHANNEL_BLOCK;
        const int tap = block / BLOCKS_OF_TAP;
        const u32 address = to + panel * Operand::PANEL_BYTES + at * Operand::WIDTH;
        if (Operand::SHARERS > 1)
          copy_weights_to_all(address, map, barrier, x, channel, tap, batch, blocks);
        else copy_weights(address, map, barrier, x, channel, tap, batch);
      }
    }
  }
}
"""


def members(tile: layout.Tile) -> str:
    """What `copy_share` reads of an operand beside what every kernel does."""
    gathered = isinstance(tile.source, Pixels)
    return (
        f"  static constexpr bool IS_GATHERED = {str(gathered).lower()};\n"
        f"  static constexpr int WIDTH = {tile.width};\n"
    )


def source(a: layout.Tile, b: layout.Tile) -> str:
    """`copy_share` of a convolution's tiles; `A` and `B` of the kernel are defined."""
    pixels, weights = (
        (a.source, b.source) if isinstance(a.source, Pixels) else (b.source, a.source)
    )
    assert isinstance(pixels, Pixels) and isinstance(weights, Weights)
    return _constants(pixels, weights) + instructions(pixels, weights) + _SHARES


def instructions(pixels: Pixels, weights: Weights) -> str:
    """`copy_pixels` and `copy_weights`, and the same to all blocks of a cluster."""
    starts = [f"start.at[{i}]" for i in range(pixels.rank - 1)]
    moves = [f"offsets.at[{i}]" for i in range(pixels.rank - 2)]
    pixel_parameters = ", int channel, const Start& start, const Offsets& offsets"
    axes = [axis.place for axis in weights.batches.axes]
    weight_parameters = ", int x, int y, int z, int batch"
    return _copies("copy_pixels", "im2col", pixel_parameters, ["channel", *starts], moves) + (
        _copies("copy_weights", "tile", weight_parameters, ["x", "y", "z", *axes], [])
    )


def _copies(name: str, mode: str, parameters: str, places: list[str], moves: list[str]) -> str:
    """A function that starts a copy, and one that starts it to all blocks of a cluster."""
    numbers = [f'"r"({place})' for place in places] + [f'"h"({move})' for move in moves]
    rank, after = len(places), 3 + len(numbers)
    offsets = ", ".join(f"%{3 + rank + i}" for i in range(len(moves)))

    def copy(name: str, parameters: str, suffix: str, mask: str, numbers: list[str]) -> str:
        return _COPY.format(
            name=name,
            parameters=parameters,
            rank=rank,
            mode=mode,
            suffix=suffix,
            places=", ".join(f"%{3 + i}" for i in range(rank)),
            offsets=f", {{{offsets}}}" if moves else "",
            mask=mask,
            operands="".join(f", {number}" for number in numbers),
        )

    to_all = [*numbers, '"h"(blocks)']
    return copy(name, parameters, "", "", numbers) + copy(
        f"{name}_to_all", f"{parameters}, u16 blocks", ".multicast::cluster", f", %{after}", to_all
    )


def _constants(pixels: Pixels, weights: Weights) -> str:
    """Numbers of the sum, and where copies of pixels start and how taps move them.

    A copy of no channel begins where a block could: a copy that begins at channel 3 of 16-bit
    pixels fails.
    """
    blocks, gather = weights.blocks, pixels.gather
    values = {
        "TAPS": blocks.taps,
        "CHANNEL_BLOCK": blocks.block,
        "BLOCKS_OF_TAP": blocks.of_tap,
        "NO_CHANNEL": blocks.of_tap * blocks.block,
        "PIXELS": gather.rows,
    }
    starts, moves = [], []
    for i, window in enumerate(reversed(gather.windows)):
        place = f"pixel % {window.outputs} * {window.stride} - {window.before}"
        starts += [f"start.at[{i}] = {place};", f"pixel /= {window.outputs};"]
        moves.append(f"offsets.at[{i}] = tap % {window.taps} * {window.dilation};")
        moves.append(f"tap /= {window.taps};")
    for i, axis in enumerate(pixels.outer_axes, start=len(gather.windows)):
        starts.append(f"start.at[{i}] = {axis.place};")
        if i < pixels.rank - 2:
            moves.append(f"offsets.at[{i}] = 0;")
    return indexing.constants(values) + (
        f"struct Start {{ int at[{pixels.rank - 1}]; }};\n"
        f"struct Offsets {{ u16 at[{pixels.rank - 2}]; }};\n"
        "// Where tap 0 of an output pixel reads, and how far from there a tap does.\n"
        "__device__ __forceinline__ Start start_of(int pixel, int batch) {\n  Start start;\n  "
        + "\n  ".join(starts)
        + "\n  return start;\n}\n"
        "__device__ __forceinline__ Offsets offsets_of(int tap) {\n  Offsets offsets;\n  "
        + "\n  ".join(moves)
        + "\n  return offsets;\n}\n"
    )
