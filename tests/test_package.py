"""The package as users get it: light import, pins, wheel contents, set-up messages."""

from __future__ import annotations

import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from typing import Any

import pytest

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


def test_versions_are_pinned_exactly() -> None:
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in [r for group in groups for r in group]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z]+\])?==[0-9][A-Za-z0-9.]*", requirement), (
            requirement
        )
    assert project["version"] == felix.__version__


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
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
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


def test_make_installs_the_pinned_torch_first(tmp_path: pathlib.Path) -> None:
    (pin,) = [r for r in PROJECT["project"]["dependencies"] if r.startswith("torch==")]
    done = _make(tmp_path, "-n", "setup", f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert installs[0].split()[-1] == pin
    assert ".[dev," in installs[1]


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
