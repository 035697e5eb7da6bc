"""Parts of a data set: Parquet files of one table, each written whole or not at all.

A part is written aside, then linked under a free number, so a reader never sees half of one, and
several processes may write into one folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from felix import errors

SCHEDULES = pa.schema(
    [
        pa.field("workload", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("sketch", pa.int16(), nullable=False),
        pa.field("sketch_key", pa.string(), nullable=False),
        pa.field("decisions", pa.list_(pa.int32()), nullable=False),
        pa.field("latencies_us", pa.list_(pa.float64()), nullable=False),
        pa.field("latency_us", pa.float64()),
        pa.field("error", pa.string()),
        pa.field("device", pa.string(), nullable=False),
        pa.field("tvm", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("measured_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("async_copies", pa.bool_(), nullable=False),
        pa.field("template", pa.string()),
        pa.field("features_version", pa.int16()),
        pa.field("features", pa.list_(pa.float32())),
    ]
)
WORKLOADS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("params", pa.string()),
        pa.field("tir", pa.string()),
        pa.field("flops", pa.int64(), nullable=False),
        pa.field("min_bytes", pa.int64(), nullable=False),
    ]
)
#: Columns that older parts do not have -> what their rows hold.
_ADDED: Mapping[str, Any] = {
    "async_copies": False,
    "template": None,
    "features_version": None,
    "features": None,
}


def write(folder: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> Path:
    """Write a part under the first free number.

    Raises:
        OutputError: the folder cannot be written.
    """
    temporary = folder / f".writing-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
        parquet.write_table(table, temporary, compression="zstd")
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        number = len(list(folder.glob("part-*.parquet")))
        while True:
            part = folder / f"part-{number:06d}.parquet"
            try:
                os.link(temporary, part)
                return part
            except FileExistsError:
                number += 1
    except OSError as error:
        raise errors.OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read(folder: Path, schema: pa.Schema) -> tuple[list[dict[str, Any]], list[str]]:
    """All rows of a table, and the parts that cannot be read."""
    rows: list[dict[str, Any]] = []
    torn = []
    for part in sorted(folder.glob("part-*.parquet")):
        try:
            table = parquet.read_table(part)
            for name in schema.names:
                if name not in table.column_names and name in _ADDED:
                    column = pa.array([_ADDED[name]] * table.num_rows, schema.field(name).type)
                    table = table.append_column(name, column)
            rows += table.select(schema.names).cast(schema).to_pylist()
        except (pa.ArrowException, ValueError, OSError):
            torn.append(str(part))
    return rows, torn
