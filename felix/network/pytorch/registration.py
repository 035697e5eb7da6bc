"""Forms as functions that TVM's virtual machine calls by their names."""

from __future__ import annotations

import tvm

from felix.frontend.torch_calls.form import TorchForm
from felix.network.pytorch import functions


def name(form: TorchForm) -> str:
    """The name of a form's function: equal forms have equal names."""
    return f"felix.pytorch.{form.key}"


def register(form: TorchForm) -> str:
    """Make a form's function known to TVM in this process; returns its name."""
    if tvm.get_global_func(name(form), allow_missing=True) is None:
        tvm.register_global_func(name(form), functions.packed(form.to_json()))
    return name(form)
