"""The lowest versions that `pyproject.toml` admits, as constraints of pip: `make test-lowest`.

    python .ci/lowest.py

Of what Felix and its extras need to run; not of tools (extra `dev`), nor of torch, whose builds
differ by gigabytes: that one is the lock's.
"""

from __future__ import annotations

import pathlib
import re
import tomllib
from collections.abc import Iterator

PYPROJECT = pathlib.Path(__file__).parents[1] / "pyproject.toml"
NOT_LOWERED = {"torch"}
#: A name, perhaps extras, a lower bound or the only version, perhaps an upper bound.
RANGE = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?(?:>=|==)([\w.]+)(?:,<[\w.]+)?")


def lowest(pyproject: pathlib.Path = PYPROJECT) -> Iterator[str]:
    """A constraint for each package, by name."""
    project = tomllib.loads(pyproject.read_text())["project"]
    groups = [
        project["dependencies"],
        *(each for name, each in project["optional-dependencies"].items() if name != "dev"),
    ]
    for requirement in sorted({one for group in groups for one in group}):
        found = RANGE.fullmatch(requirement)
        if found is None:
            raise SystemExit(f"no lower bound: {requirement}")
        name, version = found.groups()
        if name not in NOT_LOWERED:
            yield f"{name}=={version}"


if __name__ == "__main__":
    print(*lowest(), sep="\n")
