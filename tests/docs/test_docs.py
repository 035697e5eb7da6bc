"""What the pages say exists: links, paths, commands, names; and how long pages may be."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pathlib
import re
import runpy
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import report
from benchmarks.support import common
from felix import workloads
from felix.cli import main

ROOT = pathlib.Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
#: Made from results files; `benchmarks/report.py` is tested with them.
RESULTS = ROOT / "docs" / "results"
WRITTEN = [page for page in PAGES if RESULTS not in page.parents]
#: Pages about what is there today. The changelog also names what was.
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
FOLDERS = "felix costmodel server migrations deployment tests benchmarks docs data".split()


def _name(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _blocks(page: pathlib.Path, *languages: str) -> list[str]:
    """Fenced blocks in one of the languages; `""` is a fence without one."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M)
    return [text for language, text in fences if language in languages]


def _prose(page: pathlib.Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def _shell(page: pathlib.Path) -> Iterator[str]:
    """Lines of shell blocks and of indented blocks, without comments."""
    lines = [line for block in _blocks(page, "", "bash", "sh") for line in block.splitlines()]
    lines += re.findall(r"^    (\S.*)", page.read_text(), re.M)
    for line in lines:
        yield re.split(r"\s+#\s", line)[0].strip().rstrip("\\").strip()


def _commands(page: pathlib.Path) -> Iterator[str]:
    """The same, and code in sentences."""
    yield from _shell(page)
    yield from re.findall(r"`([^`\n]+)`", _prose(page))


def _anchors(page: pathlib.Path) -> set[str]:
    """Anchors of headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", _prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{_name(page)} links to {target}"
        if anchor:
            assert anchor in _anchors(linked), f"{_name(page)} links to {target}"


@pytest.mark.parametrize("page", CURRENT, ids=_name)
def test_paths_of_the_repository_exist(page: pathlib.Path) -> None:
    text = re.sub(r"https?://\S+", "", page.read_text())
    names = rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./{{}},*-]*)"
    for match in re.finditer(names, text):
        path = match[1].rstrip(".,/")
        if "{" in path:
            continue
        written = path.startswith("benchmarks/results/") and "--" in text  # where results go
        assert written or list(ROOT.glob(path)), f"{_name(page)} names {path}"


def test_pages_named_in_code_exist() -> None:
    n_pages = 0
    for folder in ("felix", "costmodel", "server", "benchmarks"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("MODEL_CARD.md")]:
            for page in re.findall(r"\bdocs/[\w/.-]*\w", path.read_text()):
                assert (ROOT / page).exists(), f"{_name(path)} names {page}"
                n_pages += 1
    assert n_pages > 5


@pytest.mark.parametrize("page", CURRENT, ids=_name)
def test_scripts_and_targets_exist(page: pathlib.Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in _commands(page):
        words = re.sub(r"^([A-Z_]+=\S+ )+", "", command).split()
        match words:
            case ["make", target, *_]:
                assert target in targets, f"{_name(page)}: {command}"
            case ["python", script, *_] if script.endswith(".py"):
                made = script.startswith(("out/", "felix-job-", "FOLDER/", "tutorial-"))
                assert made or (ROOT / script).exists(), f"{_name(page)}: {command}"
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module), f"{_name(page)}: {command}"


def test_felix_commands_exist() -> None:
    (commands,) = (a for a in main._parser()._actions if a.dest == "command")
    assert isinstance(commands.choices, dict)
    for page in CURRENT:
        for command in _commands(page):
            match command.split():
                case ["felix", name, *_] if name.isalpha() and name.islower():
                    assert name in commands.choices, f"{_name(page)}: {command}"


def test_felix_commands_of_shell_blocks_parse() -> None:
    lines = [line for page in CURRENT for line in _shell(page) if line.startswith("felix ")]
    assert len(lines) > 15
    for line in lines:
        options = main._parser().parse_args(shlex.split(line)[1:])
        named = getattr(options, "workload", [])
        for workload in [named] if isinstance(named, str) else named:
            if not workload.endswith((".json", ".onnx", ".pt2")):
                workloads.catalogue.parse_params(workload)


def test_names_of_felix_in_examples_exist() -> None:
    n_names = 0
    for page in PAGES:
        for block in _blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    if node.value.id in ("felix", "costmodel"):
                        module = importlib.import_module(node.value.id)
                        assert hasattr(module, node.attr), f"{_name(page)}: {node.attr}"
                        n_names += 1
    assert n_names > 5


def test_every_setting_of_the_service_is_documented_with_its_default() -> None:
    from server import settings

    text = (ROOT / "docs" / "guide" / "deployment.md").read_text()
    rows = re.findall(r"^\| `(FELIX_\w+)` \| ([^|]*) \|", text, re.M)
    fields = settings.Settings.model_fields
    assert sorted(name for name, _ in rows) == sorted(f"FELIX_{name.upper()}" for name in fields)
    default = settings.Settings()
    for variable, written in rows:
        name = variable.removeprefix("FELIX_").lower()
        if not written.startswith("`"):  # words: the setting is absent
            assert getattr(default, name) in (None, ()), variable
            continue
        stated = settings.Settings.from_environment({variable: written.strip("`")})
        assert written.strip("`") and getattr(stated, name) == getattr(default, name), variable


def test_generated_reference_pages_are_up_to_date() -> None:
    pages: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]
    for name, text in pages.items():
        stored = (ROOT / "docs" / "reference" / name).read_text()
        assert stored == text(), f"{name}: run `make docs`"


@pytest.mark.parametrize("page", [*WRITTEN, *(ROOT / "benchmarks/pages").glob("*.md")], ids=_name)
def test_a_written_page_is_short_and_has_no_commit(page: pathlib.Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= 2500
    hashes = re.findall(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b", text)
    assert not hashes, f"{_name(page)} names commits: {hashes}"


# ---------------------------------------------------------------- pages of results


STORED = ROOT / "benchmarks" / "results"
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
        for path in STORED.rglob("*.*")
        if path.suffix in (".json", ".svg") and "parts" not in path.relative_to(STORED).parts
    }
    assert tagged == stored


def test_every_renderer_has_results() -> None:
    paths = [path for path in STORED.rglob("*.json") if "parts" not in path.parts]
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


@functools.cache
def _imports(path: pathlib.Path) -> set[str]:
    """What a module imports, by the names of packages and modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return found


def test_rooms_that_are_named_as_callers_import_the_room() -> None:
    n_named = 0
    for room in sorted(ROOT.glob("*/*/__init__.py")):
        callers = re.search(r"^From: (.+)\.$", room.read_text(), re.M)
        package, name = room.relative_to(ROOT).parts[:2]
        for named in re.findall(r"`([\w.]+)`", callers[1]) if callers else []:
            beside = ROOT / package / named
            caller = beside if beside.exists() or beside.with_suffix(".py").exists() else None
            caller = caller or ROOT / named.replace(".", "/")
            modules = [*caller.rglob("*.py")] if caller.is_dir() else [caller.with_suffix(".py")]
            imported = set().union(*map(_imports, modules))
            is_true = any(f"{each}.".startswith(f"{package}.{name}.") for each in imported)
            assert is_true, f"{named} does not import {package}.{name}"
            n_named += 1
    assert n_named > 70
