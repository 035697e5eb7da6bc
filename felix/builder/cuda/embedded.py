"""Cubins in a library that is made where TVM finds no GPU's driver.

TVM's CUDA runtime loads only beside a driver. Without it a module of kernels is kept as source,
and so it is in a library, where whoever loads that would have to compile it. So the library gets
cubins, compiled as those that are measured, as it would where a driver is.

A library has the modules that its host code imports as one blob. In that of TVM 0.27 a module of
kernels is the text "cuda", then bytes that hold a format, the kernels' signatures and their code.
Texts and bytes follow their length; lengths and counts have eight bytes, little-endian. Here
format "cuda" and the source become format "cubin" and the cubin.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import tvm

from felix import errors

#: Makes the cubin of a module of kernels from their names and source.
CubinOf = Callable[[list[str], str], bytes]
#: How TVM's CUDA runtime makes a module of kernels, where it is loaded.
_CREATE = "ffi.Module.create.cuda"
_SIZE_BYTES = 8
#: Of an argument's dtype, and of what else is known of an argument.
_DTYPE_BYTES, _TAG_BYTES = 4, 4


def is_needed() -> bool:
    """Whether TVM keeps kernels as source here."""
    return tvm.get_global_func(_CREATE, allow_missing=True) is None


def packer(cubin_of: CubinOf) -> Callable[[tvm.runtime.Module, bool, str, str], str]:
    """What `tvm.runtime.Module.export_library` takes as `fpack_imports`."""

    def pack(library: tvm.runtime.Module, is_system_lib: bool, prefix: str, folder: str) -> str:
        blob = tvm.get_global_func("runtime.ModulePackImportsToTensor")(library)
        made: list[bytes] = []

        def counted(names: list[str], source: str) -> bytes:
            made.append(cubin_of(names, source))
            return made[-1]

        content = with_cubins(blob.numpy().tobytes(), counted)
        if len(made) != _n_kernel_modules(library):
            raise _unknown()
        write = tvm.get_global_func("codegen.codegen_blob")
        path = os.path.join(folder, f"{prefix}devc.o")
        write(content, is_system_lib, '{"kind": "llvm"}', prefix).write_to_file(path)
        return path

    return pack


def _n_kernel_modules(library: tvm.runtime.Module) -> int:
    """Modules of kernels among those that a library imports, and those import, each once."""
    waiting, seen, n_modules = [library], [library], 0
    while waiting:
        for each in waiting.pop().imports:
            if not any(each.same_as(other) for other in seen):
                seen.append(each)
                waiting.append(each)
                n_modules += each.kind == "cuda"
    return n_modules


def with_cubins(blob: bytes, cubin_of: CubinOf) -> bytes:
    """A blob of modules with cubins in the place of kernels' source.

    Raises:
        MeasureError: TVM writes blobs in another way than is known here.
    """
    if int.from_bytes(blob[:_SIZE_BYTES], "little") != len(blob) - _SIZE_BYTES:
        raise _unknown()
    parts, begin, position = [], _SIZE_BYTES, _SIZE_BYTES
    while (found := blob.find(_KERNELS, position)) >= 0:
        position = found + len(_KERNELS)
        if not blob.startswith(_KERNELS, position + _SIZE_BYTES):
            continue  # the same bytes, but no module
        reader = _Reader(blob, position)
        parts += [blob[begin:position], _text(_with_cubin(reader.text(), cubin_of))]
        begin = position = reader.position
    rest = b"".join([*parts, blob[begin:]])
    return len(rest).to_bytes(_SIZE_BYTES, "little") + rest


def _with_cubin(module: bytes, cubin_of: CubinOf) -> bytes:
    """A module of kernels as source, as one of a cubin."""
    reader = _Reader(module, len(_KERNELS))
    names = [reader.signature() for _ in range(reader.number())]
    signatures = module[len(_KERNELS) : reader.position]
    source = reader.text().decode()
    if reader.position != len(module) or not names:
        raise _unknown()
    return _text(b"cubin") + signatures + _text(cubin_of(names, source))


@dataclasses.dataclass(slots=True)
class _Reader:
    """Reads values one after another."""

    _content: bytes
    position: int

    def number(self) -> int:
        """A length or a count, of what is still to come."""
        value = int.from_bytes(self._skip(_SIZE_BYTES), "little")
        if value > len(self._content):
            raise _unknown()
        return value

    def text(self) -> bytes:
        """What follows its length."""
        return self._skip(self.number())

    def signature(self) -> str:
        """The name of a kernel; its dtypes, launch parameters and tags are skipped."""
        name = self.text().decode()
        self.text()
        self._skip(_DTYPE_BYTES * self.number())
        for _ in range(self.number()):
            self.text()
        self._skip(_TAG_BYTES * self.number())
        return name

    def _skip(self, n_bytes: int) -> bytes:
        begin, self.position = self.position, self.position + n_bytes
        if self.position > len(self._content):
            raise _unknown()
        return self._content[begin : self.position]


def _text(content: bytes) -> bytes:
    return len(content).to_bytes(_SIZE_BYTES, "little") + content


def _unknown() -> errors.MeasureError:
    return errors.MeasureError(
        "this version of TVM writes libraries in a way that Felix does not know: make the "
        "artifact on a machine with a GPU's driver"
    )


#: The kind of a module of kernels, and the format of one that is kept as source.
_KERNELS = _text(b"cuda")
