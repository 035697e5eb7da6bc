"""The audit of dependencies: findings fail, and a silent database is never taken for none."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

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
