"""A kernel's facts in integers: what the parts of the generator read."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from felix.launch_plan import TensorMap
from felix.target import Hardware
from felix.templates.gemm.hopper import decisions, instructions, layout
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.hopper.convolution.operands import Pixels, Weights, pixels_of, weights_of
from felix.templates.gemm.problem import Epilogue, GemmProblem, Operand, Output
from felix.tir import grammar

#: An operand in memory.
Source = layout.Matrix | Pixels | Weights
_Facts = TypeVar("_Facts", decisions.Grid, decisions.Registers, decisions.Shared)


@dataclasses.dataclass(frozen=True, slots=True)
class Sink:
    """Where a kernel stores, and what becomes of sums before.

    Attributes:
        output: of the problem, or the workspace of partial sums: of parts x batches.
        batches: of `output`.
        inner_batch: extent of the inner of two batch axes; None where there is one.
    """

    output: Output
    batches: int
    epilogue: Epilogue
    inner_batch: int | None = None


def is_copied_by_tma(problem: GemmProblem) -> bool:
    """Whether TMA can store the output: strides of 16 bytes, elements of 2 or 4."""
    output = problem.output
    _, row, column = output.strides
    if grammar.element_bytes(output.dtype) == 1 or 1 not in (row, column):
        return False
    others = [row if column == 1 else column, output.offset, *problem.batch_strides(output)]
    return layout.are_aligned(output.dtype, others)


@dataclasses.dataclass(frozen=True, slots=True)
class Design:
    """A problem with decisions, in integers."""

    problem: GemmProblem
    hardware: Hardware
    d: decisions.Decisions

    @property
    def product(self) -> instructions.Product:
        return instructions.PRODUCTS[self.problem.a.dtype, self.problem.accumulator]

    @property
    def grid(self) -> decisions.Grid:
        return _integers(decisions.grid(self.problem, self.d, self.hardware.cores))

    @property
    def registers(self) -> decisions.Registers:
        return _integers(decisions.registers(self.d, self.hardware.registers_per_core))

    @property
    def shared(self) -> decisions.Shared:
        return _integers(decisions.shared(self.problem, self.d))

    # ------------------------------------------------------------ operands

    @property
    def blocks(self) -> axes.ChannelBlocks | None:
        """How the sum of a convolution is divided; None for other products."""
        return axes.of(self.problem)

    @property
    def matrices(self) -> tuple[Source, Source]:
        """A and B as the kernel reads them: packed in workspaces where TMA needs it."""
        return packed(self.problem)[1]

    @property
    def a(self) -> layout.Tile:
        return self._tile(0, self.d.block_m, self.d.cluster_n)

    @property
    def b(self) -> layout.Tile:
        return self._tile(1, self.d.block_n, self.d.cluster_m)

    def _tile(self, operand: int, lines: int, sharers: int) -> layout.Tile:
        block = self.blocks.block if self.blocks else None
        return layout.Tile(self.matrices[operand], lines, self.d.block_k, sharers, block)

    # ------------------------------------------------------------ output

    @property
    def is_split(self) -> bool:
        """Whether a second kernel adds partial sums."""
        return bool(self.d.split_k > 1)

    @property
    def final(self) -> Sink:
        """The output."""
        p = self.problem
        return Sink(p.output, p.batch, p.epilogue, p.inner_batch)

    @property
    def sink(self) -> Sink:
        """Where the product's kernel stores: partial sums if there is a second kernel."""
        return self.partial if self.is_split else self.final

    @property
    def partial(self) -> Sink:
        """The workspace of partial sums."""
        p, of = self.problem, PartialSums(self.problem)
        tensor = p.n_params + len(packed(p)[0])
        strides = (of.outer * of.pitch, *((of.pitch, 1) if of.is_row_major else (1, of.pitch)))
        output = Output(tensor, p.accumulator, strides)
        return Sink(output, self.d.split_k * p.batch, Epilogue())


#: Of one of a warpgroup's buffers for stores by TMA.
STORE_BUFFER_BYTES = decisions.WGMMA_ROWS * decisions.STORE_ROW_BYTES
#: A thread of the reduction adds so many neighbours.
REDUCED_ELEMENTS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class PartialSums:
    """Where they lie: [part][batch][outer][inner], contiguous along the output's own axis."""

    problem: GemmProblem

    @property
    def is_row_major(self) -> bool:
        """Whether columns of C are inner."""
        output = self.problem.output
        return output.is_row_major or 1 not in output.strides[1:]

    @property
    def inner(self) -> int:
        return self.problem.n if self.is_row_major else self.problem.m

    @property
    def outer(self) -> int:
        return self.problem.m if self.is_row_major else self.problem.n

    @property
    def pitch(self) -> int:
        """Elements from one row to the next: whole vectors."""
        return -(-self.inner // REDUCED_ELEMENTS) * REDUCED_ELEMENTS

    @property
    def elements(self) -> int:
        """Of a part."""
        return self.problem.batch * self.outer * self.pitch


def needs_k_major(problem: GemmProblem) -> bool:
    """Whether tensor cores want both operands contiguous along k."""
    return not instructions.PRODUCTS[problem.a.dtype, problem.accumulator].has_transposes


@dataclasses.dataclass(frozen=True, slots=True)
class Pack:
    """An operand that is copied: its device function, where it lies and where its copy does.

    Pixels and weights of a convolution are copied as a matrix of channels.
    """

    name: str
    source: layout.Matrix
    copy: layout.Matrix


def packed(problem: GemmProblem) -> tuple[list[Pack], tuple[Source, Source]]:
    """The operands that TMA cannot read where they lie, with workspaces for their copies; and A
    and B as the kernel reads them."""
    packs: list[Pack] = []

    def readable(name: str, source: Source) -> Source:
        if source.is_aligned:
            return source
        original = source if isinstance(source, layout.Matrix) else source.packable
        assert original is not None, "the problem is unsuited"
        copy = layout.packed(original, problem.n_params + len(packs))
        packs.append(Pack(name, original, copy))
        return copy if isinstance(source, layout.Matrix) else source.of_copy(copy)

    a, b = sources(problem)
    return packs, (readable("pack_a", a), readable("pack_b", b))


def sources(problem: GemmProblem) -> tuple[Source, Source]:
    """A and B where they lie in the parameters."""
    k_major, blocks = needs_k_major(problem), axes.of(problem)

    def source(operand: Operand, lines: int, is_pixels: bool) -> Source:
        if blocks is not None and is_pixels:
            return pixels_of(operand, problem)
        if blocks is not None:
            return weights_of(operand, problem, lines, blocks, k_major)
        batches = layout.Batches.of(operand, problem)
        return layout.matrix(operand, lines, problem.k, batches, k_major)

    is_a = bool(axes.pixels_are_a(problem))
    return source(problem.a, problem.m, is_a), source(problem.b, problem.n, not is_a)


@dataclasses.dataclass(frozen=True, slots=True)
class StoreTile:
    """What one buffer of a warpgroup holds for a store by TMA: 64 rows of some columns of C.

    Attributes:
        columns: of C in a buffer.
        width: bytes of a row in the buffer, which is also the swizzle's.
        panels: copies of a buffer; rows of C are divided among them where they are contiguous.
    """

    sink: Sink
    columns: int
    width: int
    panels: int

    def tensor_map(self, m: int, n: int) -> TensorMap:
        """The descriptor of the output by which a panel is stored."""
        output = self.sink.output
        size = grammar.element_bytes(output.dtype)
        batch, row, column = output.strides
        rows = decisions.WGMMA_ROWS // self.panels
        if output.is_row_major:
            extents, outer, box = (n, m), row, (self.columns, rows)
        else:
            extents, outer, box = (m, n), column, (rows, self.columns)
        outer_bytes = outer * size
        of_batch = layout.Batches(
            self.sink.batches, self.sink.inner_batch, batch, output.outer_stride
        )
        batches = of_batch.dimensions(size, outer_bytes)
        return TensorMap(
            output.param,
            output.dtype,
            (*extents, *(extent for extent, _ in batches)),
            (outer_bytes, *(stride for _, stride in batches)),
            (*box, *[1] * len(batches)),
            self.width if self.width >= 32 else 0,
            output.offset * size,
        )


def store_tile(sink: Sink, block_n: int) -> StoreTile:
    """The buffers by which a tile of `block_n` columns is stored."""
    size = grammar.element_bytes(sink.output.dtype)
    row_bytes = decisions.STORE_ROW_BYTES
    columns = row_bytes // size
    while block_n % columns:
        columns //= 2
    if sink.output.is_row_major:
        return StoreTile(sink, columns, columns * size, 1)
    return StoreTile(sink, columns, row_bytes, decisions.WGMMA_ROWS * size // row_bytes)


def _integers(facts: _Facts) -> _Facts:
    """A dataclass of integers, from one of sympy's."""
    fields = dataclasses.fields(facts)
    return type(facts)(*(int(getattr(facts, field.name)) for field in fields))
