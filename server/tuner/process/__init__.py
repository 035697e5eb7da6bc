"""The engine in a process of its own, which its tuner watches, and kills if it does not listen."""

from __future__ import annotations
