"""Whether a GPU is here, and what compiles for one."""

from __future__ import annotations

import tvm

from felix import errors
from felix.runner.cuda import nvrtc

IS_HERE = tvm.runtime.device("cuda", 0).exist


def has_nvrtc() -> bool:
    """Whether this machine has NVRTC."""
    try:
        nvrtc.load()
    except errors.MeasureError:
        return False
    return True
