"""The pages of results: made whole from results files, each of which a page shows."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import report
from benchmarks.support import common

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
#: Words that all generated pages of results may have, and one of them.
N_WORDS, N_WORDS_OF_ONE = 12_000, 4_000
HEAD = {
    "date": "2030-01-01T00:00:00",
    "command": "python x.py",
    "commit": "abc",
    "versions": {"felix": "1", "apache-tvm": "2", "torch": "3"},
    "machine": {"cpu": "C", "cores": 2},
}


@pytest.fixture(scope="module")
def pages() -> dict[pathlib.Path, str]:
    """Every page as the results files give it."""
    return {report.PAGES / name: text for name, text in report.pages().items()}


def test_pages_are_up_to_date(pages: dict[pathlib.Path, str]) -> None:
    assert report.stale(pages) == []


def test_pages_are_short(pages: dict[pathlib.Path, str]) -> None:
    words = {path.name: len(text.split()) for path, text in pages.items()}
    assert max(words.values()) <= N_WORDS_OF_ONE and sum(words.values()) <= N_WORDS, words


def test_every_results_file_is_shown_and_every_tag_has_a_file() -> None:
    tagged = {f"{name}.json" for name in report.names("results")}
    tagged |= {f"{name}.svg" for name in report.names("figure")}
    stored = {
        path.name
        for path in RESULTS.rglob("*.*")
        if path.suffix in (".json", ".svg") and "parts" not in path.relative_to(RESULTS).parts
    }
    assert tagged == stored


def test_every_renderer_has_results() -> None:
    paths = [path for path in RESULTS.rglob("*.json") if "parts" not in path.parts]
    results = [each for path in paths for each in common.read(path)]
    assert {each.get("benchmark") for each in results} == set(report.RENDER)


def test_results_of_several_runs_are_joined(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("all.json", "a.json", "b.json")]
    report_of = {"label": "network", "overall": {"top1": 1.0}}
    evaluated = {"command": "a", "reports": [report_of | {"tasks": [1, 2]}]}
    files[1].write_text(json.dumps(evaluated))
    files[2].write_text(json.dumps([{"command": "b"}, {"command": "c"}]))
    monkeypatch.setattr("sys.argv", ["report.py", "--join", *map(str, files)])
    assert report.main() == 0
    ours, *others = common.read(files[0])
    assert ours == {"command": "a", "reports": [report_of]}
    assert [each["command"] for each in others] == ["b", "c"]


def test_tags_are_replaced_and_the_rest_stays(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "benchmarks" / "results" / "service"
    folder.mkdir(parents=True)
    times = {"page": {"median_ms": 3.0, "p95_ms": 4.0}}
    data = {"benchmark": "service-answers", "jobs": 2, "trials": 8, "answers": times}
    for name in ("sqlite", "other"):
        (folder / f"{name}.json").write_text(json.dumps(HEAD | data | {"database": name}))
    (folder / "curve.svg").write_text("<svg/>")
    template = "# P\n\n{{results sqlite other}}\n\n{{figure curve}}\n\n`{{figure curve}}` here\n"
    text = report.fill(template, folder.parent)
    assert text.count("- `python x.py`: 2030-01-01, commit abc; C, 2 cores; TVM 2, torch 3") == 2
    assert "2 jobs with 8 trials" in text and "| page     |         3 |" in text
    assert "![curve](../../benchmarks/results/service/curve.svg)" in text
    assert text.endswith("`{{figure curve}}` here\n"), "a tag is a line of its own"


def test_a_missing_results_file_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        report.fill("{{results nothing}}\n", tmp_path)
