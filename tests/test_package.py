"""The package as users get it: import, versions, wheel, set-up messages, audit of dependencies."""

from __future__ import annotations

import email
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from importlib import metadata
from typing import Any

import pytest
from packaging import requirements, utils

import costmodel
import felix

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("felix", "costmodel", "server", "migrations")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "use",
    [
        "import felix",
        "import costmodel",
        "import felix; dir(felix); felix.FelixError, felix.InvalidSchedule, felix.errors",
        "import felix.search.cost_model, felix.measure, felix.events, felix.tuning.options",
        "import felix.cli.main; felix.cli.main._parser()",
    ],
)
def test_import_is_light(use: str) -> None:
    heavy = "{'torch', 'tvm', 'sympy', 'matplotlib', 'pyarrow'}"
    assert _python(f"{use}\nimport sys; print(sorted({heavy} & set(sys.modules)))") == "[]\n"


@pytest.mark.parametrize("package", [felix, costmodel], ids=["felix", "costmodel"])
def test_public_names_resolve(package: Any) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package) or package is costmodel
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


def _requirements() -> list[requirements.Requirement]:
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [requirements.Requirement(each) for group in groups for each in group]


def _lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {utils.canonicalize_name(name): version for name, version in pairs}


def test_the_version_is_stated_once() -> None:
    assert PROJECT["project"]["version"] == felix.__version__


def test_what_the_environment_has_is_kept() -> None:
    """Ranges, but for TVM; an upper bound for CUDA alone."""
    for each in _requirements():
        kinds = {one.operator for one in each.specifier}
        if each.name.startswith("apache-tvm"):
            assert kinds == {"=="}
        else:
            assert kinds == ({">=", "<"} if each.name.startswith("nvidia-") else {">="}), each


def test_the_lock_has_what_is_needed_and_fits() -> None:
    locked = _lock()
    for each in _requirements():
        assert each.specifier.contains(locked[utils.canonicalize_name(each.name)]), each
    assert not [version for version in locked.values() if "+" in version]


def test_everything_that_the_packages_need_is_locked() -> None:
    """All that is installed because Felix needs it, in the versions of the lock."""
    locked, found = _lock(), set[str]()
    wanted = [(each.name, extra) for each in _requirements() for extra in (*each.extras, "")]
    while wanted:
        name, extra = wanted.pop()
        if (name, extra) in found or name == "pip":
            continue
        found.add((name, extra))
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra that `make setup` leaves out
        assert locked[utils.canonicalize_name(name)] == installed.version.partition("+")[0], name
        for text in installed.requires or ():
            each = requirements.Requirement(text)
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                wanted += [(each.name, one) for one in (*each.extras, "")]


def test_the_lowest_versions_are_those_of_the_ranges() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "lowest.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lowest = dict(line.split("==") for line in done.stdout.splitlines())
    tools = {
        requirements.Requirement(each).name
        for each in PROJECT["project"]["optional-dependencies"]["dev"]
    }
    needed = {each.name: each for each in _requirements()}
    assert set(needed) - tools - {"torch"} <= set(lowest) <= set(needed) - {"torch"}
    for name, version in lowest.items():
        bounds = {one.version for one in needed[name].specifier if one.operator != "<"}
        assert bounds == {version}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(folder),
            str(folder / "tree"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("felix_tuner-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_every_file(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert {"felix/py.typed", "costmodel/py.typed"} <= packed


def test_the_wheel_describes_itself(wheel: zipfile.ZipFile) -> None:
    info = f"felix_tuner-{felix.__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    required = {r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r}
    assert required == set(PROJECT["project"]["dependencies"])
    assert set(metadata.get_all("Provides-Extra", [])) == set(
        PROJECT["project"]["optional-dependencies"]
    )
    entries = wheel.read(f"{info}/entry_points.txt").decode()
    assert "[console_scripts]\nfelix = felix.cli.main:main" in entries
    assert "[torch_dynamo_backends]\nfelix = felix.network.backend.entry:backend" in entries
    assert b"Apache License" in wheel.read(f"{info}/licenses/LICENSE")


def test_the_wheel_runs_by_itself(wheel: zipfile.ZipFile, tmp_path: pathlib.Path) -> None:
    wheel.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "felix", "devices", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert '"kind": "llvm"' in done.stdout


# ---------------------------------------------------------------- Makefile


def _make(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in ("Makefile", "pyproject.toml", "requirements.lock", ".ci/lowest.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return subprocess.run(
        ["make", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))},
    )


def test_make_alone_helps(tmp_path: pathlib.Path) -> None:
    done = _make(tmp_path)
    assert done.returncode == 0
    for target in ("setup", "tune", "test", "lint", "clean"):
        assert re.search(rf"^  {target} ", done.stdout, re.M), done.stdout
    assert not (tmp_path / ".venv").exists()


def test_make_refuses_an_old_python(tmp_path: pathlib.Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 || exit 1\n')
    old.chmod(0o755)
    done = _make(tmp_path, "test", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Felix needs Python 3.11 or newer" in done.stderr and "Python 3.9.2" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("target", ["setup", "test-lowest"])
def test_make_installs_the_locked_torch_first(target: str, tmp_path: pathlib.Path) -> None:
    done = _make(tmp_path, "-n", target, f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert installs[0].split()[-1] == f"torch=={_lock()['torch']}"
    assert all(" -c " in line for line in installs[1:])
    assert "-c requirements.lock" in installs[1] or target != "setup"


@pytest.mark.slow("compiles in a process that imports all anew")
def test_torch_knows_the_backend(wheel: zipfile.ZipFile, tmp_path: pathlib.Path) -> None:
    """Installed, it is there by its name, without an import of felix."""
    wheel.extractall(tmp_path)
    code = (
        "import torch; assert 'felix' in torch._dynamo.list_backends();"
        "call = torch.compile(lambda x: torch.relu(x) + 1, backend='felix');"
        "assert torch.equal(call(torch.zeros(3)), torch.ones(3));"
        "import felix; print(felix.backend_report())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "FELIX_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert "1 tasks are queued" in done.stdout


SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "audit.py"

BAD: dict[str, Any] = {
    "name": "jinja2",
    "version": "2.10",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.10.1"]}],
}
GOOD: dict[str, Any] = {"name": "numpy", "version": "2.4.6", "vulns": []}
SKIPPED = {"name": "jinja2", "skip_reason": "Dependency not found on PyPI"}


def audit(
    folder: pathlib.Path, control: list[dict[str, Any]] | None, packages: list[dict[str, Any]]
) -> tuple[int, str]:
    """Exit code and output with a pip-audit that reports so; None: it has no network."""
    fake = folder / "pip-audit"
    fake.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import json, sys
        control, packages = json.loads({json.dumps(json.dumps([control, packages]))})
        if control is None:
            sys.exit("Traceback ...\\nConnectionError: no network")
        chosen = control if "--requirement" in sys.argv else packages
        print(json.dumps({{"dependencies": chosen, "fixes": []}}))
        sys.exit(any(package.get("vulns") for package in chosen))
        """)
    )
    fake.chmod(0o755)
    done = subprocess.run([sys.executable, SCRIPT, fake], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_findings_fail_and_are_named(tmp_path: pathlib.Path) -> None:
    code, text = audit(
        tmp_path, [BAD], [GOOD, {**BAD, "name": "httpx", "version": "0.1"}, SKIPPED]
    )
    assert code == 1 and "httpx 0.1: PYSEC-1, fixed in 2.10.1" in text
    assert "not audited: jinja2" in text and "2 packages audited, 1 with" in text


def test_no_findings_succeed(tmp_path: pathlib.Path) -> None:
    code, text = audit(tmp_path, [BAD], [GOOD])
    assert code == 0 and "1 packages audited, 0 with" in text and "NOT" not in text


@pytest.mark.parametrize("control", [None, [SKIPPED], [{**BAD, "vulns": []}], []])
def test_a_database_out_of_reach_is_said_and_does_not_fail(
    tmp_path: pathlib.Path, control: list[dict[str, Any]] | None
) -> None:
    """Also where the index is a mirror that answers for everything that nothing is known."""
    code, text = audit(tmp_path, control, [GOOD])
    assert code == 0 and "were NOT audited" in text.splitlines()[-1]


def test_without_pip_audit_it_fails(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path / "none"], capture_output=True)
    assert done.returncode == 1 and b"make setup" in done.stderr


def test_ci_audits() -> None:
    assert "make audit" in (SCRIPT.parent / "run").read_text()
