"""Felix for a TVM user: a PrimFunc of your own, and Felix inside MetaSchedule.

    python docs/guide/tutorials/tvm_user.py

Writes to the folder `tutorial-tvm` of the working directory.
"""

from __future__ import annotations

import pathlib

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

import felix

OUT = pathlib.Path("tutorial-tvm")

# 1. A program. A root block, serial loops of constant extents, one store a block: what te and
#    TVM's importers make. felix.errors.WorkloadError says what is not accepted.


@T.prim_func(s_tir=True)
def matmul_relu(
    A: T.Buffer((64, 96), "float32"),
    B: T.Buffer((96, 80), "float32"),
    C: T.Buffer((64, 80), "float32"),
):
    product = T.sblock_alloc_buffer((64, 80), "float32")
    for i, j, k in T.grid(64, 80, 96):
        with T.sblock("product"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                product[vi, vj] = T.float32(0)
            product[vi, vj] = product[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(64, 80):
        with T.sblock("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(product[vi, vj], T.float32(0))


task = felix.Task.from_prim_func(matmul_relu, "llvm", name="matmul_relu")
print(task.name, f"{task.flops:,} FLOP, at least {task.min_bytes:,} bytes")

# 2. What MetaSchedule's design space looks like to Felix: sketches, their decision variables, and
#    formulas of the variables.

sketches = felix.sketches(task)
for number, sketch in enumerate(sketches):
    print(number, [f"{v.name} ({v.kind})" for v in sketch.variables])
batch = sketches[0].sample(4, seed=0)  # legal decisions, one row each
trips = sketches[0].formulas.names.index("trip_count")
print("trip counts of the stores:", sketches[0].formulas.raw(batch)[0, :, trips])
print(sketches[0].schedule(batch[0]).mod.script()[:400], "...")  # made by TVM

# 3. Tuning it. Each measured candidate was compared with the unscheduled program first.

result = felix.tune(task, trials=4, seed=0)
print(f"{result.best.latency_us:.1f} us, {result.speedup:.1f} times the unscheduled program")

# 4. Calling the kernel, and writing the artifact. Its `database/` is MetaSchedule's.

kernel = felix.compile(result)
a = np.random.rand(64, 96).astype("float32")
b = np.random.rand(96, 80).astype("float32")
c = tvm.runtime.tensor(np.empty((64, 80), "float32"))
kernel["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), c)
np.testing.assert_allclose(c.numpy(), np.maximum(a @ b, 0), rtol=1e-4)
result.export(OUT / "artifact")

# 5. The other way round: stock `ms.tune_tir` with Felix's search strategy and cost model.
#    Building, running and the database stay TVM's. The space is MetaSchedule's plain one for
#    `llvm`, which Felix models. TVM's build workers parse every tensor intrinsic when they start,
#    some 20 s; this space uses none, so an empty module stands in for them.


def without_intrinsics() -> None:
    """Runs in each build worker first."""
    import sys
    import types

    name = "tvm.s_tir.tensor_intrin"
    sys.modules.setdefault(name, types.ModuleType(name))


model = felix.metaschedule.MLPCostModel()
database = ms.tune_tir(
    task.mod,
    task.target,
    str(OUT / "work"),
    2,  # trials
    num_trials_per_iter=2,
    builder=ms.builder.LocalBuilder(max_workers=1, initializer=without_intrinsics),
    runner=ms.runner.LocalRunner(
        evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=0)
    ),
    space=ms.space_generator.PostOrderApply(
        sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
    ),
    strategy=felix.metaschedule.GradientSearch(model),
    cost_model=model,
)
records = database.get_all_tuning_records()
latencies_us = sorted(1e6 * float(record.run_secs[0]) for record in records)
print("latencies in MetaSchedule's database, us:", [f"{us:.1f}" for us in latencies_us])
