"""What NVRTC gets and gives: CUDA source without what only costs time, and cubins kept on disk.

Maxima and minima keep NaN (`felix.tir.nan`).

TVM's text begins with libcu++ headers for integer types and type traits; reading them takes
NVRTC 0.4 s a kernel, and a float32 kernel uses none. They are replaced by typedefs unless the
rest of the source names something of theirs that is not as easily defined.

A thread's accumulators are an array in its registers. Where TVM has unrolled all loops that index
it, every mention has a constant index, and NVRTC must find out for thousands of statements that
no two of them touch the same memory. `scalars` makes them variables, which tells NVRTC so. Long
candidates of a search take it 1.1 to 2.1 times less, and the cubin is the same but, at times, for
the numbers of the registers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re

from felix.files import cache_folder, write_atomically
from felix.runner.cuda import nvrtc
from felix.tir import nan

_BLOCK = re.compile(r"#ifdef __CUDACC_RTC__\n.*?#include <cuda\.h>\s*\n#endif\n", re.DOTALL)
_KERNEL = re.compile(r'^(?=extern "C" __global__ )', re.MULTILINE)
_ARRAY = re.compile(r"^( *)(?:alignas\(\d+\) )?(\w+) (\w+)\[(\d+)\];\n", re.MULTILINE)
_LIBCUXX = re.compile(r"\b(?:cuda::|std::)+\w+")
#: What TVM's conversions of float8 name of libcu++.
_TRAITS = {
    "std::is_same_v": """\
namespace std {
template <typename A, typename B> constexpr bool is_same_v = false;
template <typename A> constexpr bool is_same_v<A, A> = true;
}
"""
}
_INTEGERS = """\
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
"""
_CONSTANTS = {
    "INFINITY": "#define INFINITY __int_as_float(0x7f800000)\n",
    "NAN": "#define NAN __int_as_float(0x7fffffff)\n",
    "CUDART_INF_F": "#define CUDART_INF_F __int_as_float(0x7f800000)\n",
    "CUDART_INF": "#define CUDART_INF __longlong_as_double(0x7ff0000000000000ULL)\n",
    "CUDART_NAN_F": "#define CUDART_NAN_F __int_as_float(0x7fffffff)\n",
}
_STOCK_LIMITS = "#include <cuda/std/limits>\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What NVRTC gets: the text, and whether it includes headers."""

    text: str
    headers: bool


def slim(generated: str) -> Source:
    """TVM's text with the smallest prelude that it compiles with, and with `scalars`."""
    generated = nan.in_cuda(scalars(generated))
    rest = _BLOCK.sub("", generated, count=1)
    includes = "#include" in rest
    used = set(_LIBCUXX.findall(rest))
    if not used <= _TRAITS.keys() or rest == generated:
        return Source(_STOCK_LIMITS + generated.replace("#include <cuda.h>", ""), headers=True)
    constants = [line for name, line in _CONSTANTS.items() if re.search(rf"\b{name}\b", rest)]
    traits = [_TRAITS[name] for name in sorted(used)]
    return Source(_INTEGERS + "".join((*constants, *traits)) + rest, headers=includes)


def scalars(text: str) -> str:
    """A variable for each element of the arrays that a kernel indexes with constants alone."""
    prelude, *kernels = _KERNEL.split(text)
    return "".join([prelude, *map(_of_kernel, kernels)])


def _of_kernel(text: str) -> str:
    declarations = [
        (name, int(size)) for _, kind, name, size in _ARRAY.findall(text) if kind != "return"
    ]
    names = {name for name, size in declarations if _is_constant(text, name, size)}
    if not names:
        return text

    def declared(declaration: re.Match[str]) -> str:
        indent, kind, name, size = declaration.groups()
        if name not in names:
            return declaration[0]
        return f"{indent}{kind} {', '.join(f'{name}_e{i}' for i in range(int(size)))};\n"

    mention = re.compile(rf"\b({'|'.join(sorted(names))})\[(\d+)\]")
    return mention.sub(r"\1_e\2", _ARRAY.sub(declared, text))


def _is_constant(text: str, name: str, size: int) -> bool:
    """Whether an array is declared once and all else is to name elements of it."""
    if f"{name}_e" in text or re.search(rf"&[ (]*{name}\b", text):
        return False
    indices = re.findall(rf"\b{name}\b(?:\[(\d+)\])?", text)
    return all(indices) and [int(i) for i in indices if int(i) >= size] == [size]


# Cubins on disk, so that a network or a program that was built before is not compiled again.
#
# One file a source under `$FELIX_CACHE_DIR` or `~/.cache/felix`, in `cubins`, named by a digest
# of the source, the architecture, the options and NVRTC's build. It begins with the digest of
# the rest; a damaged one is made anew. Beyond `MOST_BYTES` those unused for longest are deleted.
# Candidates of a search are not kept: no second one has their source.

#: Of all files.
MOST_BYTES = 512 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size


def folder() -> pathlib.Path:
    """Where the files are."""
    return cache_folder() / "cubins"


def compiled(source: Source, arch: str) -> bytes:
    """The cubin of a source for "sm_90" or the like, known or compiled now.

    A folder that cannot be read or written only means that it is compiled.

    Raises:
        CompileError: NVRTC refuses the source.
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    path = _path(source, arch)
    known = _read(path)
    if known is not None:
        return known
    cubin = nvrtc.compile_cubin(source.text, arch, headers=source.headers)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(cubin).digest()
        write_atomically(path, digest + cubin, durable=False, mode=0o600)
        _prune(path.parent)
    return cubin


def _path(source: Source, arch: str) -> pathlib.Path:
    key = repr((nvrtc.build(), arch, nvrtc.FAST, source.headers, source.text))
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.bin"


def _read(path: pathlib.Path) -> bytes | None:
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    cubin = data[_DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == data[:_DIGEST_BYTES] else None


def _prune(files: pathlib.Path) -> None:
    """Delete those unused for longest, until all are `MOST_BYTES` or less."""
    known = [(found.stat(), found) for found in files.glob("*.bin")]
    by_use = sorted(known, key=lambda each: each[0].st_mtime)
    n_bytes = sum(stat.st_size for stat, _ in by_use)
    for stat, found in by_use:
        if n_bytes <= MOST_BYTES:
            return
        found.unlink(missing_ok=True)
        n_bytes -= stat.st_size
