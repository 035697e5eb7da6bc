"""The command line; `main` has the parser.

In: a command line.
Out: calls, text.
From: users.

`commands` and `measuring` work on this machine, `remote` talks to a service that runs somewhere.
"""

from __future__ import annotations
