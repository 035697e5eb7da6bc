"""Fails if a package of this environment has a known vulnerability.

    python .ci/audit.py [PIP-AUDIT]

pip-audit asks PyPI for each installed package. Where PyPI is a mirror without the database, or out
of reach, pip-audit may report nothing and succeed; so a release with known vulnerabilities is
asked about first. If nothing is known of it, nothing can be learned here: the last line says that
the packages were NOT audited, and the exit code is 0.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

#: Has known vulnerabilities, so an answer without any comes from no database.
CONTROL = "jinja2==2.10"

#: Vulnerabilities that do not concern Felix, by id, with the reason.
ACCEPTED: dict[str, str] = {}


def main(pip_audit: str) -> int:
    """Audit this environment; the exit code."""
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(f"{CONTROL}\n")
            file.flush()
            control, problem = ask(
                pip_audit, "--requirement", file.name, "--no-deps", "--disable-pip"
            )
        if not any(package.get("vulns") for package in control):
            return not_audited(problem or "it knows no vulnerability of " + CONTROL)
        ignored = [word for name in ACCEPTED for word in ("--ignore-vuln", name)]
        packages, problem = ask(pip_audit, "--local", "--skip-editable", *ignored)
    except FileNotFoundError:
        print(f"{pip_audit} is not installed: make setup", file=sys.stderr)
        return 1
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        return not_audited(problem)
    for package in packages:
        for vulnerability in package.get("vulns", ()):
            fixed = ", ".join(vulnerability.get("fix_versions", ())) or "no version yet"
            print(
                f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}"
            )
        if "skip_reason" in package:
            print(f"not audited: {package['name']} ({package['skip_reason']})")
    n_bad = sum(bool(package["vulns"]) for package in audited)
    print(f"{len(audited)} packages audited, {n_bad} with known vulnerabilities")
    return 1 if n_bad else 0


def ask(pip_audit: str, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """What pip-audit reports of each package; its last words, if it reports nothing."""
    command = [pip_audit, "--format", "json", "--progress-spinner", "off", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return [], (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return packages, ""


def not_audited(reason: str) -> int:
    """Say that this run says nothing about the packages."""
    print(f"The database of vulnerabilities is out of reach: {reason}")
    print("WARNING: the packages were NOT audited; run `make audit` where PyPI can be reached")
    return 0


if __name__ == "__main__":
    default = pathlib.Path(sys.executable).with_name("pip-audit")
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(default)))
