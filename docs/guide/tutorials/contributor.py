"""Felix for a contributor: adding an operator, a feature, a schedule instruction.

    python docs/guide/tutorials/contributor.py

Run it in the repository. It changes nothing: each part shows the places of a real example and
checks it as the tests do. docs/design/architecture.md says what belongs where.
"""

from __future__ import annotations

import inspect
import pathlib

import numpy as np
import torch
from tvm import te

import felix
from benchmarks.support.verify import compare
from felix import errors
from felix.autodiff import smoothing
from felix.features import spec
from felix.symbolic import interpret
from felix.symbolic.instructions import loop_transforms
from felix.workloads import catalogue, common, suite

ROOT = pathlib.Path(felix.__file__).parent.parent


# ---- An operator. A function with typed parameters that returns a task. `common.operator` checks
# ---- the parameters by their types; text form, JSON Schema and command line follow from them.


@common.operator
def outer_sum(
    rows: common.Extent,
    columns: common.Extent,
    *,
    scale: float = 1.0,
    target: common.TargetLike = "llvm",
) -> felix.Task:
    """out[i] = scale * sum over j of (a[i] + b[j]).

    Args:
        rows: extent of a and of the output.
        columns: extent of b.
        scale: factor of the sum.
        target: what to tune for.
    """
    a = common.placeholder("a", (rows,), "float32")
    b = common.placeholder("b", (columns,), "float32")
    j = common.reduce_axis("j", columns)
    total = common.compute("total", (rows,), lambda i: te.sum(a[i] + b[j], axis=j))
    out = common.compute("out", (rows,), lambda i: total[i] * te.const(scale, "float32"))
    return common.finish(common.name_of("outer_sum", (rows, columns)), [a, b, out], target)


task = outer_sum(37, 197)  # awkward extents: primes
print(task.name, f"{task.flops:,} FLOP")
try:
    outer_sum(0, 197)
except errors.WorkloadError as error:
    print("refused:", error)

# Random legal schedules of every sketch, compared with what TVM makes of them. A new operator
# passes it on both targets.
for target in ("llvm", "cuda"):
    report = compare.check(outer_sum(37, 197, target=target), n=5, seed=0)
    print(target, f"{report.checked} schedules compared")
    assert not any(sketch.mismatched for sketch in report.sketches)

# Two places make it an operator of the catalogue: its name, and small instances for all checks.
assert "gemm" in catalogue.OPERATORS and "gemm" in suite.CHECK_SUITE
print("catalogue:", ", ".join(sorted(catalogue.OPERATORS)))


# ---- A feature. One line in the table says name, unit, scale, exact meaning and source. The
# ---- formula lives in the module of its group; a brute-force count of it in tests/support/oracle.

column = spec.NAMES.index("trip_count")
print(f"feature {column} of version {spec.FEATURES_VERSION}: {spec.NAMES[column]}")
assert (ROOT / "felix/features/table.py").exists()
assert "trip_count" in (ROOT / "felix/features/spec.py").read_text()

# Its exact values at integer decisions are what a count over the program gives. Here: every store
# of the reduction runs rows * columns times, whatever the tiling.
sketch = felix.sketches(task)[0]
decisions = sketch.sample(8, seed=0)
formulas = sketch.formulas
trips = formulas.raw(decisions)[:, :, formulas.names.index("trip_count")]
is_reduction = formulas.raw(decisions)[:, :, formulas.names.index("is_reduction")] > 0
assert set(trips[is_reduction]) == {37.0 * 197.0}

# The smooth form approaches the exact one as the temperature falls, and has a gradient.
point = formulas.space.encode(decisions).requires_grad_()
exact = torch.as_tensor(formulas.exact(decisions))
distances = [
    float((formulas.smooth(point, temperature) - exact).detach().abs().max())
    for temperature in (0.5, 1e-4)
]
print("largest distance of the smooth form, hot and cold:", distances)
assert distances[1] < distances[0]
formulas.smooth(point, 0.1).sum().backward()
assert np.isfinite(point.grad.numpy()).all()

# A new operator inside formulas needs a rule: exact function, smooth form, partial derivatives.
print("smoothing rules:", len(smoothing.RULES))


# ---- A schedule instruction. A handler by the instruction's name calls a function that changes
# ---- the symbolic program as TVM's primitive changes the schedule.

print("instructions:", ", ".join(interpret.HANDLERS))
assert interpret.HANDLERS["Split"].__module__ == "felix.symbolic.interpret"
print(inspect.getsource(loop_transforms.split).splitlines()[0])

# The check above has run every instruction of this task's traces: TVM's program and ours agree in
# loops, buffers and what they launch. A new instruction needs a workload whose sketches use it.
used = {instruction.kind for s in felix.sketches(task) for instruction in s.instructions}
assert used <= set(interpret.HANDLERS)
print("used here:", ", ".join(sorted(used)))
