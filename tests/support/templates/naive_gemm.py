"""A small real template for tests: a plain float32 GEMM in CUDA, its sum split if one wants.

C[m, n] = A[m, k] · B[k, n]. Threads compute one element each; with `splits` above 1 every split
has a part of the sum in a workspace, and a second kernel adds them up.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence

import sympy
import tvm

from felix import errors, launch_plan, workloads
from felix.space import template_sketch
from felix.symbolic import expr
from felix.target import Hardware, hardware
from felix.task import Task
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Matching, Parameter

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_SOURCE = """extern "C" __global__ void partial(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c) {{
  const int i = blockIdx.y * {threads_i} + threadIdx.y, j = blockIdx.x * {threads_j} + threadIdx.x;
  const int first = blockIdx.z * {k_part};
  const int last = min({k}, first + {k_part});
  if (i >= {m} || j >= {n}) return;
  float sum = 0.0f;
  #pragma unroll {unroll}
  for (int k = first; k < last; ++k) sum += a[i * {k} + k] * b[k * {n} + j];
  c[(blockIdx.z * {m} + i) * {n} + j] = sum;
}}
extern "C" __global__ void combine(const float* __restrict__ parts, float* __restrict__ c) {{
  const int at = blockIdx.x * 256 + threadIdx.x;
  if (at >= {m} * {n}) return;
  float sum = 0.0f;
  for (int s = 0; s < {splits}; ++s) sum += parts[s * {m} * {n} + at];
  c[at] = sum;
}}
"""


@dataclasses.dataclass(frozen=True)
class NaiveGemm:
    """The template for one problem."""

    m: int
    n: int
    k: int
    arch: str = "sm_90"
    version: int = 1

    name = "naive-gemm"

    @property
    def key(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]

    @property
    def parameters(self) -> Sequence[Parameter]:
        return (
            Parameter("threads_i", _SIZES, True, "threads of a block along i"),
            Parameter("threads_j", _SIZES, True, "threads of a block along j"),
            Parameter("splits", (1, 2, 3, 4), False, "parts of the sum"),
            Parameter("unroll", (1, 4), False, "copies of the loop's body"),
        )

    def constraints(self) -> Sequence[tuple[str, sympy.Expr]]:
        threads_i, threads_j, splits, _ = self._symbols
        return (
            ("threads of a block", threads_i * threads_j - 1024),
            ("parts of the sum", splits - self.k),
        )

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        threads_i, threads_j, splits, unroll = self._symbols
        blocks = expr.CeilDiv(self.m, threads_i) * expr.CeilDiv(self.n, threads_j) * splits
        threads = threads_i * threads_j
        part = expr.CeilDiv(self.k, splits)
        launched = expr.Less(sympy.Integer(1), splits)
        rows_us = blocks * part * (1 + 32 / threads) * (1 + 8 / threads_j) / 2e4 / unroll
        parts_bytes = 4 * self.m * self.n * splits

        def if_launched(value: sympy.Expr) -> sympy.Expr:
            return expr.Select(launched, value, sympy.Integer(0))

        return {
            "partial": {
                "grid_blocks": blocks,
                "block_threads": threads,
                "dram_bytes": 4 * (self.m * self.k + self.k * self.n) + parts_bytes,
                "analytic_us": 2 + rows_us,
            },
            "combine": {
                "grid_blocks": if_launched(sympy.Integer(-(-self.m * self.n // 256))),
                "block_threads": if_launched(sympy.Integer(256)),
                "dram_bytes": if_launched(parts_bytes + 4 * self.m * self.n),
                "analytic_us": if_launched(2 + splits * self.m * self.n / sympy.Integer(10**5)),
            },
        }

    def generate(self, decisions: Mapping[str, int]) -> GeneratedProgram:
        values = dict(decisions)
        threads_i, threads_j, splits = (
            values[name] for name in ("threads_i", "threads_j", "splits")
        )
        if threads_i * threads_j > 1024 or splits > self.k:
            raise errors.DecisionError(f"no program has {values}")
        source = _SOURCE.format(
            m=self.m, n=self.n, k=self.k, k_part=-(-self.k // splits), **values
        )
        grid = (-(-self.n // threads_j), -(-self.m // threads_i), splits)
        to = 2 if splits == 1 else 3
        launches = [launch_plan.Launch("partial", (*grid, threads_j, threads_i, 1), 0, (0, 1, to))]
        workspaces: tuple[int, ...] = ()
        if splits > 1:
            workspaces = (4 * splits * self.m * self.n,)
            extents = (-(-self.m * self.n // 256), 1, 1, 256, 1, 1)
            launches.append(launch_plan.Launch("combine", extents, 0, (3, 2)))
        plan = launch_plan.LaunchPlan(3, workspaces, tuple(launches))
        return GeneratedProgram(source, self.arch, plan)

    @functools.cached_property
    def _symbols(self) -> tuple[sympy.Symbol, ...]:
        return tuple(
            sympy.Symbol(each.name, integer=True, positive=True) for each in self.parameters
        )


def of_program(mod: tvm.IRModule, arch: str, machine: Hardware) -> Matching:
    """The template of a program of two float32 matrices; or why there is none."""
    shapes = [tuple(map(int, param.shape)) for param in mod["main"].params]
    if len(shapes) != 3 or any(len(shape) != 2 for shape in shapes):
        return Matching((), ("the program is no product of two matrices",))
    (m, k), (_, n), _ = shapes
    return Matching((NaiveGemm(m, n, k, arch),))


def task(m: int = 96, n: int = 80, k: int = 64, target: str = "cuda -arch sm_90") -> Task:
    """A GEMM that the template computes."""
    return workloads.gemm(m, n, k, target=target)


def sketch(index: int = 0, of: Task | None = None) -> template_sketch.TemplateSketch:
    """The template sketch of such a task."""
    of = of or task()
    machine = hardware(of.target)
    (template,) = of_program(of.mod, "sm_90", machine).templates
    return template_sketch.TemplateSketch(of, index, template, machine)
