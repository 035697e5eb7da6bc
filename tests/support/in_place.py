"""Programs that change an argument in place."""

from __future__ import annotations

from typing import Any

from tests.support.tir_programs import function

N = 24
_PARAMS = tuple(f'{name}: T.Buffer(({N}, {N}), "float32")' for name in "ABC")

#: One block by its own old value; one that adds a product; one whose input is also an output.
PROGRAMS = {
    "scaled": f"""
for i, j in T.grid({N}, {N}):
    with T.sblock("scaled"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = C[vi, vj] * A[vi, vj] + B[vi, vj]
""",
    "added": f"""
for i, j, k in T.grid({N}, {N}, {N}):
    with T.sblock("added"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""",
    "returned": f"""
for i, j in T.grid({N}, {N}):
    with T.sblock("sum"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] + B[vi, vj]
for i, j in T.grid({N}, {N}):
    with T.sblock("returned"):
        vi, vj = T.axis.remap("SS", [i, j])
        A[vi, vj] = C[vi, vj] * T.float32(2)
""",
}


def program(name: str) -> Any:
    """The TIR function of one of `PROGRAMS`."""
    return function(PROGRAMS[name], *_PARAMS)
