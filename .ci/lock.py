"""Write `requirements.lock`, the versions that Felix is developed and tested with: `make lock`.

    python .ci/lock.py TORCH [--torch-args OPTIONS] [--upgrade [PACKAGE ...]]

pip chooses them in an environment that is made for it: torch alone, then what `pyproject.toml`
and all its extras need beside it. Nothing else is installed. What the lock has stays, as far as
`pyproject.toml` admits it; `--upgrade` takes the newest of some packages, or of all. The oldest
Python that Felix supports chooses, because what it can install newer ones can, too.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Collection, Iterable

ROOT = pathlib.Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Made by `make lock`; constraints for pip: pip install -c requirements.lock ...
"""


def main() -> None:
    """Choose the versions and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("torch", metavar="TORCH", help="such as torch==2.13.0")
    parser.add_argument("--torch-args", default="", help="options of pip for torch alone")
    parser.add_argument("--upgrade", metavar="PACKAGE", nargs="*")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    if oldest != f"{sys.version_info.major}.{sys.version_info.minor}":
        raise SystemExit(f"the lock is made by Python {oldest}: make lock PYTHON=python{oldest}")
    with tempfile.TemporaryDirectory(prefix="felix-lock-") as folder:
        here = pathlib.Path(folder)
        (here / "kept.txt").write_text("\n".join(kept(options.upgrade)))
        venv.create(here / "venv", with_pip=True)
        pip = [str(here / "venv" / "bin" / "python"), "-m", "pip"]
        run([*pip, "install", "--quiet", *shlex.split(options.torch_args), options.torch])
        frozen = run([*pip, "freeze", "--all", "--exclude", "pip"]).splitlines()
        extras = ",".join(project["optional-dependencies"])
        command = [*pip, "install", "--quiet", "--dry-run", "--report", str(here / "report")]
        run([*command, "-c", str(here / "kept.txt"), options.torch, f"{ROOT}[{extras}]"])
        chosen = json.loads((here / "report").read_text())["install"]
        named = [(one["metadata"]["name"], one["metadata"]["version"]) for one in chosen]
        lines = [f"{name}=={version}" for name, version in named if name != project["name"]]
        LOCK.write_text(HEADER + "\n".join(merged(frozen, lines)) + "\n")


def kept(upgrade: Collection[str] | None) -> list[str]:
    """Lines of the lock that stay; `upgrade`: packages that do not, empty: none does."""
    if upgrade is not None and not upgrade:
        return []
    left_out = {key(name) for name in upgrade or ()}
    lines = LOCK.read_text().splitlines() if LOCK.exists() else []
    return [line for line in lines if "==" in line and key(line) not in left_out]


def merged(installed: Iterable[str], chosen: Iterable[str]) -> list[str]:
    """Lines by name; chosen ones replace installed ones, builds (`+cpu`) are left out."""
    lines = {key(line): line.partition("+")[0].lower() for line in [*installed, *chosen]}
    return [lines[name] for name in sorted(lines)]


def key(line: str) -> str:
    """The package of a line, as names are compared."""
    return re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()


def run(command: list[str]) -> str:
    """What a command of pip writes; its errors are this one's."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    return done.stdout


if __name__ == "__main__":
    main()
