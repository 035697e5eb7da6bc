"""Write the pages of docs/results from benchmarks/pages/*.md and the files in benchmarks/results.

    python benchmarks/report.py [--check]

A page's template is prose with lines of one tag each:

    {{table NAME}}    where and when NAME.json was measured, and the tables of its benchmark
    {{says NAME}}     the sentence that states its figures, computed from it
    {{figure NAME}}   the picture NAME.svg

Results files may lie in folders below benchmarks/results. With --check nothing is written; the
exit code is 1 if a page is not up to date.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import (
    artifact_repeat,
    built_kernels,
    cluster_scaling,
    cpu_tuning,
    cuda_build_time,
    features,
    fusion,
    measure_throughput,
    multi_gpu,
    search_cost,
    template_fuzz,
    tensor_cores,
)
from benchmarks.networks import branches, repeated
from benchmarks.networks import results as networks
from benchmarks.pages import statements
from benchmarks.support import common, corpus_table, efficiency, model_tables

TEMPLATES = pathlib.Path(__file__).resolve().parent / "pages"
PAGES = common.ROOT / "docs" / "results"

#: Benchmark (a results file's field) -> its tables.
RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "artifact_repeat": artifact_repeat.render,
    "cluster_scaling": cluster_scaling.render,
    "built_kernels": built_kernels.render,
    "corpus": corpus_table.render,
    "corpus_tuned": corpus_table.render_tuned,
    "formula_time": corpus_table.render_times,
    "cpu_tuning": cpu_tuning.render,
    "cuda_build_time": cuda_build_time.render,
    "features": features.render,
    "fusion": fusion.render,
    "measure_throughput": measure_throughput.render,
    "multi_gpu": multi_gpu.render,
    "networks": networks.render,
    "networks_branches": branches.render,
    "networks_repeated": repeated.render,
    "search_cost": search_cost.render,
    "search_efficiency": efficiency.render,
    "service-answers": statements.service_answers,
    "structure": statements.structure_table,
    "template_fuzz": template_fuzz.render,
    "tensor_cores": tensor_cores.render,
}
TAG = re.compile(r"^\{\{(?P<kind>table|says|figure) (?P<name>[\w-]+)\}\}$", re.MULTILINE)
_HEAD = (
    "<!-- Made by `python benchmarks/report.py` from benchmarks/pages/{name}: do not edit. -->\n\n"
)


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    args = parser.parse_args()
    texts = {PAGES / name: text for name, text in pages().items()}
    stale = [path for path in PAGES.glob("*.md") if path not in texts]
    stale += [
        path for path, text in texts.items() if not path.exists() or path.read_text() != text
    ]
    if args.check:
        for path in stale:
            print(f"not up to date: {path.relative_to(common.ROOT)}")
        return int(bool(stale))
    PAGES.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    return 0


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {
        path.name: _HEAD.format(name=path.name) + fill(path.read_text(), common.RESULTS)
        for path in sorted(TEMPLATES.glob("*.md"))
    }


def fill(template: str, results: pathlib.Path) -> str:
    """The template with every tag replaced by what the results say."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        if match["kind"] == "figure":
            path = _only(results, f"{name}.svg")
            return f"![{name}](../../{path.relative_to(results.parent.parent).as_posix()})"
        data = json.loads(_only(results, f"{name}.json").read_text())
        if match["kind"] == "says":
            return statements.STATEMENTS[data["benchmark"]](data)
        return "\n\n".join(_table(data))

    return TAG.sub(replaced, template)


def names(kind: str) -> Iterator[str]:
    """What the tags of a kind name, over all templates."""
    for path in TEMPLATES.glob("*.md"):
        yield from (tag["name"] for tag in TAG.finditer(path.read_text()) if tag["kind"] == kind)


def _only(results: pathlib.Path, name: str) -> pathlib.Path:
    """The file of that name in the folder of results or below.

    Raises:
        FileNotFoundError: there is none.
    """
    for path in sorted(results.rglob(name)):
        if "parts" not in path.relative_to(results).parts:
            return path
    raise FileNotFoundError(f"no results file {name} in {results}")


def _table(data: dict[str, Any]) -> Iterator[str]:
    yield _origin(data)
    if "benchmark" in data:
        yield RENDER[data["benchmark"]](data)
    else:
        yield model_tables.render(data)


def _origin(data: Mapping[str, Any]) -> str:
    """By which command, when and where the figures were made."""
    dated = f", {data['date'][:10]}, commit {data['commit']}" if "date" in data else ""
    lines = [f"`{data['command']}`{dated}"]
    if "benchmark" in data:  # tables of cost models say theirs themselves
        machine = data["machine"]
        load = machine["load_average"]
        device = f"{data['device']}, " if "device" in data else ""
        lines += [
            f"{device}{machine['cpu']}, {machine['cores']} cores"
            + (f"; load average {load[0]} at the end" if load else ""),
            ", ".join(f"{name} {version}" for name, version in data["versions"].items()),
        ]
    return "\n".join(f"- {line}" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
