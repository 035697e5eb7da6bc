"""Changes of the TIR functions of a module, one by one."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx


def changed(mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tvm.IRModule:
    """The module with every TIR function changed; itself where all stay what they are."""
    old = {name: func for name, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}
    new = {name: change(func) for name, func in old.items()}
    if all(new[name].same_as(func) for name, func in old.items()):
        return mod
    return tvm.IRModule({**mod.functions, **new}, attrs=mod.attrs, global_infos=mod.global_infos)
