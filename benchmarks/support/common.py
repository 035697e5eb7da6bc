"""What every benchmark stores beside its numbers, and how it prints and writes them."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
import shlex
import sys
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Files of results, in folders named as the pages that show them.
RESULTS = ROOT / "benchmarks" / "results"
#: Pieces of unfinished results, which are not committed.
PARTS = RESULTS / "parts"
#: Options that only say where files lie.
_PLACES = ("--work", "--out", "--picture")
#: Seconds that a build of stock's builder may take; its own limit of 30 s is less than its workers
#: may take to import.
STOCK_BUILD_S = 180.0


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def header(name: str) -> dict[str, Any]:
    """Date, command without the folders of this machine, versions, machine."""
    from costmodel.training import provenance

    facts = provenance.facts(shlex.join(["python", *_program(), *placeless(sys.argv[1:])]))
    return {"benchmark": name, **facts, "machine": machine()}


def machine() -> dict[str, Any]:
    """The CPU as Felix sees it, and how busy it was."""
    from felix import target
    from felix.target import cpu

    hardware = target.hardware("llvm")
    return {
        "cpu": hardware.name,
        "cores": cpu.available_cores(),
        "clock_ghz": hardware.clock_ghz,
        "vector_lanes": hardware.vector_lanes,
        "l2_bytes": hardware.l2_bytes,
        "l3_bytes": hardware.l3_bytes,
        "system": platform.platform(),
        "load_average": load(),
    }


def load() -> list[float]:
    """Load averages of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def write(path: pathlib.Path, data: Any) -> None:
    """Write JSON, all or nothing."""
    from felix import files

    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path, as_text(data))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The results in a file, one or several."""
    data = json.loads(path.read_text())
    return list(data) if isinstance(data, list) else [data]


def as_text(data: Any) -> str:
    """JSON with a field a line, and a line for each record of a list."""
    if isinstance(data, list):
        return "[\n" + ",\n".join(as_text(each).strip() for each in data) + "\n]\n"
    fields = []
    for key, value in data.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(json.dumps(each) for each in value) + "\n]"
        fields.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; numbers with three significant digits, right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(head), *cells]) for i in range(len(head))]
    is_number = [all(not isinstance(row[i], str) for row in rows) for i in range(len(head))]

    def line(values: Sequence[str]) -> str:
        aligned = [
            v.rjust(w) if n else v.ljust(w)
            for v, w, n in zip(values, widths, is_number, strict=True)
        ]
        return "| " + " | ".join(aligned) + " |"

    rule = ["-" * (w - 1) + (":" if n else "-") for w, n in zip(widths, is_number, strict=True)]
    return "\n".join([line(head), line(rule), *map(line, cells)])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def placeless(argv: Sequence[str]) -> list[str]:
    """Arguments without those that only say where files lie: no figure depends on them."""
    others, rest = [], iter(argv)
    for argument in rest:
        if argument in _PLACES:
            next(rest, None)
        elif not argument.startswith(tuple(f"{option}=" for option in _PLACES)):
            others.append(argument)
    return others


def _program() -> list[str]:
    """The module or the script that runs, without the folders of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return ["-m", spec.name.removesuffix(".__main__")]
    script = pathlib.Path(sys.argv[0]).resolve()
    return [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name]
