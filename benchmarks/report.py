"""Write the pages of docs/results from benchmarks/pages/*.md and the files in benchmarks/results.

    python benchmarks/report.py [--check]
    python benchmarks/report.py --join FILE RESULTS ...

A page's template is prose with lines of one tag each:

    {{results NAME ...}}  how, when and where the files NAME.json were made, and what their
                          benchmark makes of them: all of them in one table
    {{figure NAME}}       the picture NAME.svg

Results files may lie in folders below benchmarks/results. With --check nothing is written; the
exit code is 1 if a page is not up to date. With --join FILE becomes one that has what pages use of
what `python -m costmodel` wrote to the others.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, model_tables

TEMPLATES = pathlib.Path(__file__).resolve().parent / "pages"
PAGES = common.ROOT / "docs" / "results"

#: Benchmark (a results file's field; None: of cost models) -> what renders its results files.
RENDER: dict[str | None, str] = {
    None: "support.model_tables:render",
    "artifact_repeat": "artifact_repeat:render",
    "backend_calls": "backend_calls:render",
    "cluster_scaling": "cluster_scaling:render",
    "corpus": "support.corpus_table:render",
    "corpus_tuned": "support.corpus_table:render_tuned",
    "cpu_tuning": "cpu_tuning:render",
    "cuda_build_time": "cuda_build_time:render",
    "features": "features:render",
    "formula_time": "support.corpus_table:render_times",
    "fusion": "fusion:render",
    "measure_throughput": "measure_throughput:render",
    "multi_gpu": "multi_gpu:render",
    "networks": "networks.results:render",
    "networks_branches": "networks.results:render_branches",
    "networks_repeated": "networks.results:render_repeated",
    "search_cost": "search_cost:render",
    "search_efficiency": "support.efficiency:render",
    "service-answers": "support.service.tables:answers",
    "service-hostile": "support.service.tables:hostile",
    "service-polling": "support.service.tables:polling",
    "service-start": "support.service.tables:start",
    "structure": "structure:render",
    "template_fuzz": "template_fuzz:render",
    "tensor_cores": "tensor_cores:render",
    "threads": "threads:render",
}
TAG = re.compile(r"^\{\{(?P<kind>results|figure) (?P<names>[\w -]+)\}\}$", re.MULTILINE)
_HEAD = (
    "<!-- Made by `python benchmarks/report.py` from benchmarks/pages/{name}: do not edit. -->\n\n"
)


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--join", nargs="+", metavar="FILE", type=pathlib.Path)
    args = parser.parse_args()
    if args.join:
        file, *others = args.join
        every = [result for path in others for result in common.read(path)]
        common.write(file, [model_tables.kept(result) for result in every])
        return 0
    texts = {PAGES / name: text for name, text in pages().items()}
    if args.check:
        for path in stale(texts):
            print(f"not up to date: {path.relative_to(common.ROOT)}")
        return int(bool(stale(texts)))
    PAGES.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    return 0


def stale(texts: Mapping[pathlib.Path, str]) -> list[pathlib.Path]:
    """The pages that are not as these texts."""
    unknown = [path for path in PAGES.glob("*.md") if path not in texts]
    return unknown + [p for p, text in texts.items() if not p.exists() or p.read_text() != text]


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {
        path.name: _HEAD.format(name=path.name) + fill(path.read_text(), common.RESULTS)
        for path in sorted(TEMPLATES.glob("*.md"))
    }


def fill(template: str, results: pathlib.Path) -> str:
    """The template with every tag replaced by what the results say."""

    def replaced(match: re.Match[str]) -> str:
        if match["kind"] == "figure":
            path = _only(results, f"{match['names']}.svg")
            place = path.relative_to(results.parent.parent).as_posix()
            return f"![{match['names']}](../../{place})"
        names = match["names"].split()
        every = [each for name in names for each in common.read(_only(results, f"{name}.json"))]
        module, _, function = RENDER[every[0].get("benchmark")].partition(":")
        render = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        return "\n".join(map(_origin, every)) + "\n\n" + str(render(*every))

    return TAG.sub(replaced, template)


def names(kind: str) -> Iterator[str]:
    """What the tags of a kind name, over all templates."""
    for path in TEMPLATES.glob("*.md"):
        for tag in TAG.finditer(path.read_text()):
            if tag["kind"] == kind:
                yield from tag["names"].split()


def _only(results: pathlib.Path, name: str) -> pathlib.Path:
    """The file of that name in the folder of results or below.

    Raises:
        FileNotFoundError: there is none.
    """
    for path in sorted(results.rglob(name)):
        if "parts" not in path.relative_to(results).parts:
            return path
    raise FileNotFoundError(f"no results file {name} in {results}")


def _origin(data: Mapping[str, Any]) -> str:
    """By which command, when and where the figures were made."""
    machine, versions = data["machine"], data["versions"]
    device = f"{data['device']}, " if "device" in data else ""
    commit = f", commit {data['commit']}" if data["commit"] not in (None, "None") else ""
    return (
        f"- `{data['command']}`: {data['date'][:10]}{commit}; "
        f"{device}{machine['cpu']}, {machine['cores']} cores; "
        f"TVM {versions['apache-tvm']}, torch {versions['torch']}"
    )


if __name__ == "__main__":
    sys.exit(main())
