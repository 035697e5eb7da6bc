"""The generator: CUDA source and launch plan of a problem with decisions."""

from __future__ import annotations

from felix.launch_plan import Launch, LaunchPlan
from felix.templates.gemm import indexing
from felix.templates.gemm.ampere import epilogue as shared_epilogue
from felix.templates.gemm.ampere import kernel_text as shared_text
from felix.templates.gemm.ampere import program as ampere
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.simt import decisions, epilogue, instructions, kernel_text, layout
from felix.templates.gemm.simt.decisions import Decisions
from felix.templates.generated import GeneratedProgram


def program(problem: GemmProblem, d: Decisions, arch: str) -> GeneratedProgram:
    """The kernels of legal decisions, integers all."""
    return GeneratedProgram(source(problem, d), arch, plan(problem, d))


def plan(problem: GemmProblem, d: Decisions) -> LaunchPlan:
    """Launches: the product, and the sum over parts if there are any."""
    is_split = d.split_k > 1
    target = problem.n_params if is_split else problem.output.param
    reads = tuple(read.param for read in problem.epilogue.reads)
    product = Launch(
        "gemm",
        (int(decisions.grid(problem, d).blocks), 1, 1, d.threads, 1, 1),
        int(decisions.shared_bytes(problem, d)),
        (problem.a.param, problem.b.param, target, *reads),
    )
    if not is_split:
        return LaunchPlan(problem.n_params, (), (product,))
    workspace = int(ampere.workspace_bytes(problem, d.split_k))
    extents = (ampere.reduction_blocks(problem), 1, 1, ampere.REDUCTION_THREADS, 1, 1)
    reduction = Launch("reduce", extents, 0, (target, problem.output.param, *reads))
    return LaunchPlan(problem.n_params, (workspace,), (product, reduction))


def source(problem: GemmProblem, d: Decisions) -> str:
    """CUDA C++ of the kernels."""
    is_split = d.split_k > 1
    a, b = layout.tiles(problem)
    parts = [
        ampere.TYPES,
        _constants(problem, d),
        instructions.functions(problem),
        epilogue.functions(problem),
        kernel_text.TILES,
        _tile("TileA", a, "M", int(d.block_m), d),
        _tile("TileB", b, "N", int(d.block_n), d),
        kernel_text.SUM_TILE,
        shared_text.PARTIAL_SUMS if is_split else "",
        kernel_text.STORE_PARTIAL if is_split else kernel_text.STORE_RESULT,
        kernel_text.KERNEL,
        shared_text.REDUCTION if is_split else "",
    ]
    text = "".join(parts).replace("READ_PARAMETERS", shared_epilogue.parameters(problem))
    return text.replace("READ_ARGUMENTS", shared_epilogue.arguments(problem))


def _constants(problem: GemmProblem, d: Decisions) -> str:
    values = {
        "M": problem.m,
        "N": problem.n,
        "K": problem.k,
        "BATCH": problem.batch,
        "THREAD_M": d.thread_m,
        "THREAD_N": d.thread_n,
        "LANES_M": d.lanes_m,
        "LANES_N": d.lanes_n,
        "WARPS_M": d.warps_m,
        "WARPS_N": d.warps_n,
        "BLOCK_M": d.block_m,
        "BLOCK_N": d.block_n,
        "BLOCK_K": d.block_k,
        "STAGES": d.stages,
        "SPLIT_K": d.split_k,
        "GROUP_M": d.group_m,
        "BLOCKS_PER_SM": d.blocks_per_sm,
    }
    text = "".join(f"constexpr int {name} = {value};\n" for name, value in values.items())
    for name, operand in (("A", problem.a), ("B", problem.b)):
        start = indexing.matrix_start(operand, problem)
        function = f"__device__ __forceinline__ long long start_of_{name}(int batch)"
        text += f"{function} {{ return {start}; }}\n"
    return f"{text}typedef float Sum;\n"


def _tile(name: str, tile: layout.Tile, axis: str, rows: int, d: Decisions) -> str:
    """The type of the tiles of A or B, whose rows are an axis of C."""
    spread = tile.spread(rows, d.block_k, d.threads)
    return (
        f"typedef Operand<{str(tile.is_transposed).lower()}, {axis}, BLOCK_{axis}, "
        f"{tile.matrix.line_stride}ll, {tile.width}, {tile.pitch(rows)}, "
        f"{spread.rows}, {spread.k}> {name};\n"
    )
