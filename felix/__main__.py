"""`python -m felix`: the command line."""

from __future__ import annotations

import sys

from felix import cli

if __name__ == "__main__":
    sys.exit(cli.main())
