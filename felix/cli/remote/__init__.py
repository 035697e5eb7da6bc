"""Commands that talk to a running service: functions of their options, which return an exit code.

They reach it by `felix.client`; `connection` has its address and key.
"""

from __future__ import annotations
