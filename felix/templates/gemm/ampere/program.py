"""The generator: CUDA source and launch plan of a problem with decisions."""

from __future__ import annotations

from felix.launch_plan import Launch, LaunchPlan
from felix.templates.gemm import indexing
from felix.templates.gemm.ampere import decisions, dtypes, epilogue, kernel_text, layout, ptx
from felix.templates.gemm.ampere.decisions import Decisions
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram

#: Threads of a block of the kernel that adds partial sums; each adds two columns.
REDUCTION_THREADS = 256


_TYPES = """\
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
"""


def program(problem: GemmProblem, d: Decisions, arch: str) -> GeneratedProgram:
    """The kernels of legal decisions, integers all."""
    return GeneratedProgram(source(problem, d), arch, plan(problem, d))


def plan(problem: GemmProblem, d: Decisions) -> LaunchPlan:
    """The product's launch, and that of the sum over parts if there are any."""
    blocks = int(decisions.grid(problem, d).blocks)
    is_split = d.split_k > 1
    target = problem.n_params if is_split else problem.output.param
    reads = tuple(read.param for read in problem.epilogue.reads)
    launches = [
        Launch(
            "gemm",
            (blocks, 1, 1, d.threads, 1, 1),
            int(decisions.shared_bytes(problem, d)),
            (problem.a.param, problem.b.param, target, *reads),
        )
    ]
    if is_split:
        extents = (reduction_blocks(problem), 1, 1, REDUCTION_THREADS, 1, 1)
        arguments = (target, problem.output.param, *reads)
        launches.append(Launch("reduce", extents, 0, arguments))
    workspaces = (int(workspace_bytes(problem, d.split_k)),) if is_split else ()
    return LaunchPlan(problem.n_params, workspaces, tuple(launches))


def reduction_blocks(problem: GemmProblem) -> int:
    """Of the kernel that adds partial sums."""
    pairs = problem.batch * problem.m * _padded_columns(problem) // 2
    return -(-pairs // REDUCTION_THREADS)


def workspace_bytes(problem: GemmProblem, parts: decisions.Value) -> decisions.Value:
    """Of the partial sums, 4 bytes each."""
    return parts * problem.batch * problem.m * _padded_columns(problem) * 4


def _padded_columns(problem: GemmProblem) -> int:
    return problem.n + problem.n % 2


def source(problem: GemmProblem, d: Decisions) -> str:
    """CUDA C++ of the kernels."""
    is_split = d.split_k > 1
    parts = [
        _TYPES,
        _constants(problem, d),
        ptx.functions(problem),
        epilogue.functions(problem),
        kernel_text.TILES,
        _tile("TileA", layout.matrices(problem)[0], "M", d.block_m, d.block_k),
        _tile("TileB", layout.matrices(problem)[1], "N", d.block_n, d.block_k),
        kernel_text.SUM_TILE,
        kernel_text.STORE_PARTIAL if is_split else kernel_text.STORE_RESULT,
        kernel_text.KERNEL,
        kernel_text.REDUCTION if is_split else "",
    ]
    text = "".join(parts)
    text = text.replace("READ_PARAMETERS", epilogue.parameters(problem))
    return text.replace("READ_ARGUMENTS", epilogue.arguments(problem))


def _constants(problem: GemmProblem, d: Decisions) -> str:
    instruction = dtypes.INSTRUCTIONS[problem.a.dtype, problem.b.dtype]
    a, b = (dtypes.STORAGE[operand.dtype].c_type for operand in (problem.a, problem.b))
    values = {
        "M": problem.m, "N": problem.n, "K": problem.k, "BATCH": problem.batch,
        "WARP_M": d.warp_m, "WARP_N": d.warp_n, "WARPS_M": d.warps_m, "WARPS_N": d.warps_n,
        "BLOCK_M": d.block_m, "BLOCK_N": d.block_n, "BLOCK_K": d.block_k,
        "STAGES": d.stages, "SPLIT_K": d.split_k, "GROUP_M": d.group_m,
        "BLOCKS_PER_SM": d.blocks_per_sm, "STORE_PITCH": decisions.store_pitch(d),
        "INSTRUCTION_K": instruction.k,
    }  # fmt: skip
    text = "".join(f"constexpr int {name} = {value};\n" for name, value in values.items())
    for name, operand in (("A", problem.a), ("B", problem.b)):
        start = indexing.matrix_start(operand, problem)
        function = f"__device__ __forceinline__ long long start_of_{name}(int batch)"
        text += f"{function} {{ return {start}; }}\n"
    sums = "float" if problem.accumulator == "float32" else "int"
    return f"{text}typedef {a} Element;\ntypedef {b} ElementB;\ntypedef {sums} Sum;\n"


def _tile(name: str, matrix: layout.Matrix, axis: str, block: int, block_k: int) -> str:
    """The type of the tiles of an operand, whose rows are an axis of C."""
    along_k = "true" if matrix.is_along_k else "false"
    group = matrix.swizzle(block, block_k).group
    return (
        f"typedef Operand<{along_k}, {axis}, BLOCK_{axis}, {matrix.line_stride}, "
        f"{matrix.copy_bytes or 0}, {group}> {name};\n"
    )
