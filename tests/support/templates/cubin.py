"""What a cubin says of its kernels."""

from __future__ import annotations

import struct

#: Codes of attributes in section `.nv.info`: their format, and what they say of a kernel.
_SIZED, _FRAME_SIZE, _REGISTERS = 0x04, 0x11, 0x2F


def registers(cubin: bytes, kernel: str) -> int:
    """Registers of a thread."""
    return _attribute(cubin, kernel, _REGISTERS)


def stack_bytes(cubin: bytes, kernel: str) -> int:
    """Local memory of a thread: spilled registers and arrays that are indexed by values."""
    return _attribute(cubin, kernel, _FRAME_SIZE)


def _attribute(cubin: bytes, kernel: str, which: int) -> int:
    content = _sections(cubin)[".nv.info"]
    values, at = {}, 0
    while at < len(content):
        form, code, length = struct.unpack_from("<BBH", content, at)
        if (form, code) == (_SIZED, which):
            symbol, value = struct.unpack_from("<II", content, at + 4)
            values[_symbols(cubin)[symbol]] = value
        at += 4 + (length if form == _SIZED else 0)
    return values[kernel]


def _symbols(cubin: bytes) -> list[str]:
    table, names = (_sections(cubin)[name] for name in (".symtab", ".strtab"))
    offsets = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24)]
    return [_text(names, offset) for offset in offsets]


def _sections(cubin: bytes) -> dict[str, bytes]:
    """Content of the sections by name."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    texts = cubin[headers[names][4] : headers[names][4] + headers[names][5]]
    return {
        _text(texts, header[0]): cubin[header[4] : header[4] + header[5]]
        for header in headers
        if header[1] != 8  # no content in the file
    }


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
