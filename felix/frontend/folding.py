"""Work that is done once when a model is imported, that on parameters alone above all.

- Batch norm in inference, y = (x - mean) / sqrt(var + eps) * gamma + beta, is y = x * scale +
  shift with a scale and a shift for each channel. Behind a convolution, transposed or not, in one
  to three dimensions, the weights take the scale and the bias becomes bias * scale + shift.
  Elsewhere two elementwise operators are left.
- A parameter that is reshaped, cast or sliced is replaced by the reshaped, cast or sliced one.
  Transposed weights stay: programs read them as they lie.
- A power with a constant exponent is a product or a root (`numerics`).
- What sums 16-bit floats does it in float32, and rounds once.
- A model's own cast to 16 bits stays one (`casts`).
- What orders floats takes NaN for the largest (`ordering`).
- A product with 0, and x - x, is NaN where the operand is no finite number.
- A norm of float64 is its sums and products (`norms`); a quotient by 0 is a product.
- A product over no terms is zeros: TVM's program would never begin its sums.
- Parameters that nothing reads any more are dropped.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from felix.frontend import casts, imported, layers, norms, numerics, ordering
from felix.frontend.rewriting import Rewriter, bindings, operator_name

_RESHAPES = frozenset({"reshape", "expand_dims", "squeeze"})


def fold(model: imported.ImportedModel) -> imported.ImportedModel:
    """The same model with less work on parameters."""
    folding = _Folding(model)
    rewriter = Rewriter(model.mod)
    mod = rewriter.run(folding.rule, folding.params)
    mod = relax.transform.DeadCodeElimination()(mod)
    return _without_unread(dataclasses.replace(model, mod=mod), folding)


def _is_empty(kind: Any) -> bool:
    """Whether a type is of tensors without elements: no GPU runs a program that makes one."""
    if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return False
    extents = list(kind.shape)
    return all(isinstance(e, tvm.tirx.IntImm) for e in extents) and 0 in map(int, extents)


def written_rightly(rewriter: Rewriter, value: Any) -> Any:
    """What stands for an operator of which TVM's program gives other values; None for others."""
    if (wide := numerics.widened_sum(rewriter, value)) is not None:
        return wide
    if (by_keys := ordering.rule(rewriter, value)) is not None:
        return by_keys
    if operator_name(value) in norms.OPERATORS:
        return norms.expanded_norm(rewriter, value)
    return numerics.of_zero(rewriter, value)


class _Folding:
    """The parameters of the function that is being made, with their values."""

    def __init__(self, model: imported.ImportedModel) -> None:
        variables = list(imported.main_of(model.mod).params)
        count = len(model.inputs)
        self.inputs = variables[:count]
        self.values = dict(zip(variables[count:], model.parameters, strict=True))
        self.names = dict(zip(variables[count:], model.parameter_names, strict=True))
        self._derived: dict[tuple[Any, ...], Any] = {}
        main = imported.main_of(model.mod)
        self._has_empty = any(_is_empty(each.var.ty) for each in bindings(main))

    def params(self) -> list[Any]:
        return [*self.inputs, *self.values]

    def rule(self, rewriter: Rewriter, value: Any) -> Any:
        name = operator_name(value)
        if self._has_empty and _is_empty(kind := _type(rewriter, value)):
            return relax.op.builtin.alloc_tensor(kind.shape, str(kind.dtype), 0)
        if name in _RESHAPES and value.args[0] in self.values:
            shape = tuple(int(extent) for extent in _type(rewriter, value).shape)
            return self._changed(value.args[0], (name, shape), lambda t: t.reshape(shape))
        if name == "astype" and value.args[0] in self.values:
            dtype = str(value.attrs.dtype)
            return self._changed(value.args[0], (name, dtype), lambda t: t.astype(_numpy(dtype)))
        if (rounding := casts.rule(rewriter, value)) is not None:
            return rounding
        if name == "strided_slice" and value.args[0] in self.values:
            return self._sliced(value)
        if name == "nn.batch_norm" and not value.attrs.training:
            return self._batch_norm(rewriter, value)
        if name == "power":
            return numerics.expanded_power(rewriter, value, self._tensor(value.args[1]))
        if (other := written_rightly(rewriter, value)) is not None:
            return other
        if name == "divide":
            return self._by_zero(value)
        if name == "matmul" and _last_extent(value.args[0].ty) == 0:
            result = _type(rewriter, value)
            return relax.op.zeros(tuple(result.shape), str(result.dtype))
        return None

    def _by_zero(self, call: Any) -> Any:
        """x / 0 as x * infinity, which is the same; None for other quotients."""
        x, divisor = call.args
        number = divisor.value.numpy() if isinstance(divisor, tvm.ir.GenericConst) else None
        dtype = str(x.ty.dtype)
        if number is None or number.size != 1 or number.any() or "float" not in dtype:
            return None
        factor = np.copysign(np.inf, number.astype("float64")).astype(_numpy(dtype))
        return relax.op.multiply(x, relax.const(factor, dtype))

    def _changed(self, var: Any, key: tuple[Any, ...], change: Any) -> Any:
        """The parameter that is another one, changed; the same for the same key."""
        if (var, *key) not in self._derived:
            tensor = np.ascontiguousarray(change(self._tensor(var)))
            self._derived[var, *key] = self.add(tensor, self.names[var])
        return self._derived[var, *key]

    def _sliced(self, call: Any) -> Any:
        """A part of a parameter; None where its bounds are not known, or from behind."""
        bounds = [_integers(argument) for argument in call.args[1:]]
        if any(each is None or min(each, default=0) < 0 for each in bounds):
            return None
        parts = [slice(None)] * len(call.args[0].ty.shape)
        for axis, *bound in zip(*(each for each in bounds if each is not None), strict=True):
            parts[axis] = slice(*bound)
        chosen = tuple(parts)
        return self._changed(
            call.args[0], ("strided_slice", *map(str, parts)), lambda t: t[chosen]
        )

    def add(self, tensor: np.ndarray, name: str) -> Any:
        """A new parameter."""
        dtype = str(tensor.dtype)
        var = relax.Var(f"felix_p{len(self.values)}", relax.TensorType(tuple(tensor.shape), dtype))
        self.values[var] = tvm.runtime.tensor(np.ascontiguousarray(tensor))
        self.names[var] = name
        return var

    def _tensor(self, value: Any) -> np.ndarray | None:
        """The value of a parameter or a constant."""
        if isinstance(value, tvm.ir.GenericConst):
            tensor = value.value
        elif value in self.values:
            tensor = self.values[value]
        else:
            return None
        if not isinstance(tensor, tvm.runtime.Tensor):
            tensor = tvm.runtime.from_dlpack(tensor.contiguous())
        array: np.ndarray = tensor.numpy()
        return array

    def _batch_norm(self, rewriter: Rewriter, call: Any) -> Any:
        x, *rest = call.args
        tensors = [self._tensor(item) for item in rest]
        if any(tensor is None for tensor in tensors):
            return None
        gamma, beta, mean, var = (t.astype("float64") for t in tensors if t is not None)
        scale = (gamma if call.attrs.scale else 1) / np.sqrt(var + float(call.attrs.epsilon))
        shift = (beta if call.attrs.center else 0) - mean * scale
        y = self._into_convolution(rewriter, x, scale, shift)
        if y is None:
            y = self._elementwise(rewriter, x, scale, shift, int(call.attrs.axis))
        return relax.Tuple([y, rest[2], rest[3]])

    def _into_convolution(
        self, rewriter: Rewriter, x: Any, scale: np.ndarray, shift: np.ndarray
    ) -> Any:
        """The normalised result of a convolution that nothing else reads; None if x is none."""
        y, bias = x, np.zeros_like(shift)
        is_private = rewriter.is_read_once(x)
        while (cast := rewriter.value(y, "astype")) is not None:
            if "float" not in str(cast.args[0].ty.dtype) or "float" not in str(y.ty.dtype):
                return None
            y = cast.args[0]
            is_private &= rewriter.is_read_once(y)
        added = rewriter.value(y, "add")
        if added is not None:
            tensor = self._tensor(added.args[1])
            if tensor is None or not _is_bias(y, added.args[0], tensor):
                return None
            y, bias = added.args[0], tensor.astype("float64").reshape(-1)
            is_private &= rewriter.is_read_once(y)
        call = rewriter.value(y)
        if not is_private or not operator_name(call).startswith("nn.conv"):
            return None
        weight = self._tensor(call.args[1])
        if weight is None:
            return None
        name = self.names.get(call.args[1], "weight")
        scaled = _scaled(weight, scale, str(call.attrs.kernel_layout), int(call.attrs.groups))
        operands = [call.args[0], self.add(scaled, name)]
        result = rewriter.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
        shape = (1, -1, *[1] * (weight.ndim - 2))
        dtype = _numpy(str(result.ty.dtype))
        term = self.add((bias * scale + shift).astype(dtype).reshape(shape), f"{name}.bias")
        result = rewriter.emit(relax.op.add(result, term))
        return layers.cast(rewriter.emit, result, str(x.ty.dtype))

    def _elementwise(
        self, rewriter: Rewriter, x: Any, scale: np.ndarray, shift: np.ndarray, axis: int
    ) -> Any:
        dtype, rank = str(x.ty.dtype), len(x.ty.shape)
        wide = "float64" if dtype == "float64" else "float32"
        shape = [-1 if i == axis % rank else 1 for i in range(rank)]
        y = layers.cast(rewriter.emit, x, wide)
        factor, term = (
            self.add(tensor.astype(wide).reshape(shape), "batch_norm") for tensor in (scale, shift)
        )
        y = rewriter.emit(relax.op.multiply(y, factor))
        y = rewriter.emit(relax.op.add(y, term))
        return layers.cast(rewriter.emit, y, dtype)


def _numpy(dtype: str) -> Any:
    """An element type of TVM as numpy's."""
    return np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)


def _type(rewriter: Rewriter, value: Any) -> Any:
    return rewriter.builder.normalize(value).ty


def _integers(argument: Any) -> list[int] | None:
    """A tuple of integers; None if one is not known."""
    if not isinstance(argument, relax.Tuple):
        return None
    numbers = [getattr(field, "value", field) for field in argument.fields]
    if not all(isinstance(number, int | tvm.tirx.IntImm) for number in numbers):
        return None
    return [int(number) for number in numbers]


def _last_extent(kind: Any) -> int | None:
    """The last extent of a type of tensors; None if it is not known."""
    if not isinstance(kind.shape, relax.ShapeExpr) or not kind.shape.values:
        return None
    extent = kind.shape.values[-1]
    return int(extent) if isinstance(extent, tvm.tirx.IntImm) else None


def _is_bias(total: Any, first: Any, tensor: np.ndarray) -> bool:
    """Whether a sum of a value and a tensor adds a number to each of its channels, axis 1."""
    shape = [int(extent) for extent in total.ty.shape]
    aligned = [*[1] * (len(shape) - tensor.ndim), *tensor.shape]
    per_channel = [extent if axis == 1 else 1 for axis, extent in enumerate(shape)]
    return aligned == per_channel and [int(extent) for extent in first.ty.shape] == shape


def _scaled(weight: np.ndarray, scale: np.ndarray, layout: str, groups: int) -> np.ndarray:
    """Weights of a convolution whose results are multiplied by a scale for each channel.

    Args:
        weight: [O, I / groups, ...], or [I, O / groups, ...] where transposed.
        scale: [O], float64.
        layout: the weight's axes as TVM names them, "OIHW" or "IOHW".
        groups: of the convolution.
    """
    ones = [1] * (weight.ndim - 2)
    if layout.startswith("OI"):
        factors = scale.reshape(-1, 1, *ones)
    else:
        factors = scale.reshape(groups, 1, -1).repeat(weight.shape[0] // groups, axis=1)
        factors = factors.reshape(weight.shape[0], -1, *ones)
    scaled: np.ndarray = (weight.astype("float64") * factors).astype(weight.dtype)
    return scaled


def _without_unread(model: imported.ImportedModel, folding: _Folding) -> imported.ImportedModel:
    """The model with the parameters that its function reads, and no others."""
    main = imported.main_of(model.mod)
    read = set(relax.analysis.free_vars(main.body))
    chosen = [var for var in folding.values if var in read]
    names = [folding.names[var] for var in chosen]
    function = relax.Function(
        [*folding.inputs, *chosen], main.body, main.ret_ty, main.is_pure, main.attrs
    )
    functions = dict(model.mod.functions_items())
    mod = tvm.IRModule({**functions, model.mod.get_global_var("main"): function})
    return dataclasses.replace(
        model,
        mod=mod,
        parameters=tuple(folding.values[var] for var in chosen),
        parameter_names=tuple(names),
    )
