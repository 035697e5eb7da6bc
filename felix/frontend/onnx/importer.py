"""An ONNX model as an imported model: checked, converted to Relax, parameters folded."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from tvm import relax

from felix.frontend import branches, folding, imported, rewriting
from felix.frontend.onnx import calling, reader


def import_onnx(
    model: str | pathlib.Path | bytes, shapes: Mapping[str, Sequence[int]] | None = None
) -> imported.ImportedModel:
    """Import a file or its bytes.

    Raises:
        WorkloadError: no ONNX model, one that is refused, or TVM cannot import it.
    """
    proto = reader.read(model)
    constants = {tensor.name for tensor in proto.graph.initializer}
    input_names = [item.name for item in proto.graph.input if item.name not in constants]
    has_branches = any(node.op_type == "If" for node in proto.graph.node)
    output_names = [item.name for item in proto.graph.output]
    mod, values = relax.frontend.detach_params(reader.to_relax(proto, shapes))
    parameters = list(values.get("main", []))
    variables = list(imported.main_of(mod).params)
    count = len(variables) - len(parameters)
    # An input whose extents are open is one that no node reads: `shape_rules` refuses others.
    pairs = list(zip(variables[:count], input_names, strict=True))
    specs = {var: imported.spec_of(var, name) for var, name in pairs}
    inputs = tuple(spec for spec in specs.values() if spec.shape is not None)
    chosen = [var for var in variables if var not in specs or specs[var].shape is not None]
    mod = rewriting.Rewriter(mod).run(lambda _, __: None, lambda: chosen)
    outputs = imported.main_of(mod).ret_ty.fields
    folded = folding.fold(
        imported.ImportedModel(
            mod=mod,
            parameters=tuple(parameters),
            parameter_names=tuple(str(var.name) for var in variables[count:]),
            inputs=inputs,
            outputs=tuple(
                imported.spec_of_type(kind, name)
                for kind, name in zip(outputs, output_names, strict=True)
            ),
            calling=calling.OnnxCalling(inputs),
        )
    )
    branches.check(imported.main_of(folded.mod), has_branches)
    return folded
