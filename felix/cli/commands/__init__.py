"""The commands of the command line: one module each, with `run(options) -> exit code`."""

from __future__ import annotations
