"""Tensors on disk without code in them: the safetensors layout, read and written directly.

Layout: 8 bytes little-endian length n, n bytes of JSON (name -> dtype, shape, byte range; and
`__metadata__`, a map of strings), then the tensors' bytes. Nothing is unpickled, so a hostile
file can be refused but cannot run. Writing is atomic (temporary file, fsync, rename).
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from felix import errors, files

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "|b1"}
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}
_MAX_HEADER = 16 * 2**20


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and string metadata to `path`, all or nothing."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    chunks, offset = [], 0
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        data = array.tobytes()
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    write_bytes(path, b"".join([struct.pack("<Q", len(text)), text, *chunks]))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` atomically; raises OutputError when the folder cannot be used."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, data)
    except OSError as error:
        raise errors.OutputError(f"cannot write {path}: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Raise OutputError now if `write` could not put a file there later."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise errors.OutputError(f"cannot write {path}: {error.strerror or error}") from error


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of `path`; raises CheckpointError when it is not such a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise errors.CheckpointError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _parse(data)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise errors.CheckpointError(f"{path} is not a checkpoint or is damaged") from error


def _parse(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(_MAX_HEADER, len(data) - 8):
        raise ValueError("header is longer than the file")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    body = memoryview(data)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(body):
            raise ValueError("tensor lies outside the file")
        array = np.frombuffer(body[begin:end], dtype=np.dtype(_DTYPES[entry["dtype"]]))
        tensors[name] = torch.from_numpy(array.reshape(entry["shape"]).copy())
    if not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("metadata is not text")
    return tensors, metadata
