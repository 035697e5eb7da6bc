"""Whether what a schedule rule of TVM left is a program at all."""

from __future__ import annotations

import tvm
from tvm import s_tir


def is_sound(mod: tvm.IRModule) -> bool:
    """Whether every buffer of a scheduled program is declared.

    TVM's AutoInline moves a block into its producer although others read the producer, too, whose
    buffer is then gone.
    """
    return bool(s_tir.analysis.verify_well_formed(mod["main"], assert_mode=False))
