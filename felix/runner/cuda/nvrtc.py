"""NVRTC through ctypes: CUDA source to a cubin, without a driver, a device or a CUDA toolkit.

`compile_cubin` uses the options TVM gives NVRTC, fast math and ptxas options included, so a
kernel measured here is the kernel that TVM builds later. `compile_ptx` gives the PTX of the same
compilation, for people. `check` says once, before there are candidates, whether it will do for a
GPU.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import pathlib
from collections.abc import Iterator, Sequence
from typing import Literal

from felix import errors

#: What TVM passes for performance and diagnostics-free output; see `tvm.support.nvcc`.
FAST = ("--use_fast_math", "--ptxas-options=--register-usage-level=10")
_BASE = ("-default-device", "--device-int128", "-w")
_MAJORS = (13, 12)


class CompileError(Exception):
    """NVRTC refused the source; the message is the start of its log."""


def compile_cubin(
    source: str, arch: str, options: Sequence[str] = FAST, headers: bool = False
) -> bytes:
    """The cubin of `source` for `arch` ("sm_90").

    Args:
        source: CUDA C++.
        arch: a real architecture.
        options: beside the fixed ones.
        headers: the source includes CUDA's headers.

    Raises:
        CompileError: the source does not compile.
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    return _compile("CUBIN", source, arch, options, headers)


def compile_ptx(source: str, arch: str, headers: bool = False) -> str:
    """The PTX that `compile_cubin` with the same arguments makes its cubin of.

    Raises:
        CompileError, MeasureError: as `compile_cubin`.
    """
    return _compile("PTX", source, arch, FAST, headers).rstrip(b"\0").decode()


def _compile(
    output: Literal["CUBIN", "PTX"], source: str, arch: str, options: Sequence[str], headers: bool
) -> bytes:
    """What `nvrtcGet{output}` gives for a source."""
    library = load()
    if headers and not include_paths():
        major, minor = _version(library)
        package = "nvidia-cuda-runtime" + ("-cu12" if major <= 12 else "")
        raise errors.MeasureError(
            "this program includes CUDA's headers (cuda_fp16.h and others), which are not here: "
            f"pip install '{package}=={major}.{minor}.*'"
        )
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
    )
    _check(library, created)
    try:
        texts = [f"--gpu-architecture={arch}", *_BASE, *options]
        texts += [f"-I{path}" for path in include_paths()] if headers else ["--minimal"]
        array = (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])
        if library.nvrtcCompileProgram(program, len(texts), array):
            raise CompileError(_log(library, program)[:500])
        size = ctypes.c_size_t()
        read_size = getattr(library, f"nvrtcGet{output}Size")
        _check(library, read_size(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        _check(library, getattr(library, f"nvrtcGet{output}")(program, content))
        return content.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def check(arch: str, driver: tuple[int, int]) -> None:
    """Make sure that cubins for a GPU can be made here and be loaded by its driver.

    Args:
        arch: like "sm_90" or "sm_90a".
        driver: the newest CUDA that the driver runs, like (13, 0).

    Raises:
        MeasureError: no; says what to install.
    """
    library = load()
    major, minor = _version(library)
    count = ctypes.c_int()
    _check(library, library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _check(library, library.nvrtcGetSupportedArchs(known))
    name = f"NVRTC {major}.{minor}"
    digits = arch.removeprefix("sm_").rstrip("af")
    if digits.isdecimal() and int(digits) not in known:
        archs = ", ".join(f"sm_{number}" for number in sorted(known))
        is_old = int(digits) < min(known)
        raise errors.MeasureError(
            f"{name} cannot compile for this GPU ({arch}), only for {archs}: "
            + (_instead(major - 1) if is_old else "install a newer one")
        )
    if driver[0] < major:
        raise errors.MeasureError(
            f"the GPU's driver runs programs of CUDA {driver[0]}.{driver[1]} and older, not those "
            f"of {name}: update the driver, or {_instead(driver[0])}"
        )


def _instead(major: int) -> str:
    package = "nvidia-cuda-nvrtc-cu12" if major <= 12 else f"'nvidia-cuda-nvrtc<{major + 1}'"
    return f"remove that NVRTC and pip install {package}"


@functools.cache
def load() -> ctypes.CDLL:
    """The library, loaded once a process; raises MeasureError."""
    for candidate in _candidates():
        try:
            # NVRTC opens this one by its bare name, which finds it once it is loaded.
            for builtins in pathlib.Path(candidate).parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise errors.MeasureError("NVRTC was not found: pip install nvidia-cuda-nvrtc")


@functools.cache
def include_paths() -> tuple[str, ...]:
    """Folders with CUDA's headers and libcu++, those that exist."""
    for root in _roots():
        if (root / "include" / "cuda_fp16.h").is_file():
            inside = (root / "include", root / "include" / "cccl")
            return tuple(str(path) for path in inside if path.is_dir())
    return ()


def _candidates() -> Iterator[str]:
    for major in _MAJORS:
        yield f"libnvrtc.so.{major}"
    for root in _roots():
        for folder in ("lib", "lib64"):
            for path in sorted((root / folder).glob("libnvrtc.so.*")):
                if path.suffix.lstrip(".").isdigit():
                    yield str(path)


def _roots() -> Iterator[pathlib.Path]:
    """Folders that may hold libraries and headers: NVIDIA's Python packages, then toolkits."""
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("cu13", "cuda_nvrtc", "cuda_runtime"):
            folder = pathlib.Path(location, name)
            if folder.is_dir():
                yield folder
    yield from sorted(pathlib.Path("/usr/local").glob("cuda*"), reverse=True)


@functools.cache
def build() -> str:
    """Which build of the library this is, patch included: its version says major and minor alone.

    Raises:
        MeasureError: as `compile_cubin`.
    """
    empty = compile_cubin('extern "C" __global__ void empty() {}', "sm_90")
    return hashlib.sha256(empty).hexdigest()


def _version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace").strip()
