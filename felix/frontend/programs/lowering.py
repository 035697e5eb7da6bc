"""An imported model as a module whose programs are what is tuned.

Operators are lowered to TIR, reshapes become views, and groups of calls become one program each.
The signature of `main` stays what it is.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from felix import errors
from felix.frontend import imported, memory
from felix.frontend.programs import expansion, groups, outlining, transposed
from felix.frontend.torch_calls import annotation, forms
from felix.tir import grammar


def grouped(model: imported.ImportedModel, full: tvm.target.Target) -> tvm.IRModule:
    """The lowered module with each group of several calls as a Relax function.

    Such a function has the attribute "Primitive"; `main` calls it where its last value is made.

    Raises:
        WorkloadError: an operator has no program, or its constants need too much memory.
    """
    return _passed(lambda: _grouped(model.mod), full)


def lowered(model: imported.ImportedModel, full: tvm.target.Target) -> tvm.IRModule:
    """The module whose `main` calls one PrimFunc for each group.

    It is built with `build_pipeline`: TVM's own pipelines of targets would group again.

    Raises:
        WorkloadError: see `grouped`.
    """
    return _passed(lambda: _fused(_grouped(model.mod)), full)


def build_pipeline() -> Any:
    """The pass that compiles a lowered module for TVM's virtual machine, for `relax.build`."""
    return relax.get_pipeline("default_build")


def _fused(grouped: tvm.IRModule) -> tvm.IRModule:
    return forms.attach(grouped, relax.transform.FuseTIR()(grouped))


def _grouped(mod: tvm.IRModule) -> tvm.IRModule:
    mod = relax.transform.DecomposeOpsForInference()(expansion.expand_attention(mod))
    mod = relax.transform.CanonicalizeBindings()(mod)
    mod = transposed.fuse_transposes(mod)
    passes = [
        relax.transform.LegalizeOps(annotation.legalizations()),
        relax.transform.FoldConstant(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.DeadCodeElimination(),
    ]
    mod = tvm.transform.Sequential(passes)(mod)
    return outlining.outline(mod, groups.plan(mod))


def _passed(make: Any, full: tvm.target.Target) -> tvm.IRModule:
    try:
        with full, tvm.transform.PassContext(opt_level=3):
            return make()
    except errors.WorkloadError:
        raise
    except (*grammar.TVM_ERRORS, AssertionError) as error:
        reason = "TVM finds no programs for its operators and shapes"
        if memory.is_short(error):
            reason = f"computing its constants {memory.message()}"
        raise errors.WorkloadError(f"the model cannot be lowered: {reason}") from error
