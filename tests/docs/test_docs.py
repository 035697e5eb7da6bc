"""What the pages say exists: links, paths, commands, names; and how long pages may be."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import runpy
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

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
FOLDERS = (
    "felix",
    "costmodel",
    "server",
    "migrations",
    "deployment",
    "tests",
    "benchmarks",
    "docs",
    "data",
)


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
