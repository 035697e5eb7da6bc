"""Names of the search strategies; loads nothing, for the command line."""

from __future__ import annotations

NAMES = ("local", "gradient", "evolutionary", "random", "tvm-evolutionary", "tvm-xgb")
#: Those that do not use Felix's cost model.
WITHOUT_MODEL = ("random", "tvm-xgb")
#: Those of TVM, which know traces and no templates.
TRACES_ONLY = ("tvm-evolutionary", "tvm-xgb")


def default(kind: str) -> str:
    """The strategy that measured best on a target of that kind (`docs/design/gradients.md`)."""
    return "gradient" if kind == "llvm" else "local"
