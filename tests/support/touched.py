"""The tests of what a change touches: `python -m tests.support.touched [REVISION]`.

`make check` runs what this prints: test files and folders of the files that differ from the
revision (HEAD if left out) and of those that git does not know yet. A change that no test folder
mirrors, or none at all, gives the fast core of the tests.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
#: Quick tests of the parts that everything else is built on.
CORE = ("tests/felix/autodiff", "tests/felix/search", "tests/costmodel/test_models.py")


def tests_of(path: str) -> str | None:
    """The test file or folder nearest to a file: its own, that of its folder, of the one above."""
    file = pathlib.PurePosixPath(path)
    if file.parts[0] == "tests":
        is_test = file.name.startswith("test_") and file.suffix == ".py"
        return path if is_test and (ROOT / path).exists() else None
    for base in (file.with_suffix(""), *file.parents):
        if len(base.parts) < 2:  # all of felix or server is no small subset
            return None
        mirrored = pathlib.PurePosixPath("tests", base)
        for candidate in (mirrored.with_name(f"test_{mirrored.name}.py"), mirrored):
            if (ROOT / candidate).exists():
                return str(candidate)
    return None


def changed(revision: str) -> list[str]:
    """Files that differ from a revision, and new ones."""
    commands = (
        ("git", "diff", "--name-only", revision),
        ("git", "ls-files", "--others", "--exclude-standard"),
    )
    lines = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    return sorted({line for text in lines for line in text.splitlines()})


def main(revision: str = "HEAD") -> None:
    """Print what to run, one a line; nothing twice and no file of a folder that is printed."""
    nearest = {tests for path in changed(revision) if (tests := tests_of(path)) is not None}
    outer = {t for t in nearest if not any(t.startswith(f"{other}/") for other in nearest)}
    print("\n".join(sorted(outer) or CORE))


if __name__ == "__main__":
    main(*sys.argv[1:])
