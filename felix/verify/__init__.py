"""The symbolic program compared with the schedule that TVM makes.

In: a sketch.
Out: where it differs from what TVM makes.
From: `cli`, tests.
"""

from __future__ import annotations
