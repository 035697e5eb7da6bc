"""The command line; `main` has the parser.

`commands` and `measuring` work on this machine, `remote` talks to a service that runs somewhere.
"""

from __future__ import annotations
