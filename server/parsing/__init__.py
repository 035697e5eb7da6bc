"""Clients' programs, read in limited child processes."""

from __future__ import annotations
