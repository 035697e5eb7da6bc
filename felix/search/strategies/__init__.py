"""Names of the search strategies; loads nothing, for the command line."""

from __future__ import annotations

#: As measured (`docs/results/gpu-search.md`).
DEFAULT = "local"
NAMES = ("local", "gradient", "evolutionary", "random", "tvm-evolutionary", "tvm-xgb")
#: Those that do not use Felix's cost model.
WITHOUT_MODEL = ("random", "tvm-xgb")
#: Those of TVM, which know traces and no templates.
TRACES_ONLY = ("tvm-evolutionary", "tvm-xgb")
