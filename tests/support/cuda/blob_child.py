"""Prints whether TVM's CUDA runtime is here, and hashes of what libraries have of kernels."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib

import tvm

from felix.builder import build, payload
from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import embedded, tvm_module
from tests.support.cuda import generated_programs as programs


def blob(library: tvm.runtime.Module, cubins: dict[str, bytes], full: tvm.target.Target) -> bytes:
    """What a library has of the modules that this one imports."""
    packed = tvm.get_global_func("runtime.ModulePackImportsToTensor")(library).numpy().tobytes()
    if not embedded.is_needed():
        return bytes(packed)
    return embedded.with_cubins(
        packed, lambda names, source: cubins.get(names[0]) or cuda_build.cubin(source, full)
    )


def main(path: str) -> None:
    """A file's scheduled program; a library of two generated ones whose kernels had one name."""
    scheduled = payload.read_tir(pathlib.Path(path).read_text())
    blobs = [blob(build.module(scheduled.mod, scheduled.target), {}, scheduled.target)]
    of = programs.task(programs.square_sum)
    whole, cubins = None, {}
    for prefix in ("first", "second"):
        program = tvm_module.with_prefix(programs.plain(), prefix)
        func = of.func.with_attr("global_symbol", prefix)
        named = dataclasses.replace(of, mod=tvm.IRModule({"main": func}))
        module = tvm_module.module(program, named.mod, named.target, runs_here=False)
        cubins |= tvm_module.cubins(program)
        if whole is None:
            whole = module
        else:
            whole.import_module(module)
    assert whole is not None
    blobs.append(blob(whole, cubins, of.target))
    print("needed" if embedded.is_needed() else "not needed")
    print(*(hashlib.sha256(each).hexdigest() for each in blobs))
