"""Whether a GPU is here."""

from __future__ import annotations

import tvm

IS_HERE = tvm.runtime.device("cuda", 0).exist
