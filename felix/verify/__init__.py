"""The symbolic program compared with the schedule that TVM makes."""

from __future__ import annotations
