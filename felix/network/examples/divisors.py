"""Which inputs of a model integers are divided by: they must not be 0."""

from __future__ import annotations

from typing import Any

from tvm import relax

from felix.frontend import imported as frontend_imported

_DIVISIONS = ("relax.divide", "relax.floor_divide", "relax.mod", "relax.floor_mod")


def inputs(model: frontend_imported.ImportedModel) -> set[int]:
    """The positions of inputs that integers are divided by, or by what integers make of them."""
    main = frontend_imported.main_of(model.mod)
    values: dict[Any, Any] = {}
    waiting: list[Any] = []
    for block in main.body.blocks:
        for binding in block.bindings:
            values[binding.var] = binding.value
            if _divides_integers(binding.value):
                waiting.extend(relax.analysis.free_vars(binding.value.args[1]))
    reached: set[Any] = set()
    while waiting:
        var = waiting.pop()
        if var not in reached and _is_integer(var):
            reached.add(var)
            waiting.extend(relax.analysis.free_vars(values[var]) if var in values else ())
    return {
        number for number, param in enumerate(main.params[: len(model.inputs)]) if param in reached
    }


def _divides_integers(value: Any) -> bool:
    is_division = getattr(getattr(value, "op", None), "name", "") in _DIVISIONS
    return is_division and _is_integer(value)


def _is_integer(expr: Any) -> bool:
    """Whether an expression is a tensor of integers."""
    return str(getattr(expr.ty, "dtype", "")).startswith(("int", "uint"))
