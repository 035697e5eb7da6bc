"""The kernel launches of a program, read off the host function that TVM would compile.

TVM's host function checks the arguments, allocates workspaces and launches kernels. It is not
built: a `launch_plan.LaunchPlan` has what it launches, in order, and the run worker launches that
by the driver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural

from felix.builder import preparation
from felix.launch_plan import Launch, LaunchPlan
from felix.tir import grammar

# What TVM compiles of a program for CUDA: powers with a whole exponent as products.
#
# With fast math x ** n is exp2(n * log2(x)), NaN for a negative x. A product is right
# everywhere, and faster. Exponents that are not whole, or not known, stay powers. So do powers
# of float64, which fast math leaves alone.

_FLOATS = ("float16", "float32")
#: Roundings of more factors would add up.
_MOST_FACTORS = 64


def _of_function(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    return preparation.mapped(func, _changed, tvm.ir.Call)


#: A pass of TVM; called with a module, it gives the module as it is compiled.
PREPARED = tirx.transform.prim_func_pass(_of_function, opt_level=0, name="felix.PreparedForCUDA")


def _changed(call: tvm.ir.Call) -> tvm.ir.Expr:
    """A product of float32, rounded once, in place of a power; the base is computed once."""
    exponent, dtype = _whole_exponent(call), grammar.dtype(call)
    if exponent is None:
        return call
    x, one = tirx.Var("base", "float32"), tirx.const(1.0, "float32")
    product = _product(x, abs(exponent)) if exponent else one
    result = one / product if exponent < 0 else product
    # `astype` gives what has the type already as it is
    return tirx.Let(x, call.args[0].astype("float32"), result).astype(dtype)


def _whole_exponent(call: tvm.ir.Call) -> int | None:
    """The exponent of a power that becomes a product; None for any other call."""
    if getattr(call.op, "name", "") != "tirx.pow" or grammar.dtype(call) not in _FLOATS:
        return None
    exponent = call.args[1]
    if not isinstance(exponent, tirx.FloatImm):
        return None
    is_whole = exponent.value.is_integer() and abs(exponent.value) <= _MOST_FACTORS
    return int(exponent.value) if is_whole else None


def _product(x: tvm.ir.Expr, count: int) -> tvm.ir.Expr:
    """x multiplied `count` times, by squaring."""
    if count == 1:
        return x
    if count % 2:
        return _product(x, count - 1) * x
    square = tirx.Var("square", "float32")
    return tirx.Let(square, x * x, _product(square, count // 2))


#: Kinds of `tvm_struct_get`: an argument's handle.
_ARGUMENT_HANDLE = 15
#: Tags of a launch's numbers, as TVM names them.
AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"


class BuildError(Exception):
    """The candidate cannot be built or would take too long to."""


def plan_of(func: tvm.tirx.PrimFunc, n_params: int) -> LaunchPlan:
    """The launches of a host function, in order.

    Raises:
        BuildError: it does more than launch kernels in a fixed order.
    """
    reader = _HostReader()
    structural.structural_walk(func.body, ((tvm.runtime.Object, reader.visit),), order="pre")
    if reader.refused is not None:
        raise BuildError(reader.refused)
    workspaces: list[int] = []
    numbers: dict[Any, int] = dict(reader.handles)
    for buffer in reader.allocated:
        numbers[buffer] = n_params + len(workspaces)
        size = math.prod(int(extent) for extent in buffer.shape)
        workspaces.append(size * tvm.DataType(str(buffer.dtype)).itemsize)

    def number(var: Any) -> int:
        while var not in numbers:
            if var not in reader.declared:
                raise BuildError(f"cannot tell which tensor {var} is")
            var = reader.declared[var]
        return numbers[var]

    launches = tuple(
        Launch(kernel, *_geometry(tags, values), tuple(number(var) for var in tensors))
        for kernel, tensors, tags, values in reader.launches
    )
    if not launches:
        raise BuildError("the program launches nothing")
    return LaunchPlan(n_params, tuple(workspaces), launches)


def _geometry(
    tags: Sequence[str], values: Sequence[int]
) -> tuple[tuple[int, int, int, int, int, int], int]:
    """Extents and dynamic shared bytes from launch parameters."""
    extent_of = dict(zip(tags, values, strict=True))
    shared_bytes = extent_of.pop(DYNAMIC_SHARED, 0)
    unknown = set(extent_of) - set(AXES)
    if unknown:
        raise BuildError(f"unknown launch parameters {sorted(unknown)}")
    x, y, z, tx, ty, tz = (extent_of.get(axis, 1) for axis in AXES)
    return (x, y, z, tx, ty, tz), shared_bytes


class _HostReader:
    """What a host function allocates, names and launches."""

    def __init__(self) -> None:
        #: Why no plan can describe the function; errors raised inside a walk lose their class
        #: on the way through TVM.
        self.refused: str | None = None
        self.handles: dict[Any, int] = {}
        self.declared: dict[Any, Any] = {}
        self.allocated: list[Any] = []
        self.launches: list[tuple[str, list[Any], list[str], list[int]]] = []

    def visit(self, node: Any) -> None:
        """One node, outer ones first."""
        kind = type(node).__name__
        if kind in ("For", "While"):
            self.refused = "the host part of the program has a loop"
        elif kind == "Bind":
            position = _argument(node.value)
            if position is not None:
                self.handles[node.var] = position
        elif kind == "DeclBuffer":
            sources = _nodes(node.data, tvm.ir.Var)
            if len(sources) == 1:
                self.declared[node.buffer] = sources[0]
        elif kind == "AllocBuffer":
            self.allocated.append(node.buffer)
        elif kind == "Call" and getattr(node.op, "name", "") == "tirx.call_ffi_kernel":
            self._launch(node)

    def _launch(self, call: Any) -> None:
        tags = [str(tag) for tag in call.attrs.launch_params]
        tensors = list(call.args[1 : len(call.args) - len(tags)])
        values = [int(value) for value in call.args[len(call.args) - len(tags) :]]
        roots = []
        for tensor in tensors:
            variables = _nodes(tensor, tvm.ir.Var)
            if len(variables) != 1:
                self.refused = "a kernel has an argument that is no tensor"
                return
            roots.append(variables[0])
        self.launches.append((str(call.args[0].value), roots, tags, values))


def _argument(value: Any) -> int | None:
    """The parameter whose handle an expression reads, None if it reads none."""
    for call in _nodes(value, tvm.ir.Call):
        if call.op.name == "tirx.tvm_struct_get" and int(call.args[2]) == _ARGUMENT_HANDLE:
            return int(call.args[1])
    return None


def _nodes(value: Any, kind: Any) -> list[Any]:
    """Nodes of a kind in an expression, outer ones first."""
    nodes: list[Any] = []
    structural.structural_walk(value, ((kind, nodes.append),), order="pre")
    return nodes
