"""The network, the analytic prior, and their checkpoints."""

from __future__ import annotations
