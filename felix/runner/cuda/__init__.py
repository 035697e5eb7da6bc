"""Building for and timing on NVIDIA GPUs."""

from __future__ import annotations
