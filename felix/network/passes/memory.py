"""The memory for a network's intermediate values and constants.

That of intermediate values is made once and used by every call. TVM plans which values share a
storage, and `main` would take each storage from a pool that all networks share, and give it back.
A CUDA graph writes to the memory of its capture whenever it is replayed, so that memory must be
the network's alone. Here the planned storages become parameters of `main`, behind all others, and
the function `workspace` makes them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural

from felix.frontend.rewriting import bindings, operator_name

#: The function that makes the storages; a network without intermediate values has none.
FUNCTION = "workspace"
#: Operators, as `operator_name` writes them.
_STORAGE, _TENSOR = "memory.alloc_storage", "memory.alloc_tensor"
_OUTPUT = "builtin.alloc_tensor"


@tvm.transform.module_pass(opt_level=0, name="LiftWorkspace")
class Lift:
    """The pass; storages are those that `StaticPlanBlockMemory` planned, their sizes constants."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module with its storages made by `workspace`."""
        main = mod["main"]
        storages = [each for each in bindings(main) if operator_name(each.value) == _STORAGE]
        if not storages:
            return mod
        mod = mod.clone()
        mod.update_func(mod.get_global_var("main"), _with_storages(main, storages))
        mod[FUNCTION] = _workspace(storages)
        return mod


def _with_storages(main: relax.Function, storages: list[Any]) -> relax.Function:
    """`main` with these storages as its last parameters."""
    blocks = [
        relax.BindingBlock([b for b in block.bindings if operator_name(b.value) != _STORAGE])
        for block in main.body.blocks
    ]
    return _changed(main, blocks, [*main.params, *(each.var for each in storages)])


def _changed(main: relax.Function, blocks: list[Any], params: Sequence[Any]) -> relax.Function:
    """`main` with other bindings and parameters."""
    body = relax.SeqExpr(blocks, main.body.body)
    return relax.Function(list(params), body, main.ret_ty, main.is_pure, main.attrs)


def _workspace(storages: list[Any]) -> relax.Function:
    """A function that returns the storages."""
    made = [
        relax.VarBinding(relax.Var(f"s{number}", each.var.ty), each.value)
        for number, each in enumerate(storages)
    ]
    kinds = relax.TupleType([each.var.ty for each in made])
    result = relax.Var("all", kinds)
    bindings = [*made, relax.VarBinding(result, relax.Tuple([each.var for each in made]))]
    function = relax.Function(
        [], relax.SeqExpr([relax.BindingBlock(bindings)], result), kinds, is_pure=False
    )
    return function.with_attr("global_symbol", FUNCTION).with_attr("relax.force_pure", True)


# Memory of intermediate values, planned for calls that may run side by side.
#
# TVM's plan (`StaticPlanBlockMemory`) lets a value take the memory of another one as soon as the
# last call that reads it has come in the order of calls. Two calls of which neither needs the
# other then often have to wait for each other, because they share memory. Here a value takes the
# memory of another one only if its own call needs, over others, every call that uses the other
# one.


@dataclasses.dataclass(slots=True)
class _Storage:
    """A piece of memory, the value that has it now, and how large it has to be."""

    binding: Any
    value: Any
    size_bytes: int


@tvm.transform.module_pass(opt_level=0, name="SeparateIndependentValues")
class Separate:
    """The pass, behind `StaticPlanBlockMemory` and before `Lift`."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module with its planned values in storages that independent calls do not share."""
        main = mod["main"]
        storages = _assigned(main)
        if not storages:
            return mod
        mod = mod.clone()
        mod.update_func(mod.get_global_var("main"), _rewritten(main, storages))
        return mod


class _Uses:
    """Which calls use each planned value, and which calls each call needs, as bits."""

    def __init__(self, main: relax.Function) -> None:
        #: Variable -> the planned values that it may be or lie in.
        self._values: dict[Any, frozenset[Any]] = {}
        #: Variable -> the calls that made what it holds.
        self._made_by: dict[Any, int] = {}
        #: Tensors that no call has written yet.
        self._empty: set[Any] = set()
        self.users: dict[Any, int] = {}
        self.needs: dict[Any, int] = {}
        number = 0
        for binding in bindings(main):
            name = operator_name(binding.value)
            if name in (_TENSOR, _OUTPUT):
                self._empty.add(binding.var)
                if name == _TENSOR:
                    self._values[binding.var] = frozenset([binding.var])
                    self.users[binding.var] = 0
            elif isinstance(binding.value, relax.Call) and name not in (_STORAGE, "reshape"):
                self._use(binding, number)
                number += 1
            else:  # a view, another name or a tuple
                self._values[binding.var] = self._of(binding.value)
                self._made_by[binding.var] = self._needed(binding.value)
        self.kept = self._of(main.body.body)

    def _of(self, expression: Any) -> frozenset[Any]:
        own = [
            self._values.get(each, frozenset()) for each in relax.analysis.free_vars(expression)
        ]
        return frozenset().union(*own)

    def _needed(self, expression: Any) -> int:
        needed = 0
        for each in relax.analysis.free_vars(expression):
            needed |= self._made_by.get(each, 0)
        return needed

    def _use(self, binding: Any, number: int) -> None:
        """A call: what it is given it needs or writes, the first that has a new value."""
        needed = self._needed(binding.value)
        with_it = needed | 1 << number
        for variable in relax.analysis.free_vars(binding.value):
            for value in self._values.get(variable, ()):
                if not self.users[value]:
                    self.needs[value] = needed
                self.users[value] |= 1 << number
            if variable in self._empty:
                self._empty.remove(variable)
                self._made_by[variable] = with_it
        self._values[binding.var] = self._of(binding.value)
        self._made_by[binding.var] = with_it


def _assigned(main: relax.Function) -> dict[Any, _Storage]:
    """Planned value -> its storage."""
    uses = _Uses(main)
    storages: list[_Storage] = []
    assigned: dict[Any, _Storage] = {}
    made = {each.var: each for each in bindings(main)}
    for binding in bindings(main):
        if operator_name(binding.value) != _TENSOR:
            continue
        size_bytes = _size_bytes(binding.value)
        storage = _free(storages, uses, binding.var, size_bytes)
        if storage is None:
            storage = _Storage(made[binding.value.args[0]], binding.var, size_bytes)
            storages.append(storage)
        storage.value = binding.var
        storage.size_bytes = max(storage.size_bytes, size_bytes)
        assigned[binding.var] = storage
    return assigned


def _free(storages: list[_Storage], uses: _Uses, value: Any, size_bytes: int) -> _Storage | None:
    """The smallest storage that is large enough, else the largest, of those it may take."""
    needs = uses.needs.get(value, 0)
    free = [
        each
        for each in storages
        if each.value not in uses.kept and not uses.users[each.value] & ~needs
    ]
    enough = [each for each in free if each.size_bytes >= size_bytes]
    if enough:
        return min(enough, key=lambda each: each.size_bytes)
    return max(free, key=lambda each: each.size_bytes, default=None)


def _size_bytes(call: relax.Call) -> int:
    n_elements = math.prod(int(extent) for extent in call.args[2].values)
    dtype = tvm.DataType(str(call.args[3].value))
    return n_elements * int(dtype.lanes) * math.ceil(int(dtype.bits) / 8)


def _rewritten(main: relax.Function, assigned: dict[Any, _Storage]) -> relax.Function:
    """`main` with every planned value in its storage, which is made before its first value."""
    made: dict[int, Any] = {}
    blocks = []
    for block in main.body.blocks:
        kept: list[Any] = []
        for binding in block.bindings:
            if operator_name(binding.value) == _STORAGE:
                continue
            if binding.var in assigned:
                storage = assigned[binding.var]
                if id(storage) not in made:
                    made[id(storage)] = _making(storage, len(made))
                    kept.append(made[id(storage)])
                call = binding.value  # its value is at the beginning of the storage
                arguments = [made[id(storage)].var, *call.args[1:]]
                call = relax.Call(call.op, arguments, call.attrs, call.ty_args)
                binding = relax.VarBinding(binding.var, call)
            kept.append(binding)
        blocks.append(relax.BindingBlock(kept))
    return _changed(main, blocks, main.params)


def _making(storage: _Storage, number: int) -> relax.VarBinding:
    """The binding of a storage, as large as its largest value."""
    call = storage.binding.value
    size = relax.ShapeExpr([storage.size_bytes])
    variable = relax.Var(f"storage{number}", storage.binding.var.ty)
    return relax.VarBinding(
        variable, relax.Call(call.op, [size, *call.args[1:]], call.attrs, call.ty_args)
    )


# Constants of a network in memory of their own.
#
# TVM takes a module's buffers as constants without copies, so they would change with the
# module's.


def own(mod: tvm.IRModule) -> tvm.IRModule:
    """A lowered network whose constants are copies."""
    main = mod["main"]
    body = structural.structural_map(main.body, ((tvm.ir.GenericConst, _copied),))
    copied = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span)
    functions = {**mod.functions, mod.get_global_var("main"): copied}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _copied(constant: tvm.ir.GenericConst) -> tvm.ir.GenericConst:
    if not isinstance(constant.value, tvm.runtime.Tensor):
        return constant
    host = tvm.runtime.device("cpu", 0)
    return tvm.ir.GenericConst(constant.value.copyto(host), constant.ty)
