"""Commands that talk to a running service."""

from __future__ import annotations
