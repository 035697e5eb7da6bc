"""Generated programs: their payloads, cubins, runs and modules; on a GPU, measured and called."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

from felix import errors, launch_plan, target
from felix.builder import build as measure_build
from felix.builder import payload as payloads
from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import launches, tvm_module
from felix.measure import local
from felix.runner import description, protocol
from felix.runner.cuda import nvrtc
from felix.templates.generated import GeneratedProgram
from tests.support import gpu
from tests.support.cuda import bench as benches
from tests.support.cuda import fakes
from tests.support.cuda import generated_programs as programs

H200 = target.parse("h200")

# ---------------------------------------------------------------- payloads


def test_a_payload_holds_a_program_of_either_kind() -> None:
    generated = programs.boxes()
    assert payloads.read(payloads.of(generated, H200)) == generated
    assert payloads.fingerprint(generated) == generated.fingerprint
    task = programs.task(programs.double)
    text = payloads.of(task.mod, task.target)
    read = payloads.read(text)
    assert isinstance(read, payloads.TirProgram) and str(read.target) == str(task.target)
    tvm.ir.assert_structural_equal(read.mod, task.mod)
    assert payloads.read_tir(text).mod["main"].same_as(read.mod["main"]) is False
    assert json.loads(text)["version"] == payloads.VERSION


def test_a_payload_of_another_form_is_refused() -> None:
    fields = json.loads(payloads.of(programs.plain(), H200))
    with pytest.raises(ValueError, match="version 2"):
        payloads.read(json.dumps(fields | {"version": 2}))
    with pytest.raises(ValueError, match="pickle"):
        payloads.read(json.dumps(fields | {"kind": "pickle"}))
    with pytest.raises(ValueError, match="no task"):
        payloads.read_tir(json.dumps(fields))


def test_cuda_code_is_not_built_for_a_cpu() -> None:
    with pytest.raises(errors.MeasureError, match="CUDA C\\+\\+ for sm_90a"):
        payloads.of(programs.plain(), target.parse("llvm"))


# ---------------------------------------------------------------- cubins


def _built(program: GeneratedProgram, stem: pathlib.Path, **changed: Any) -> dict[str, Any]:
    options = {"max_source_bytes": 10**5, **changed}
    return cuda_build.handle(payloads.of(program, H200), str(stem), **options)


@pytest.mark.parametrize("make", [make for _, make in programs.CASES])
def test_a_generated_program_is_built(
    make: Callable[[], GeneratedProgram], tmp_path: pathlib.Path
) -> None:
    program = make()
    reply = _built(program, tmp_path / "candidate")
    plan, cubin = description.read_program(reply["library"])
    assert plan == program.plan
    assert cubin.startswith(b"\x7fELF")
    assert all(launch.kernel.encode() in cubin for launch in plan.launches)
    assert cuda_build.cubin_of(program) == cubin


def test_a_program_that_does_not_compile_is_told(tmp_path: pathlib.Path) -> None:
    broken = dataclasses.replace(programs.plain(), source="extern int x(")
    with pytest.raises(nvrtc.CompileError, match="error"):
        _built(broken, tmp_path / "candidate")
    with pytest.raises(launches.BuildError, match="bytes of source"):
        _built(programs.plain(), tmp_path / "candidate", max_source_bytes=10)


def test_headers_are_there_for_those_who_include_them(tmp_path: pathlib.Path) -> None:
    source = """#include <cuda_bf16.h>
    extern "C" __global__ void halved(__nv_bfloat16* a) { a[0] = __float2bfloat16(0.5f); }"""
    launch = launch_plan.Launch("halved", (1, 1, 1, 1, 1, 1), 0, (0,))
    program = GeneratedProgram(source, "sm_80", launch_plan.LaunchPlan(1, (), (launch,)))
    assert (
        description.read_program(_built(program, tmp_path / "candidate")["library"])[0]
        == program.plan
    )


# ---------------------------------------------------------------- runs, on a fake driver


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> benches.Bench:
    """Its kernels are those of `generated_programs`."""
    kernels = programs.kernels(lambda: made.driver)
    kernels["main_kernel"] = programs.SWAPS  # what TVM calls that of a reference
    made = benches.Bench.make(monkeypatch, tmp_path, kernels)
    return made


@pytest.fixture
def doubling(bench: benches.Bench) -> str:
    """The folder of a task that its reference has run for."""
    bench.driver.kernels["main_kernel"] = programs.DOUBLES
    return bench.prepare(programs.task(programs.double).func)


def test_tensor_maps_are_arguments_by_value(bench: benches.Bench, doubling: str) -> None:
    reply = bench.run_plan(doubling, programs.boxes().plan)
    assert reply["latencies_us"], reply
    addresses = bench.runner._task.tensors
    read, written = bench.driver._maps
    assert read == fakes.EncodedMap(
        dtype=7,
        address=addresses[0],
        extents=(72, 100),
        strides_bytes=(288,),
        box=(32, 64),
        swizzle=3,
        others=(1, 1, 0, 2, 0),
    )
    assert written == dataclasses.replace(read, address=addresses[1], swizzle=0)


def test_a_tensor_map_may_begin_inside_a_tensor(bench: benches.Bench, doubling: str) -> None:
    bench.run_plan(doubling, programs.boxes(offset_bytes=64).plan)
    assert bench.driver._maps[0].address == bench.runner._task.tensors[0] + 64


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"box": (32, 257)}, "CUDA_ERROR_INVALID_VALUE in cuTensorMapEncodeTiled"),
        ({"box": (64, 64)}, "CUDA_ERROR_INVALID_VALUE in cuTensorMapEncodeTiled"),
        ({"strides_bytes": (290,)}, "CUDA_ERROR_INVALID_VALUE in cuTensorMapEncodeTiled"),
        ({"offset_bytes": 4}, "CUDA_ERROR_INVALID_VALUE in cuTensorMapEncodeTiled"),
        ({"dtype": "float4_e2m1fn"}, "no float4_e2m1fn"),
        ({"swizzle_bytes": 16}, "a swizzle of 16 bytes"),
    ],
)
def test_a_refused_tensor_map_is_the_candidates_error(
    bench: benches.Bench, doubling: str, changed: dict[str, Any], message: str
) -> None:
    reply = bench.run_plan(doubling, programs.boxes(**changed).plan)
    assert reply["error"] == protocol.ErrorClass.LAUNCH and reply["reusable"]
    assert message in reply["message"]
    assert bench.run_plan(doubling, programs.boxes().plan)["latencies_us"]


def test_blocks_are_launched_in_clusters(bench: benches.Bench) -> None:
    folder = bench.prepare(programs.task(programs.swap).func)
    reply = bench.run_plan(folder, programs.clusters().plan)
    assert reply["latencies_us"], reply
    launched = bench.driver.launched.count("swapped")
    assert bench.driver.clusters == [(2, 1, 1)] * launched and launched > 1


@pytest.mark.parametrize("size", [5, 12])
def test_a_refused_cluster_is_the_candidates_error(bench: benches.Bench, size: int) -> None:
    """A size that does not divide the grid, and one that not every GPU has."""
    folder = bench.prepare(programs.task(programs.swap).func)
    reply = bench.run_plan(folder, programs.clusters(size).plan)
    assert reply["error"] == protocol.ErrorClass.LAUNCH and reply["reusable"]
    assert "CUDA_ERROR_INVALID_CLUSTER_SIZE in cuLaunchKernelEx" in reply["message"]
    assert bench.run_plan(folder, programs.clusters().plan)["latencies_us"]


# ---------------------------------------------------------------- modules of TVM


def _calls(func: tvm.tirx.PrimFunc) -> list[Any]:
    """Calls of the statements of a host function, in order."""
    values = [getattr(stmt, "value", None) for stmt in func.body.seq]
    return [value for value in values if isinstance(value, tvm.ir.Call)]


def test_a_host_function_does_what_the_plan_says() -> None:
    task = programs.task(programs.double)
    program = programs.boxes(offset_bytes=64)
    func = tvm_module.host_function(program.plan, task.mod["main"])
    room, read, _, written, launch = _calls(func)
    assert "tensormap" in str(room) and "handle_add_byte_offset" in str(read.args[1])
    assert [int(value) for value in read.args[2:]] == [72, 100, 288, 32, 64, 1, 1]
    assert (read.attrs.descriptor_dtype, read.attrs.swizzle) == ("float32", 3)
    assert (written.attrs.swizzle, written.attrs.l2_promotion) == (0, 2)
    assert str(launch.args[0].value) == "doubled"
    assert launch.args[1].same_as(read.args[0]) and launch.args[2].same_as(written.args[0])
    numbers = [int(value) for value in launch.args[3:]]
    assert numbers == [3, 2, 1, 128, 1, 1, program.plan.launches[0].shared_bytes]


def test_a_host_function_launches_clusters_and_takes_workspaces() -> None:
    cluster_func = tvm_module.host_function(
        programs.clusters().plan, programs.task(programs.swap).mod["main"]
    )
    launch = cluster_func.body.value
    assert list(launch.attrs.launch_params)[6:9] == [f"clusterCtaIdx.{axis}" for axis in "xyz"]
    assert [int(value) for value in launch.args[-4:]] == [2, 1, 1, 0]
    plain = programs.plain()
    func = tvm_module.host_function(plain.plan, programs.task(programs.square_sum).mod["main"])
    allocated = func.body.seq[0].buffer
    first, second = _calls(func)
    assert [int(extent) for extent in allocated.shape] == [4000]
    for used in (first.args[2], second.args[1]):
        tvm.ir.assert_structural_equal(used, allocated.data)


def test_a_host_function_takes_its_workspaces_as_a_last_parameter() -> None:
    plan, main = programs.plain().plan, programs.task(programs.square_sum).mod["main"]
    func = tvm_module.host_function(plan, main, takes_workspace=True)
    *params, workspace = func.params
    assert [each.same_as(other) for each, other in zip(params, main.params, strict=True)]
    assert [int(extent) for extent in workspace.shape] == [tvm_module.workspace_bytes(plan)]
    first, _ = _calls(func)
    tvm.ir.assert_structural_equal(first.args[2], workspace.data)
    without = programs.clusters().plan
    swap = programs.task(programs.swap).mod["main"]
    same = tvm_module.host_function(without, swap, takes_workspace=True)
    assert tvm_module.workspace_bytes(without) == 0
    assert len(same.params) == len(swap.params)


def test_workspaces_that_a_tensor_map_reads_are_no_others_memory() -> None:
    """Packed operands are read through maps alone while partial sums are written."""
    task = programs.task(programs.square_sum)
    size = 64 * 1024

    def packed(tensor: int) -> launch_plan.TensorMap:
        return launch_plan.TensorMap(tensor, "float32", (64, 256), (256,), (32, 8))

    extents = (1, 1, 1, 32, 1, 1)
    plan = launch_plan.LaunchPlan(
        2,
        (size, size, size),
        (
            launch_plan.Launch("pack", extents, 0, (0, 2, 3)),
            launch_plan.Launch("multiply", extents, 0, (packed(2), packed(3), 4)),
            launch_plan.Launch("add", extents, 0, (4, 1)),
        ),
    )
    host = tvm_module.host_module(plan, task.mod, task.target).inspect_source("ll")
    taken = re.findall(r"%workspace\w* = .* call .*?i64 (\d+)", host)
    assert sum(map(int, taken)) >= 3 * size, taken


@pytest.mark.parametrize(("func", "make"), programs.CASES)
def test_tvm_is_given_the_cubin_in_place_of_what_it_would_compile(
    func: Any, make: Callable[[], GeneratedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU TVM keeps the source and asks no compiler, so here a fake of it does."""
    program, task = make(), programs.task(func)
    get = tvm.get_global_func
    cubins: list[bytes] = []

    def builder(name: str, allow_missing: bool = False) -> Any:
        if name != "target.build.cuda":
            return get(name, allow_missing)

        def build(mod: tvm.IRModule, built_for: tvm.target.Target) -> tvm.runtime.Module:
            module = get(name)(mod, built_for)
            cubins.append(bytes(get("tvm_callback_cuda_compile")(module.inspect_source())))
            return module

        return build

    monkeypatch.setattr(tvm, "get_global_func", builder)
    module = measure_build.module_of_task(program, task)
    assert cubins == [cuda_build.cubin_of(program)]
    declared = module.imports[0].inspect_source()
    for launch in program.plan.launches:
        assert f"void {launch.kernel}(" in declared
    assert declared.count("CUtensorMap ") == sum(
        2 * isinstance(arg, launch_plan.TensorMap)
        for launch in program.plan.launches
        for arg in launch.args
    )  # each in a declaration and in a definition


@pytest.mark.skipif(gpu.IS_HERE, reason="there is a GPU")
def test_a_module_of_a_generated_program_needs_a_driver() -> None:
    task = programs.task(programs.square_sum)
    with pytest.raises(errors.MeasureError, match="GPU's driver"):
        measure_build.module_of_task(programs.plain(), task)


# ---------------------------------------------------------------- on a GPU

OPTIONS = local.LocalOptions(builders=2, run_timeout_s=5.0, build_timeout_s=20.0)


class TestOnGpu:
    """On an sm_90 device: measured in a pool, and called by TVM's runtime."""

    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize(("func", "make"), programs.CASES)
    def test_it_is_checked_and_timed(
        self, func: Any, make: Callable[[], GeneratedProgram]
    ) -> None:
        with local.LocalPool(programs.task(func, "cuda"), OPTIONS) as pool:
            (result,) = pool.measure([make()])
        assert result.ok and result.checked, result.message
        assert result.latency_us is not None and 0.5 < result.latency_us < 1000

    def test_what_is_refused_costs_no_other_candidate(self) -> None:
        with local.LocalPool(programs.task(programs.double, "cuda"), OPTIONS) as pool:
            bad_map, bad_box, good = pool.measure(
                [
                    programs.boxes(strides_bytes=(290,)),
                    programs.boxes(box=(16, 64)),
                    programs.boxes(),
                ]
            )
        assert bad_map.error == protocol.ErrorClass.LAUNCH
        assert "cuTensorMapEncodeTiled" in bad_map.message
        # half of the bytes that the kernel waits for: it hangs, or its output is wrong
        assert bad_box.error in (protocol.ErrorClass.TIMEOUT, protocol.ErrorClass.WRONG_RESULT)
        assert good.ok and good.checked, good.message
        with local.LocalPool(programs.task(programs.swap, "cuda"), OPTIONS) as pool:
            bad_cluster, good = pool.measure([programs.clusters(5), programs.clusters()])
        assert bad_cluster.error == protocol.ErrorClass.LAUNCH and good.ok, bad_cluster.message

    @pytest.mark.parametrize(("func", "make"), programs.CASES)
    def test_tvm_calls_it(self, func: Any, make: Callable[[], GeneratedProgram]) -> None:
        task = programs.task(func, "cuda")
        module = measure_build.module_of_task(make(), task)
        rng = np.random.default_rng(0)
        shapes = [tuple(int(e) for e in param.shape) for param in task.mod["main"].params]
        arrays = [rng.random(shape, dtype=np.float32) for shape in shapes]
        tensors = [tvm.runtime.tensor(array, tvm.cuda(0)) for array in arrays]
        module["main"](*tensors)
        expected = {
            programs.square_sum: lambda a, *others: a * a + others[0],
            programs.double: lambda a, out: 2 * a,
            programs.swap: lambda a, out: a[:, ::-1],
        }[func](*arrays)
        np.testing.assert_allclose(tensors[-1].numpy(), expected, rtol=1e-6)
