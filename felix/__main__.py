"""`python -m felix`: the command line."""

from __future__ import annotations

import sys

from felix.cli import main

if __name__ == "__main__":
    sys.exit(main.main())
