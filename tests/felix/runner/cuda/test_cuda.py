"""CUDA measuring: what builders read off a module, and, on a GPU, candidates good and bad."""

from __future__ import annotations

import contextlib
import pathlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T
from tvm.support import nvcc

import felix
from felix import errors, launch_plan
from felix.builder import build
from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import cubins, launches, reference
from felix.measure import local, locks
from felix.runner import protocol, timing
from felix.runner.cuda import driver as cuda_driver
from felix.runner.cuda import nvrtc
from felix.task import Task
from tests.support import pool_programs, tir_programs
from tests.support.cuda import fakes
from tests.support.pool_programs import N, Square, gemm


@tir_programs.prim_func(s_tir=True)
def out_of_bounds(a: Square, b: Square, c: Square):
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(N, thread="threadIdx.x"):
            with T.sblock("c"):
                vi, vj = T.axis.remap("SS", [i, j])
                c[vi, vj] = a[vi, vj + 500000000] + b[vi, vj]


@tir_programs.prim_func(s_tir=True)
def endless(a: Square, b: Square, c: Square):
    for i in T.thread_binding(N, thread="blockIdx.x"):
        for j in T.thread_binding(N, thread="threadIdx.x"):
            with T.sblock("c"):
                vi, vj = T.axis.remap("SS", [i, j])
                c[vi, vj] = T.float32(1)
                while c[vi, vj] > T.float32(0):
                    c[vi, vj] = T.float32(1) + a[vi, vj] * a[vi, vj] + b[vi, vj] * b[vi, vj]


@tir_programs.prim_func(s_tir=True)
def much_shared(a: Square, b: Square, c: Square):
    for i in T.thread_binding(N, thread="blockIdx.x"):
        with T.sblock("outer"):
            vo = T.axis.spatial(N, i)
            tile = T.sblock_alloc_buffer((N, 4096), scope="shared")
            for j in T.thread_binding(N, thread="threadIdx.x"):
                for k in range(4096):
                    with T.sblock("fill"):
                        vj, vk = T.axis.remap("SS", [j, k])
                        tile[vj, vk] = a[vo, vj] + T.Cast("float32", vk)
            for j in T.thread_binding(N, thread="threadIdx.x"):
                with T.sblock("c"):
                    vj = T.axis.spatial(N, j)
                    c[vo, vj] = tile[(vj + 1) % N, (vj * 7) % 4096] + b[vo, vj]


def _bound(func: tvm.tirx.PrimFunc = gemm) -> tvm.IRModule:
    """A row is a block and a column a thread, unless the program has threads."""
    mod = pool_programs.module(func)
    if "thread_binding" in mod.script():
        return mod
    sch = tvm.s_tir.Schedule(mod)
    i, j, _ = sch.get_loops(sch.get_sblock("c"))
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    return sch.mod


def _schedules(text: str, n: int, sketch: int = 0) -> tuple[Task, list[tvm.IRModule]]:
    task = felix.workloads.parse(text, target="h200")
    chosen = felix.trace_sketches(task)[sketch]
    return task, [chosen.schedule(row).mod for row in chosen.sample(n, seed=0)]


_E = protocol.ErrorClass

# ---------------------------------------------------------------- without a GPU


def test_plan_has_the_launches_and_tensors_of_the_host_function() -> None:
    task, (mod,) = _schedules("softmax:12x197x197", 1)
    plan = cuda_build.lower(mod, task.target).plan
    assert plan.n_params == 2 and plan.workspaces == (12 * 197 * 4, 12 * 197 * 4)
    assert [launch.kernel for launch in plan.launches] == [
        "main_kernel",
        "main_kernel_1",
        "main_kernel_2",
    ]
    written_last = plan.launches[-1].args
    assert sorted(written_last) == [0, 1, 2, 3]  # both workspaces, both parameters
    assert 1 not in plan.launches[0].args and 0 in plan.launches[0].args
    assert launch_plan.LaunchPlan.from_json(plan.to_json()) == plan


def test_launch_extents_are_those_of_the_schedule() -> None:
    target = felix.target.parse("h200")
    (launch,) = cuda_build.lower(_bound(), target).plan.launches
    assert launch.extents == (N, 1, 1, N, 1, 1)
    assert launch.args == (0, 1, 2) and launch.shared_bytes == 0


def test_host_loops_are_refused() -> None:
    # a name of its own: TVM schedules a temporary module in place, `gemm` too
    mod = pool_programs.module(gemm)
    sch = tvm.s_tir.Schedule(mod)
    _, j, _ = sch.get_loops(sch.get_sblock("c"))
    sch.bind(j, "threadIdx.x")
    with pytest.raises(launches.BuildError):
        cuda_build.lower(sch.mod, felix.target.parse("h200"))


def test_prelude_has_only_what_is_used() -> None:
    source = cuda_build.lower(_bound(), felix.target.parse("h200")).source
    assert not source.headers and "#include" not in source.text
    assert "typedef long long int64_t;" in source.text and "INFINITY" not in source.text
    kernel = source.text[source.text.index('extern "C"') :]
    stock = (
        "#ifdef __CUDACC_RTC__\n#include <cuda/std/cstdint>\n#else\n#include <cuda.h>\n#endif\n"
    )
    assert cubins.slim(stock + kernel + "// INFINITY\n").text.count("#define INFINITY") == 1
    half = cubins.slim(stock + "#include <cuda_fp16.h>\n" + kernel)
    assert half.headers and "cuda/std/cstdint" not in half.text
    traits = cubins.slim(stock + "using std::is_same;\n" + kernel)
    assert traits.headers and "cuda/std/cstdint" in traits.text


KERNEL = 'extern "C" __global__ void __launch_bounds__(64) main_kernel'


def test_arrays_with_constant_indices_become_variables() -> None:
    array = (
        "  alignas(64) float c_local[2];\n  c_local[0] = 0;\n  b[i] = c_local[1] + c_local[0];\n"
    )
    variables = (
        "  float c_local_e0, c_local_e1;\n  c_local_e0 = 0;\n  b[i] = c_local_e1 + c_local_e0;\n"
    )
    other = "  float c_local[3];\n  b[0] = c_local[i];\n"  # another kernel's of that name

    def text(of_first: str) -> str:
        return f"int x[2];\n{KERNEL}(float* b) {{\n{of_first}}}\n{KERNEL}_1() {{\n{other}}}\n"

    assert cubins.scalars(text(array)) == text(variables)


@pytest.mark.parametrize(
    "use",
    [
        "c_local[i] = 0;",
        "c_local[(0 + 1)] = 0;",
        "*(float2*)(c_local + 0) = make_float2(0, 0);",
        "*(float2*)(&(c_local[0])) = make_float2(0, 0);",
        "c_local[2] = 0;",  # outside
        "float c_local[2];",
        "c_local_e1 = 0;",
        "return c_local[2];",
    ],
)
def test_arrays_stay_if_anything_else_is_done_with_them(use: str) -> None:
    declared = f"{KERNEL}() {{\n  float c_local[2];\n"
    text = f"{declared}  c_local[1] = 0;\n  {use}\n}}\n"
    assert cubins.scalars(text) == text
    shared = text.replace("float c_local", "__shared__ float c_local").replace(use, "")
    assert cubins.scalars(shared) == shared


class _Nvrtc:
    """What `nvrtc.check` asks of the library: version 13.0 for sm_75, sm_90 and sm_100."""

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 13, 0
        return 0

    def nvrtcGetNumSupportedArchs(self, count: Any) -> int:
        count._obj.value = 3
        return 0

    def nvrtcGetSupportedArchs(self, archs: Any) -> int:
        archs[:] = [75, 90, 100]
        return 0


def test_a_gpu_or_driver_that_nvrtc_does_not_serve_is_told_before_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvrtc, "load", _Nvrtc)
    for arch in ("sm_75", "sm_90", "sm_90a"):
        nvrtc.check(arch, (13, 0))
    with pytest.raises(errors.MeasureError, match=r"sm_70.*pip install nvidia-cuda-nvrtc-cu12"):
        nvrtc.check("sm_70", (13, 0))
    with pytest.raises(errors.MeasureError, match=r"sm_120.*install a newer one"):
        nvrtc.check("sm_120", (13, 0))
    with pytest.raises(errors.MeasureError, match=r"CUDA 12\.4.*update the driver"):
        nvrtc.check("sm_90", (12, 4))


def test_nvrtc_that_is_here_is_asked() -> None:
    nvrtc.check("sm_90", (99, 0))


def test_one_holder_of_a_device_at_a_time(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "device.lock"
    first, second = locks.DeviceLock(path), locks.DeviceLock(path)
    order: list[str] = []
    first.acquire()

    def wait_for_it() -> None:
        second.acquire()
        order.append("second")
        second.release()

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    thread.join(timeout=0.2)
    assert thread.is_alive()
    order.append("first")
    first.release()
    thread.join(timeout=10)
    assert order == ["first", "second"]


@pytest.mark.parametrize("code", [None, 701, 700])
def test_a_poisoned_context_unloads_nothing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    driver = fakes.Driver({})
    monkeypatch.setattr(cuda_driver, "libcuda", lambda: driver)
    context = cuda_driver.Context()
    expected = contextlib.nullcontext() if code is None else pytest.raises(cuda_driver.DriverError)
    with expected, context.loaded(b"cubin"):
        if code is not None:
            raise cuda_driver.DriverError(code, "cuLaunchKernel", "what happened")
    assert driver.log.count("cuModuleUnload") == (code != 700)


def test_the_host_makes_references_that_the_device_would_take_long_for() -> None:
    def is_on_device(text: str) -> bool:
        task = felix.workloads.parse(text, target="h200")
        return reference.scheduled(task.mod) is not None

    assert is_on_device("softmax:12x197x197") and is_on_device("conv2d:1,14,14,32,32,3,padding=1")
    assert not is_on_device("reduce:1000003")


# ---------------------------------------------------------------- on a GPU

OPTIONS = local.LocalOptions(builders=2, run_timeout_s=3.0, build_timeout_s=20.0)


@pytest.fixture(scope="module")
def pool() -> Iterator[local.LocalPool]:
    with local.LocalPool(Task.from_prim_func(gemm, "cuda", name="gemm"), OPTIONS) as opened:
        yield opened


class TestOnGpu:
    """Candidates in a real pool."""

    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize(
        ("func", "kind", "pattern"),
        [
            (pool_programs.other_sum, _E.WRONG_RESULT, "output c"),
            (pool_programs.unwritten_row, _E.WRONG_RESULT, "64 of 4096 elements"),
            (out_of_bounds, _E.LAUNCH, "ILLEGAL_ADDRESS|INVALID_ADDRESS_SPACE"),
            (endless, _E.TIMEOUT, "running"),
            (much_shared, _E.BUILD, "shared"),
        ],
    )
    def test_a_bad_candidate_costs_only_itself(
        self, pool: local.LocalPool, func: Any, kind: protocol.ErrorClass, pattern: str
    ) -> None:
        bad, good = pool.measure([_bound(func), _bound()])
        assert bad.error is kind, (bad.error, bad.message)
        assert re.search(pattern, bad.message), bad.message
        assert "Unload" not in bad.message
        assert good.ok and good.checked, good.message
        assert good.latency_us is not None and 1 < good.latency_us < 1000
        assert len(good.latencies_us) >= 5

    def test_warm_times_are_no_longer_than_cold_ones(self) -> None:
        task, mods = _schedules("elementwise:1024x1024", 4)
        warm_timing = timing.TimingOptions(flush=False, max_repeats=5)
        with local.LocalPool(task, OPTIONS) as opened:
            cold = opened.measure(mods)
        with local.LocalPool(task, local.LocalOptions(builders=2, timing=warm_timing)) as opened:
            warm = opened.measure(mods)
        pairs = [
            (w.latency_us, c.latency_us)
            for w, c in zip(warm, cold, strict=True)
            if w.latency_us and c.latency_us
        ]
        assert len(pairs) == 4
        assert np.median([w / c for w, c in pairs]) < 1.0

    def test_what_ships_is_what_is_measured(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
    ) -> None:
        """A module of the same cubin runs and is exported; TVM's own compiler is not asked."""

        def compiler(*args: object, **kwargs: object) -> bytes:
            raise AssertionError("TVM's own compiler was asked")

        monkeypatch.setattr(nvcc, "compile_cuda", compiler)
        task, (mod,) = _schedules("gemm:64,64,64", 1)
        module = build.module(mod, task.target)
        path = build.build(mod, task.target, str(tmp_path / "kernel"))
        source = cuda_build.lower(mod, task.target).source
        cubin = nvrtc.compile_cubin(source.text, str(task.target.attrs["arch"]))
        assert cubin in pathlib.Path(path).read_bytes()
        rng = np.random.default_rng(0)
        a, b = (rng.random((64, 64), dtype=np.float32) for _ in range(2))
        for kernel in (module, tvm.runtime.load_module(path)):
            tensors = [tvm.runtime.tensor(x, tvm.cuda(0)) for x in (a, b, np.zeros_like(a))]
            kernel["main"](*tensors)
            np.testing.assert_allclose(tensors[2].numpy(), a @ b, rtol=1e-4)
