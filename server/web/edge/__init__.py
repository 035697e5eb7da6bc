"""What a request passes before a route sees it: its connection, proxies, who may send a body."""

from __future__ import annotations
