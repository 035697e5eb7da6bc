"""Cache instructions on the symbolic program: cache_read, cache_write, set_scope."""

from __future__ import annotations

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir
from felix.symbolic.indices import index_expr, loaded
from felix.symbolic.instructions import loop_transforms
from felix.symbolic.ir import Access, Affine, Block, Buffer, Iter, IterComponent, Loop, Program


def tvm_reads(block: Block) -> list[Buffer]:
    """Buffers in the order of TVM's block.reads: a reduction's own target is not among them."""
    buffers = dict.fromkeys(a.buffer for a in block.reads)
    return [b for b in buffers if not (block.inits and block.stores_to(b))]


def cache_read(
    program: Program, block: Block, index: int, scope: str, consumers: list[Block]
) -> Block:
    """sch.cache_read: copy a buffer the block reads into a new buffer of `scope`."""
    source = tvm_reads(block)[index]
    cached = _cache_buffer(program, source, scope)
    copy, nest = _copy_block(program, source, cached, f"{source.name}_{scope}")
    writers = [(lp, b) for lp, b in program.walk() if b.stores_to(source)]
    place = 0
    if writers:
        top = writers[0][0][0] if writers[0][0] else writers[0][1]
        place = next(i for i, n in enumerate(program.body) if n is top) + 1
    program.body.insert(place, nest)
    for consumer in consumers or [b for _, b in program.walk() if b is not copy]:
        redirect(consumer, source, cached)
    return copy


def cache_write(program: Program, block: Block, index: int, scope: str) -> Block:
    """sch.cache_write: let the block write a new buffer of `scope` and copy that out after it."""
    if index != 0:
        raise UnsupportedSchedule("cache_write of a second output")
    target = block.store.target.buffer
    cached = _cache_buffer(program, target, scope)
    copy, nest = _copy_block(program, cached, target, f"{target.name}_{scope}")
    loops = program.loops_of(block)
    top: Loop | Block = loops[0] if loops else block
    place = next(i for i, n in enumerate(program.body) if n is top) + 1
    program.body.insert(place, nest)
    redirect(block, target, cached)
    return copy


def _cache_buffer(program: Program, source: Buffer, scope: str) -> Buffer:
    name = f"{source.name}_{scope}"
    buffer = Buffer(name, source.shape, source.dtype, source.dtype_bytes, scope)
    program.buffers.append(buffer)
    return buffer


def set_scope(buffer: Buffer, scope: str) -> None:
    """sch.set_scope: move a buffer to another memory; TVM renames it after the scope."""
    if buffer.scope == scope:
        return
    buffer.name, buffer.scope = f"{buffer.name}_{scope}", scope


def _copy_block(
    program: Program, source: Buffer, target: Buffer, name: str
) -> tuple[Block, Loop | Block]:
    iters = [
        Iter(index_expr.iter_symbol(f"v{i}"), extent, "spatial")
        for i, extent in enumerate(source.shape)
    ]
    components = [IterComponent(f"ax{i}", extent) for i, extent in enumerate(source.shape)]
    indices = tuple(it.symbol for it in iters)
    is_float = source.dtype.startswith(("float", "bfloat"))
    store = ir.Store(
        Access(target, indices), ir.Value("load", is_float, access=Access(source, indices))
    )
    block = Block(name, iters, [Affine({comp: 1}) for comp in components], (store,))
    block.number = sum(other.name == name for _, other in program.walk())
    return block, loop_transforms.nest(components, block)


def redirect(block: Block, old: Buffer, new: Buffer) -> None:
    """Let every access of the block to `old` go to `new`."""

    def access(a: Access) -> Access:
        indices = tuple(loaded.redirected(index, old, new) for index in a.indices)
        return Access(new if a.buffer is old else a.buffer, indices)

    def value(v: ir.Value) -> ir.Value:
        changed = access(v.access) if v.access is not None else None
        index = None if v.expr is None else loaded.redirected(v.expr, old, new)
        return ir.Value(v.op, v.is_float, tuple(value(x) for x in v.args), changed, index)

    def stores(old_stores: tuple[ir.Store, ...]) -> tuple[ir.Store, ...]:
        return tuple(ir.Store(access(s.target), value(s.value)) for s in old_stores)

    block.stores, block.inits = stores(block.stores), stores(block.inits)
