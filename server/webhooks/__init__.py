"""Notifications on their way: which addresses are allowed, signatures, the loop that sends."""

from __future__ import annotations
