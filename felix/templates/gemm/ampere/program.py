"""The generator: CUDA source and launch plan of a problem with decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from felix.launch_plan import Launch, LaunchPlan
from felix.templates.gemm import indexing
from felix.templates.gemm.ampere import (
    decisions,
    epilogue,
    instructions,
    kernel_text,
    layout,
    packing,
)
from felix.templates.gemm.ampere.decisions import Decisions, Staged, Value
from felix.templates.gemm.phases import Phases
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram

#: Threads of a block of the kernel that adds partial sums; each adds two columns.
REDUCTION_THREADS = 256


def program(problem: GemmProblem, d: Decisions, arch: str) -> GeneratedProgram:
    """The kernels of legal decisions, integers all."""
    packed = packing.packed(problem)
    p = packed.problem
    before = [
        _constants(p, d),
        instructions.device_functions(p),
        epilogue.functions(p),
        kernel_text.TILES,
        layout.GATHERED if p.a.gather or p.b.gather else "",
        _tile(p, "TileA", d),
        _tile(p, "TileB", d),
        kernel_text.SUM_TILE,
    ]
    stores = kernel_text.STORE_RESULT, kernel_text.STORE_PARTIAL
    return staged_program(packed, d, arch, "".join(before), stores, kernel_text.KERNEL)


def staged_program(
    packed: packing.Packed, d: Staged, arch: str, before: str, stores: tuple[str, str], kernel: str
) -> GeneratedProgram:
    """The kernels of a product by stages.

    Args:
        before: what the product's kernel is made of, but for types.
        stores: of the result, and of partial sums.
    """
    is_split = d.split_k > 1
    of_result, of_parts = stores
    parts = [
        instructions.TYPES,
        before,
        kernel_text.PARTIAL_SUMS + of_parts if is_split else of_result,
        kernel,
        kernel_text.REDUCTION if is_split else "",
        packing_source(packed) if packed.copies else "",
    ]
    source = epilogue.filled(packed.problem, "".join(parts))
    return GeneratedProgram(source, arch, _plan(packed, d))


def _plan(packed: packing.Packed, d: Staged) -> LaunchPlan:
    """Launches: copies of operands if any, the product, the sum over parts if there are any."""
    problem = packed.problem
    is_split = d.split_k > 1
    target = problem.n_params + len(packed.copies) if is_split else problem.output.param
    reads = tuple(read.param for read in problem.epilogue.reads)
    launches = [packing.launch(packed)] if packed.copies else []
    launches.append(
        Launch(
            "gemm",
            (int(decisions.grid(problem, d).blocks), 1, 1, d.threads, 1, 1),
            int(d.shared_bytes(problem)),
            (problem.a.param, problem.b.param, target, *reads),
        )
    )
    if is_split:
        extents = (reduction_blocks(problem), 1, 1, REDUCTION_THREADS, 1, 1)
        arguments = (target, problem.output.param, *reads)
        launches.append(Launch("reduce", extents, 0, arguments))
    workspaces = [copy.bytes for copy in packed.copies]
    workspaces += [int(workspace_bytes(problem, d.split_k))] if is_split else []
    return LaunchPlan(problem.n_params, tuple(workspaces), tuple(launches))


def reduction_blocks(problem: GemmProblem) -> int:
    """Of the kernel that adds partial sums."""
    pairs = problem.batch * problem.m * _padded_columns(problem) // 2
    return -(-pairs // REDUCTION_THREADS)


def workspace_bytes(problem: GemmProblem, parts: Value) -> Value:
    """Of the partial sums, 4 bytes each."""
    return parts * problem.batch * problem.m * _padded_columns(problem) * 4


def _padded_columns(problem: GemmProblem) -> int:
    return problem.n + problem.n % 2


def _constants(problem: GemmProblem, d: Decisions) -> str:
    instruction = instructions.INSTRUCTIONS[problem.a.dtype, problem.b.dtype]
    a, b = (instructions.STORAGE[each.dtype].c_type for each in (problem.a, problem.b))
    text = constants(
        problem,
        d,
        {"WARP_M": d.warp_m, "WARP_N": d.warp_n},
        {"STORE_PITCH": d.store_pitch, "INSTRUCTION_K": instruction.k},
    )
    sums = "float" if problem.accumulator == "float32" else "int"
    text += indexing.length_of_batch(problem)
    return f"{text}typedef {a} Element;\ntypedef {b} ElementB;\ntypedef {sums} Sum;\n"


def constants(
    problem: GemmProblem, d: Staged, of_warps: Mapping[str, int], others: Mapping[str, int]
) -> str:
    """Definitions of extents, of parameters and other numbers, and of where matrices begin."""
    values = {
        "M": problem.m,
        "N": problem.n,
        "K": problem.k,
        "BATCH": problem.batch,
        **of_warps,
        "WARPS_M": d.warps_m,
        "WARPS_N": d.warps_n,
        "BLOCK_M": d.block_m,
        "BLOCK_N": d.block_n,
        "BLOCK_K": d.block_k,
        "STAGES": d.stages,
        "SPLIT_K": d.split_k,
        "GROUP_M": d.group_m,
        "BLOCKS_PER_SM": d.blocks_per_sm,
        **others,
    }
    text = indexing.constants(values)
    for name, operand in (("A", problem.a), ("B", problem.b)):
        start = indexing.matrix_start(operand, problem)
        function = f"__device__ __forceinline__ long long start_of_{name}(int batch)"
        text += f"{function} {{ return {start}; }}\n"
    return text


def _tile(problem: GemmProblem, name: str, d: Decisions) -> str:
    """The type of the tiles of A or B, whose rows are an axis of C."""
    is_a = name == "TileA"
    matrix = layout.matrices(problem)[0 if is_a else 1]
    axis, block = ("M", d.block_m) if is_a else ("N", d.block_n)
    along_k = "true" if matrix.is_along_k else "false"
    group = matrix.swizzle_group(block, d.block_k)
    tile = (
        f"Operand<{along_k}, {axis}, BLOCK_{axis}, {matrix.line_stride}, "
        f"{matrix.copy_bytes or 0}, {group}>"
    )
    if matrix.operand.gather is None:
        return f"typedef {tile} {name};\n"
    bytes_of_copy = matrix.copy_bytes or 0
    places = layout.places(f"{name}Places", problem, matrix.operand.gather, bytes_of_copy)
    return f"{places}typedef Gathered<{tile}, {name}Places> {name};\n"


# The CUDA text of the kernel that copies operands (`packing`).

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


def packing_source(of: packing.Packed) -> str:
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
    storage = instructions.STORAGE[copy.dtype]
    n = copy.piece_bytes // storage.size_bytes
    fields = {
        "name": name,
        "n": n,
        "element": storage.c_type,
        "vector": packing.VECTORS[copy.piece_bytes],
        "total": copy.elements // n,
        "rows": copy.rows,
        "places": copy.places,
        "padded": copy.padded,
        "channels": copy.channels,
        "offset": copy.offset,
        "inner": copy.batches[1],
        "inner_stride": copy.batch_strides[1],
        "row_stride": copy.row_stride,
        "channel_stride": copy.channel_stride,
    }
    if copy.phases:
        return _COPY_PHASES.format(**fields, **_of_phases(copy, copy.phases, copy.padded // n))
    pieces, places = copy.padded // n, copy.places
    is_last = copy.channel_stride == 1
    row, channel = f"index / {pieces * places}", f"index / {places} % {pieces}"
    if copy.is_along_rows:
        rows = math.prod(copy.batches) * copy.rows
        row, channel = f"index % {rows}", f"index / {rows}"
    return _COPY.format(
        **fields,
        channel=f"index % {pieces}" if is_last else channel,
        place=f"index / {pieces} % {places}" if is_last else f"index % {places}",
        row=row,
        outer_stride=copy.batch_strides[0],
        place_stride=copy.place_stride,
    )


def _of_phases(copy: packing.Copy, of: Phases, pieces: int) -> dict[str, str]:
    """Where the taps of each phase are copied from; `pieces` of channels."""
    sizes = {"row": copy.rows, "channel": pieces, "place": copy.places}
    first = "row" if copy.row_stride <= copy.channel_stride else "channel"
    digits, rest = {}, "index"
    for axis in (first, *(axis for axis in sizes if axis != first)):
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
    return digits | {
        "batch": rest,
        "phases": indexing.phase_of_batch(of, copy.batches[1]),
        "taps": taps,
        "is_tap": " && ".join(is_tap),
        "tap_offset": tap_offset,
    }
