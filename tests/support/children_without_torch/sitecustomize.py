"""First on the PYTHONPATH of a test: what only costs time in its child processes is left out.

TVM's own workers do not load torch, which they do not need: TVM loads it when it can, two seconds
in each of the processes that its builder and runner start. And libraries load with few collections
of garbage, which take a fifth of that time otherwise.
"""

from __future__ import annotations

import gc
import sys

gc.set_threshold(10_000)
if "tvm.exec.popen_worker" in sys.orig_argv:
    sys.modules["torch"] = None  # type: ignore[assignment]
