"""First on the PYTHONPATH of a test: TVM's own workers do not load torch, which they do not need.

TVM loads it when it can, two seconds in each of the processes that its builder and runner start.
"""

from __future__ import annotations

import sys

if "tvm.exec.popen_worker" in sys.orig_argv:
    sys.modules["torch"] = None  # type: ignore[assignment]
