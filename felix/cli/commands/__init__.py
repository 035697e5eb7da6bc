"""Commands that work on this machine: functions of their options, which return an exit code.

`service` starts the service or looks after its database here.
"""

from __future__ import annotations
