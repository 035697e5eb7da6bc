"""Forms as functions that TVM's virtual machine calls by their names."""

from __future__ import annotations

import tvm

from felix.frontend.torch_calls.form import TorchForm
from felix.network.pytorch import functions


def register(form: TorchForm) -> str:
    """Make a form's function known to TVM in this process; returns its name."""
    name = form.function_name
    if tvm.get_global_func(name, allow_missing=True) is None:
        tvm.register_global_func(name, functions.packed(form.to_json()))
    return name
