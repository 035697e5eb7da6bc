"""Constants of a network in memory of their own.

TVM takes a module's buffers as constants without copies, so they would change with the module's.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm_ffi import structural


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
