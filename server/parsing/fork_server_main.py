"""The fork server of a `parser.Parser`: imports the engine and forks children (`fork_loop`)."""

from __future__ import annotations

import sys

from felix.processes import fork_loop


def main() -> None:
    """Serve until the parent goes away."""
    from felix import without_torch  # noqa: F401  (before TVM)
    from server.parsing import child

    fork_loop.serve(sys.argv[1:], lambda: None, child.serve)


if __name__ == "__main__":
    main()
