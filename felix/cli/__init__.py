"""The command line; `main` has the parser.

`commands` work on this machine, those of `remote` talk to a service that runs somewhere.
"""

from __future__ import annotations
