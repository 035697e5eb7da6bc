"""The generator: CUDA source and launch plan of a problem with decisions."""

from __future__ import annotations

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
    packing_text,
)
from felix.templates.gemm.ampere.decisions import Decisions, Staged, Value
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram

#: Threads of a block of the kernel that adds partial sums; each adds two columns.
REDUCTION_THREADS = 256


def program(problem: GemmProblem, d: Decisions, arch: str) -> GeneratedProgram:
    """The kernels of legal decisions, integers all."""
    return GeneratedProgram(source(problem, d), arch, plan(problem, d))


def plan(problem: GemmProblem, d: Decisions) -> LaunchPlan:
    """Launches: copies of operands if any, the product, the sum over parts if there are any."""
    packed = packing.packed(problem)
    return planned(packed, d, decisions.shared_bytes(packed.problem, d))


def planned(packed: packing.Packed, d: Staged, shared: Value) -> LaunchPlan:
    """Launches, with `shared` bytes of the product's blocks."""
    problem = packed.problem
    is_split = d.split_k > 1
    target = problem.n_params + len(packed.copies) if is_split else problem.output.param
    reads = tuple(read.param for read in problem.epilogue.reads)
    launches = [packing.launch(packed)] if packed.copies else []
    launches.append(
        Launch(
            "gemm",
            (int(decisions.grid(problem, d).blocks), 1, 1, d.threads, 1, 1),
            int(shared),
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


def source(problem: GemmProblem, d: Decisions) -> str:
    """CUDA C++ of the kernels."""
    is_split = d.split_k > 1
    packed = packing.packed(problem)
    problem = packed.problem
    parts = [
        instructions.TYPES,
        _constants(problem, d),
        instructions.device_functions(problem),
        epilogue.functions(problem),
        kernel_text.TILES,
        layout.GATHERED if problem.a.gather or problem.b.gather else "",
        _tile(problem, "TileA", d),
        _tile(problem, "TileB", d),
        kernel_text.SUM_TILE,
        kernel_text.PARTIAL_SUMS + kernel_text.STORE_PARTIAL
        if is_split
        else kernel_text.STORE_RESULT,
        kernel_text.KERNEL,
        kernel_text.REDUCTION if is_split else "",
        packing_text.source(packed) if packed.copies else "",
    ]
    return epilogue.filled(problem, "".join(parts))


def _constants(problem: GemmProblem, d: Decisions) -> str:
    instruction = instructions.INSTRUCTIONS[problem.a.dtype, problem.b.dtype]
    a, b = (instructions.STORAGE[each.dtype].c_type for each in (problem.a, problem.b))
    text = constants(
        problem,
        d,
        {"WARP_M": d.warp_m, "WARP_N": d.warp_n},
        {"STORE_PITCH": decisions.store_pitch(d), "INSTRUCTION_K": instruction.k},
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
    text = "".join(f"constexpr int {name} = {value};\n" for name, value in values.items())
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
    group = matrix.swizzle(block, d.block_k).group
    tile = (
        f"Operand<{along_k}, {axis}, BLOCK_{axis}, {matrix.line_stride}, "
        f"{matrix.copy_bytes or 0}, {group}>"
    )
    if matrix.operand.gather is None:
        return f"typedef {tile} {name};\n"
    bytes_of_copy = matrix.copy_bytes or 0
    places = layout.places(f"{name}Places", problem, matrix.operand.gather, bytes_of_copy)
    return f"{places}typedef Gathered<{tile}, {name}Places> {name};\n"
