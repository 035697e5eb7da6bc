"""The CUDA source that TVM generates, without what only costs NVRTC time.

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

import dataclasses
import re

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
""",
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


def slim(generated: str, with_scalars: bool = True) -> Source:
    """The generated text with the smallest prelude that it compiles with.

    Args:
        generated: TVM's text.
        with_scalars: whether arrays in registers become `scalars`.
    """
    if with_scalars:
        generated = scalars(generated)
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
