"""Operators that TVM does not convert, or not rightly, as calls of PyTorch's own.

Such an operator becomes a call of a function by its name (`relax.call_dps_packed`), whose form
(`felix.torch_calls.form`) says which operator of ATen it is and with which arguments.
The rest of the model is programs as usual. An operator of several results is a call for each that
is read.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from tvm import relax
from tvm.relax.frontend.torch import exported_program_translator as translator

from felix import errors, names
from felix.frontend import imported, reading
from felix.frontend.pytorch import calling, comparison, conversion, export, operators
from felix.torch_calls.form import TorchCall, TorchForm

#: Types of arguments that a form may have.
_PLAIN = (
    torch.fx.Node,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.device,
    type(None),
    bool,
    int,
    float,
    str,
)
#: Operators of which TVM's conversion gives something else.
_WRONG = frozenset({"_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default"})
#: Arguments that say where a result is stored and how, or its type, which is cast; that count in
#: training alone; or that repeat what shapes say.
_WITHOUT_EFFECT = frozenset(
    """
    dtype layout device pin_memory memory_format non_blocking implicit half_to_float
    cudnn_enable cudnn_enabled momentum padding_idx scale_grad_by_freq sparse N C HxW
    normalized_shape training
    """.split()
)


def convertible() -> frozenset[str]:
    """Names of the ATen operators that TVM converts; whether it does depends on operands, too."""
    own = translator.ExportedProgramImporter().create_convert_map()
    return frozenset({*operators.CONVERSIONS, *own}) - _WRONG


class Unconverted:
    """The operators of a program that are left to PyTorch, and how an import has them.

    Attributes:
        forms: by the names of the operators what is called of each, as text, as far as it is
            imported.
    """

    def __init__(self, program: ExportedProgram) -> None:
        nodes = [node for node in program.graph.nodes if node.op == "call_function"]
        for node in nodes:
            _refuse_memory(node)
        unfit = {_name(node) for node in nodes if not (_is_pure(node) and _is_plain(node))}
        self._names = sorted({_name(node) for node in nodes} - unfit)
        self._conversions: dict[str, conversion.Converter] = {}
        self._known: dict[str, bool] = {}
        self.forms: dict[str, list[str]] = {}

    def convert_map(self) -> dict[str, conversion.Converter]:
        """Conversions by the operators' names, for the import of the program."""
        known = convertible()
        return {n: self._converted if n in known else self._left for n in self._names}

    def _converted(self, node: torch.fx.Node, importer: Any) -> Any:
        """The usual conversion of an operator, if it reads what it is given and gives what the
        operator gives; another type is cast."""
        if not self._conversions:
            self._conversions = _conversions(importer)
        if not self._is_right(node):
            return self._left(node, importer)
        watched: Any = _Watched(node)
        try:
            result = self._conversions[_name(node)](watched, importer)
        except export.EXPORT_ERRORS:
            return self._left(node, importer)
        value, kind = node.meta["val"], getattr(result, "ty", None)
        if watched.has_dropped:
            return self._left(node, importer)
        if not isinstance(value, torch.Tensor) or not isinstance(kind, relax.TensorType):
            return result
        if imported.spec_of_type(kind, "").shape not in (None, tuple(value.shape)):
            return self._left(node, importer)
        return conversion.cast(importer, result, calling.dtype_name(value.dtype))

    def _is_right(self, node: torch.fx.Node) -> bool:
        """What the comparison says of the first operator with these operands."""
        values = [each.meta.get("val") for each in node.all_input_nodes]
        operands = [(getattr(v, "dtype", None), getattr(v, "shape", None)) for v in values]
        numbers = {each: f"%{n}" for n, each in enumerate(node.all_input_nodes)}
        arguments = pytree.tree_map_only(
            torch.fx.Node, numbers.__getitem__, (node.args, dict(node.kwargs))
        )
        results = sorted(comparison.read_results(node))
        key = f"{_name(node)} {operands} {arguments} {results}"
        if key not in self._known:
            self._known[key] = comparison.is_right(node, _name(node), _conversions)
        return self._known[key]

    def _left(self, node: torch.fx.Node, importer: Any) -> Any:
        """Calls of PyTorch's operator."""
        tensors: list[torch.fx.Node] = []
        arguments = _encoded(list(node.args), tensors)
        keywords = {name: _encoded(value, tensors) for name, value in node.kwargs.items()}

        def emitted(value: torch.Tensor, result: int | None) -> Any:
            options = {
                "operator": str(node.target).removeprefix("aten."),
                "result": result,
                "arguments": arguments,
                "keywords": keywords,
            }
            dtype = calling.dtype_name(value.dtype)
            form = TorchForm(
                len(tensors), [TorchCall("aten", [*range(len(tensors))], options, dtype)]
            )
            self.forms.setdefault(str(node.target), []).append(form.to_json())
            kind = relax.TensorType([int(extent) for extent in value.shape], dtype)
            operands = relax.Tuple([importer.env[each] for each in tensors])
            return importer.block_builder.emit(
                relax.call_dps_packed(form.function_name, operands, kind)
            )

        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return emitted(value, None)
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        return [emitted(each, n) if n in read else None for n, each in enumerate(value)]


class Refused(Unconverted):
    """The same for a graph whose caller leaves such operators out: they end the import."""

    def _left(self, node: torch.fx.Node, importer: Any) -> Any:
        raise errors.WorkloadError(f"{export.MESSAGE}TVM does not convert {node.target}")


class _Watched:
    """A node for a conversion to read: which of its arguments it does read is noted."""

    def __init__(self, node: torch.fx.Node) -> None:
        self._node = node
        self.args = reading.ByPosition(node.args)
        self.kwargs = reading.ByName(node.kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def normalized_arguments(self, _root: Any) -> tuple[Any, Any]:
        """Those of an operator of ATen are normal."""
        return self.args, self.kwargs

    @property
    def has_dropped(self) -> bool:
        """Whether an argument that is not what it is by default was not read."""
        schema = getattr(self._node.target, "_schema", None)
        formals = {each.name: each for each in schema.arguments} if schema else {}
        unread = {name: self.kwargs.data[name] for name in self.kwargs.unread}
        for position, (name, value) in enumerate(zip(formals, self.args.given(), strict=False)):
            if position in self.args.unread:
                unread[name] = value
        return any(
            name not in _WITHOUT_EFFECT and value != formals[name].default_value
            for name, value in unread.items()
        )


def _refuse_memory(node: torch.fx.Node) -> None:
    """Refuse `as_strided` of a view: it reads the memory below, and a program has the elements."""
    if node.target is not torch.ops.aten.as_strided.default:
        return
    (source,) = node.all_input_nodes
    value = source.meta["val"]
    below = value.untyped_storage().nbytes() // value.element_size()
    if not value.is_contiguous() or value.storage_offset() or below != value.numel():
        raise errors.WorkloadError(
            f"{export.MESSAGE}as_strided is called of a view, {names.quoted(source.name)}; "
            "use slices or unfold, or call it of the whole tensor"
        )


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _conversions(importer: Any) -> dict[str, conversion.Converter]:
    """The usual conversions of an importer: TVM's, and ours in place of some."""
    importer.retrieve_args = functools.partial(_retrieved, importer)
    names = importer.create_convert_map()
    own = {name: functools.partial(conversion.by_tvm, name) for name in names}
    return {**own, **operators.CONVERSIONS}


def _retrieved(importer: Any, node: Any) -> Any:
    """The arguments of a node with the importer's values in place of nodes."""
    if not isinstance(node.args, reading.ByPosition):
        return importer._retrieve_args(node.args)
    values = [importer._retrieve_args(each) for each in node.args.given()]
    return reading.ByPosition(values, node.args.unread)


def _is_pure(node: torch.fx.Node) -> bool:
    """Whether an operator of ATen gives the same tensors for the same operands, and no more."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    if target._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags and not _is_attention(node):
        return False
    results = comparison.results(node)
    return bool(results) and all(isinstance(each, torch.Tensor) for each in results)


def _is_attention(node: torch.fx.Node) -> bool:
    """Whether an operator is an attention without dropout."""
    if _name(node) != "scaled_dot_product_attention.default":
        return False
    return not (node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0))


def _is_plain(node: torch.fx.Node) -> bool:
    """Whether an operator reads tensors, and nothing else that JSON cannot have."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return bool(node.all_input_nodes) and all(isinstance(each, _PLAIN) for each in leaves)


def _encoded(value: Any, tensors: list[torch.fx.Node]) -> Any:
    """An argument of a plain operator as JSON has it; tensors are numbered."""
    match value:
        case torch.fx.Node():
            if value not in tensors:
                tensors.append(value)
            return {"tensor": tensors.index(value)}
        case list() | tuple():
            return [_encoded(each, tensors) for each in value]
        case torch.dtype() | torch.layout() | torch.memory_format():
            return {"torch": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": None}
    return value
