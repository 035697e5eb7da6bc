"""Write the tables of pages in docs/ from the JSON files in benchmarks/results.

    python benchmarks/report.py [--check]

Between `<!-- begin NAME -->` and `<!-- end NAME -->` stands what `benchmarks/results/NAME.json`
holds: where and when it was measured, and the tables the benchmark itself prints; or what a
command of `costmodel` wrote. With --check nothing is written; the
exit code is 1 if a page is not up to date.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import (
    artifact_repeat,
    cpu_tuning,
    cuda_build_time,
    descent_steps,
    features,
    measure_throughput,
)
from benchmarks.support import common, efficiency, model_tables

PAGES = tuple(
    common.ROOT / "docs" / name
    for name in ("benchmarks.md", "costmodel.md", "measuring-cuda.md", "search-efficiency.md")
)
#: Benchmark (a results file's field) -> its tables.
RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "artifact_repeat": artifact_repeat.render,
    "features": features.render,
    "cpu_tuning": cpu_tuning.render,
    "cuda_build_time": cuda_build_time.render,
    "descent_steps": descent_steps.render,
    "measure_throughput": measure_throughput.render,
    "search_efficiency": efficiency.render,
}
_SECTION = re.compile(r"(<!-- begin (?P<name>[\w-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    args = parser.parse_args()
    stale = False
    for page in PAGES:
        before = page.read_text()
        after = fill(before, common.RESULTS)
        stale |= after != before
        if not args.check:
            page.write_text(after)
    return int(args.check and stale)


def fill(page: str, results: pathlib.Path) -> str:
    """The page with every section made anew."""

    def section(match: re.Match[str]) -> str:
        path = results / f"{match['name']}.json"
        body = _body(json.loads(path.read_text())) if path.exists() else "No results yet."
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return _SECTION.sub(section, page)


def _body(result: dict[str, Any]) -> str:
    if "benchmark" not in result:
        head = [f"`{result['command']}`"]
        if "date" in result:  # which older files do not have
            head += [result["date"][:10], f"commit {result['commit']}"]
        return f"{', '.join(head)}\n\n{model_tables.render(result)}"
    machine, versions = result["machine"], result["versions"]
    load = machine["load_average"]
    device = f"{result['device']}, " if "device" in result else ""
    lines = [
        f"`{result['command']}`, {result['date'][:10]}, commit {result['commit']}",
        f"{device}{machine['cpu']}, {machine['cores']} cores"
        + (f"; load average {load[0]} at the end" if load else ""),
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return "\n".join(f"- {line}" for line in lines) + "\n\n" + RENDER[result["benchmark"]](result)


if __name__ == "__main__":
    sys.exit(main())
