"""What a cubin says of its kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from felix.launch_plan import Launch

#: Codes of attributes in sections `.nv.info`: their format, and what they say of a kernel.
_SIZED, _FRAME_SIZE, _REGISTERS, _MOST_THREADS = 0x04, 0x11, 0x2F, 0x05
#: Of a block, that compilers for sm_90 give the system.
_SYSTEM_BYTES = 1024
#: Type of a section without content in the file.
_NO_CONTENT = 8


def check(cubin: bytes, launches: Sequence[Launch]) -> None:
    """Kernels spill nothing and are launched as they were compiled: all of a block's shared
    memory is the launch's, and it has the threads of the launch bounds.
    """
    for launch in launches:
        assert stack_bytes(cubin, launch.kernel) == 0
        assert shared_bytes(cubin, launch.kernel) in (0, _SYSTEM_BYTES)
        assert most_threads(cubin, launch.kernel) == launch.extents[3]


def registers(cubin: bytes, kernel: str) -> int:
    """Registers of a thread."""
    return _attribute(cubin, kernel, _REGISTERS)


def stack_bytes(cubin: bytes, kernel: str) -> int:
    """Local memory of a thread: spilled registers and arrays that are indexed by values."""
    return _attribute(cubin, kernel, _FRAME_SIZE)


def shared_bytes(cubin: bytes, kernel: str) -> int:
    """Shared memory that a kernel has without its launch's, the system's included."""
    return sum(header[5] for name, header in _headers(cubin) if name == f".nv.shared.{kernel}")


def most_threads(cubin: bytes, kernel: str) -> int:
    """Threads of a block by the kernel's launch bounds."""
    ((x, y, z),) = (
        struct.unpack("<III", value)
        for code, value in _attributes(_sections(cubin)[f".nv.info.{kernel}"])
        if code == _MOST_THREADS
    )
    return int(x * y * z)


def _attribute(cubin: bytes, kernel: str, which: int) -> int:
    names, values = _symbols(cubin), {}
    for code, content in _attributes(_sections(cubin)[".nv.info"]):
        if code == which:
            symbol, value = struct.unpack("<II", content)
            values[names[symbol]] = int(value)
    return values[kernel]


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Codes and values of those that have a size of their own."""
    at = 0
    while at < len(content):
        form, code, length = struct.unpack_from("<BBH", content, at)
        size = length if form == _SIZED else 0
        if form == _SIZED:
            yield code, content[at + 4 : at + 4 + size]
        at += 4 + size


def _symbols(cubin: bytes) -> list[str]:
    table, names = (_sections(cubin)[name] for name in (".symtab", ".strtab"))
    offsets = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24)]
    return [_text(names, offset) for offset in offsets]


def _sections(cubin: bytes) -> dict[str, bytes]:
    """Content of the sections by name."""
    return {
        name: cubin[header[4] : header[4] + header[5]]
        for name, header in _headers(cubin)
        if header[1] != _NO_CONTENT
    }


def _headers(cubin: bytes) -> list[tuple[str, tuple[int, ...]]]:
    """Names and headers of the sections."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    texts = cubin[headers[names][4] : headers[names][4] + headers[names][5]]
    return [(_text(texts, header[0]), header) for header in headers]


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
