"""What ELF files are for."""

from __future__ import annotations

import re

#: Of a file's header: a program for CUDA.
EM_CUDA = 190


def machines(content: bytes) -> set[int]:
    """What the ELF files within a file are for, itself among them."""
    starts = [match.start() for match in re.finditer(rb"\x7fELF", content)]
    return {int.from_bytes(content[start + 18 : start + 20], "little") for start in starts}
