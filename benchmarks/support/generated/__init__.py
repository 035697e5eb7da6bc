"""What benchmarks need for generated kernels alone."""

from __future__ import annotations
