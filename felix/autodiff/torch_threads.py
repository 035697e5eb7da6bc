"""How many threads torch computes with, for the duration of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def limit(n: int) -> Iterator[None]:
    """Run with n torch threads, and with as many as before afterwards; results depend on n."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
