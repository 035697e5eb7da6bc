"""What an image installs: `python requirements.py [EXTRA ...] [--without PACKAGE ...]`.

Prints the dependencies of `pyproject.toml` and of the extras, one a line, for `pip install -r`.
pip itself cannot leave one out.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import tomllib
from collections.abc import Collection, Iterator


def requirements(
    pyproject: pathlib.Path, extras: Collection[str], without: Collection[str]
) -> Iterator[str]:
    """Each requirement, in the order of the file."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    all_of_them = [
        *project["dependencies"],
        *(each for extra in extras for each in optional[extra]),
    ]
    names = [re.split(r"[=\[<>!~ ]", each)[0] for each in all_of_them]
    unknown = set(without) - set(names)
    if unknown:
        raise SystemExit(f"not among the dependencies: {', '.join(sorted(unknown))}")
    for name, requirement in zip(names, all_of_them, strict=True):
        if name not in without:
            yield requirement


def main() -> None:
    """Print the requirements of the `pyproject.toml` in this folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", metavar="EXTRA", nargs="*")
    parser.add_argument("--without", metavar="PACKAGE", nargs="+", default=[])
    options = parser.parse_args()
    print(*requirements(pathlib.Path("pyproject.toml"), options.extras, options.without), sep="\n")


if __name__ == "__main__":
    main()
