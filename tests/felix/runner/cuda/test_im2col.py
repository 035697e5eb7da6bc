"""Tensor maps in im2col mode: their limits, their encoding; on a GPU, what single copies bring.

Each case on a GPU is one assumption that the convolutions for sm_90a make about the copy engine.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from felix import launch_plan
from felix.artifact import player
from felix.builder.cuda import tvm_module
from felix.launch_plan import Im2col, Launch, LaunchPlan, TensorMap
from felix.network.bundle import run_script as network_run_script
from felix.runner.cuda import driver as cuda_driver
from felix.runner.cuda import nvrtc
from tests.support import gpu
from tests.support.cuda import fakes, tma
from tests.support.cuda import generated_programs as programs
from tests.support.cuda.im2col_copies import Copy


def image_map(**changed: Any) -> TensorMap:
    """Of float32 images [3][7][9][40], for 3x3 windows that move by 2 and have a padding of 1."""
    fields: dict[str, Any] = {
        "tensor": 0,
        "dtype": "float32",
        "extents": (40, 9, 7, 3),
        "strides_bytes": (160, 9 * 160, 63 * 160),
        "box": (32, 64),
        "swizzle_bytes": 128,
        "im2col": Im2col((-1, -1), (-1, -1), (2, 2)),
    }
    return TensorMap(**fields | changed)


def test_plans_keep_them_as_json() -> None:
    launch = Launch(
        "copy",
        (1, 1, 1, 128, 1, 1),
        0,
        (image_map(), 1, programs.boxes().plan.launches[0].args[0]),
    )
    plan = LaunchPlan(2, (), (launch,))
    assert LaunchPlan.from_json(plan.to_json()) == plan


def test_plans_written_before_there_was_im2col_are_read() -> None:
    fields = dataclasses.asdict(image_map(im2col=None))
    del fields["im2col"]
    assert launch_plan.tensor_map_of(fields) == image_map(im2col=None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"extents": (40, 9), "strides_bytes": (160,)}, "2 dimensions"),
        ({"im2col": Im2col((-1,), (-1,), (2,))}, "not of 2 spatial"),
        ({"im2col": Im2col((-1, -1), (-1, -1), (2,))}, "not of 2 spatial"),
        ({"im2col": Im2col((-129, -1), (-1, -1), (2, 2))}, "between -128 and 127"),
        ({"im2col": Im2col((-1, -1), (-1, 128), (2, 2))}, "between -128 and 127"),
        ({"im2col": Im2col((-1, -1), (-1, -1), (2, 9))}, "between 1 and 8"),
        ({"im2col": Im2col((-1, 0), (-1, -7), (2, 2))}, "bounding box is empty"),
        ({"box": (32, 1025)}, "up to 256 elements of 1024 pixels"),
        ({"box": (260, 64), "swizzle_bytes": 0}, "up to 256 elements"),
        ({"box": (32, 64, 1)}, "up to 256 elements"),
        ({"box": (30, 64)}, "a pixel of 120 bytes"),
        ({"box": (64, 64)}, "a pixel of 256 bytes with a swizzle of 128"),
        ({"strides_bytes": (168, 1440, 10080)}, "168 bytes are no multiple of 16"),
        ({"offset_bytes": 8}, "8 bytes are no multiple of 16"),
    ],
)
def test_what_no_map_can_hold_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_map(**changed)


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_driver_gets_what_the_map_says(rank: int) -> None:
    """And a driver that refuses what the documentation excludes takes the corners' extremes."""
    library = fakes.Driver({})
    least, most = launch_plan.CORNERS[rank]
    walk = Im2col((least,) * (rank - 2), (most,) * (rank - 2), tuple(range(1, rank - 1)))
    extents = (40, *range(6, 4 + rank), 2)
    strides = tuple(160 * math.prod(extents[1 : 1 + i]) for i in range(rank - 1))
    described = image_map(extents=extents, strides_bytes=strides, im2col=walk, offset_bytes=32)
    filled = cuda_driver.encoded(library, described, 4096)
    assert ctypes.sizeof(filled) == 128 and ctypes.addressof(filled) % 64 == 0
    assert library.map_of(ctypes.addressof(filled)) == fakes.EncodedMap(
        7,
        4096 + 32,
        extents,
        strides,
        (32, 64),
        3,
        (1, *walk.strides, 1, 0, 2, 0),
        (walk.lower, walk.upper),
    )


def test_a_refused_map_names_the_call() -> None:
    library = fakes.Driver({})
    with pytest.raises(cuda_driver.DriverError, match="VALUE in cuTensorMapEncodeIm2col"):
        cuda_driver.encoded(library, image_map(), 4100)


def test_host_code_of_tvm_encodes_them_by_a_function_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = fakes.Driver({})
    monkeypatch.setattr(cuda_driver, "libcuda", lambda: library)
    described = image_map(offset_bytes=64)
    assert encoded_by_host_code(library, described)
    assert tvm_ffi.get_global_func("felix.encode_im2col_tensor_map") is not None


def encoded_by_host_code(library: fakes.Driver, described: TensorMap) -> bool:
    """Whether TVM's host code of a program has a driver encode a map 64 bytes into a tensor."""
    launch = Launch("copy", (1, 1, 1, 128, 1, 1), 0, (described, 1))
    task = programs.task(programs.double)
    func = tvm_module.host_function(LaunchPlan(2, (), (launch,)), task.mod["main"])
    encoding = tvm.tirx.SeqStmt(list(func.body.seq)[:2])
    host = tvm.compile(tvm.IRModule({"main": func.with_body(encoding)}), tvm.target.Target("llvm"))
    tensors = [tvm.runtime.tensor(np.zeros((100, 72), np.float32)) for _ in range(2)]
    host["main"](*tensors)
    (filled,) = library._maps
    start = np.from_dlpack(tensors[0]).ctypes.data
    return (filled.address, filled.corners) == (start + 64, ((-1, -1), (-1, -1)))


def test_the_artifact_of_a_network_encodes_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `run.py` does, by the folder's copy of the driver's calls and without Felix."""
    for module in (cuda_driver, launch_plan):
        shutil.copy(str(module.__file__), tmp_path)
    name = "felix.encode_im2col_tensor_map"
    ours = tvm_ffi.get_global_func(name)
    for each in ("driver", "launch_plan"):
        monkeypatch.setitem(sys.modules, f"_felix_network_{each}", None)
    files = {"files": {"driver.py": "", "launch_plan.py": ""}}
    try:
        network_run_script._register_tensor_maps(tvm, tmp_path, files)
        library = fakes.Driver({})
        copied = sys.modules["_felix_network_driver"]
        assert copied.__file__ == str(tmp_path / "driver.py")
        monkeypatch.setattr(copied, "libcuda", lambda: library)
        assert encoded_by_host_code(library, image_map(offset_bytes=64))
    finally:
        tvm_ffi.register_global_func(name, ours, override=True)


def test_the_player_of_artifacts_encodes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    maps: list[fakes.EncodedMap] = []
    library = fakes.Driver({"copy": lambda args: maps.append(library.map_of(args[0]))})
    monkeypatch.setattr(cuda_driver, "libcuda", lambda: library)
    launch = Launch("copy", (1, 1, 1, 128, 1, 1), 0, (image_map(), 1))
    plan = LaunchPlan.from_json(LaunchPlan(2, (), (launch,)).to_json())
    arrays = [_memory(), np.zeros(8, np.float32)]
    program = player.LoadedProgram(cuda_driver.Context(), plan, b"cubin", arrays)
    program.run()
    (encoded,) = maps
    assert (encoded.box, encoded.corners) == ((32, 64), ((-1, -1), (-1, -1)))
    program.free()


# ---------------------------------------------------------------- single copies

#: What is assumed, and a copy that shows it.
COPIES: dict[str, Copy] = {
    "a column begins anywhere in the box and goes on in the next row and image": Copy(
        image_map(im2col=Im2col((0, 0), (0, 0), (1, 1))), (0, 3, 2, 1), (0, 0)
    ),
    "what lies before and behind a row or column of pixels is 0": Copy(
        image_map(im2col=Im2col((-1, -1), (-1, -1), (1, 1))), (0, -1, -1, 0), (0, 0)
    ),
    "offsets move what is read and not the walk": Copy(
        image_map(im2col=Im2col((-1, -1), (-1, -1), (1, 1))), (0, 2, -1, 0), (2, 1)
    ),
    "corners and offsets are in the order of dimensions, innermost first": Copy(
        image_map(im2col=Im2col((-2, -1), (-3, -4), (1, 1))), (0, -2, -1, 0), (3, 1)
    ),
    "strides move the walk, which begins a row at the lower corner": Copy(
        image_map(im2col=Im2col((-1, -1), (-1, -1), (2, 2))), (0, 1, 3, 0), (1, 2)
    ),
    "strides differ by dimension and need not divide the box": Copy(
        image_map(im2col=Im2col((-1, 0), (0, -2), (3, 2))), (0, -1, 2, 0), (0, 0)
    ),
    "pixels behind the last image are 0": Copy(
        image_map(im2col=Im2col((-1, -1), (-1, -1), (2, 2))), (0, 5, 1, 2), (1, 1)
    ),
    "an image behind the last one is 0": Copy(image_map(), (0, -1, -1, 3), (0, 0)),
    "channels behind the last one are 0": Copy(image_map(), (32, -1, -1, 0), (1, 1)),
    "a copy of no channel that there is brings zeros": Copy(image_map(), (40, -1, -1, 0), (0, 0)),
    "a box may be larger than the tensor": Copy(
        image_map(im2col=Im2col((-3, -3), (3, 3), (1, 1))), (0, -3, -3, 0), (0, 0)
    ),
    "the lower corner may lie inside": Copy(
        image_map(im2col=Im2col((2, 1), (-1, -2), (1, 1))), (0, 2, 1, 0), (0, 0)
    ),
    "a swizzle of 64 bytes": Copy(
        image_map(box=(16, 64), swizzle_bytes=64), (16, -1, -1, 0), (1, 0)
    ),
    "a swizzle of 32 bytes": Copy(image_map(box=(8, 24), swizzle_bytes=32), (8, 1, -1, 0), (0, 2)),
    "one dimension": Copy(
        image_map(
            extents=(40, 21, 9), strides_bytes=(160, 21 * 160),
            im2col=Im2col((-2,), (-2,), (3,)),
        ), (0, 4, 1), (4,),
    ),
    "offsets of one dimension have 16 bits": Copy(
        image_map(
            extents=(40, 189, 1), strides_bytes=(160, 160 * 189),
            im2col=Im2col((-300,), (-320,), (1,)), box=(32, 16),
        ), (0, -300, 0), (302,),
    ),
    "offsets of two dimensions have 8 bits": Copy(
        image_map(
            extents=(40, 189, 1, 1), strides_bytes=(160, 160 * 189, 160 * 189),
            im2col=Im2col((-120, 0), (-128, 0), (1, 1)), box=(32, 16),
        ), (0, -120, 0, 0), (250, 0),
    ),
    "three dimensions, and offsets of 5 bits": Copy(
        image_map(
            extents=(40, 3, 3, 7, 3), strides_bytes=(160, 480, 1440, 7 * 1440),
            im2col=Im2col((-1, -2, -15), (-1, 0, -2), (1, 2, 3)),
        ), (0, 0, -2, -15, 0), (2, 1, 16),
    ),
    "images as the third dimension, groups of channels as the last": Copy(
        image_map(
            extents=(8, 9, 7, 3, 5), strides_bytes=(160, 9 * 160, 63 * 160, 32),
            im2col=Im2col((-1, -1, 0), (-1, -1, 0), (1, 1, 1)), box=(8, 64), swizzle_bytes=32,
        ), (0, 2, 4, 1, 3), (1, 2, 0),
    ),
    "groups of channels as the last dimension": Copy(
        image_map(
            extents=(8, 9, 21, 5), strides_bytes=(160, 9 * 160, 32),
            im2col=Im2col((-1, -1), (-1, -1), (2, 2)), box=(8, 64), swizzle_bytes=32,
        ), (0, 1, 5, 2), (1, 1),
    ),
    "a tensor that begins inside memory": Copy(image_map(
        extents=(20, 9, 7, 3), offset_bytes=80), (0, -1, -1, 0), (1, 1),
    ),
    "a copy to all blocks of a cluster": Copy(
        image_map(im2col=Im2col((-1, -1), (-1, -1), (2, 2))), (0, 1, 3, 0), (1, 2), blocks=2
    ),
}  # fmt: skip


def _memory() -> np.ndarray:
    return np.arange(1, 3 * 7 * 9 * 40 + 1, dtype=np.float32)


@pytest.mark.parametrize("name", COPIES)
def test_the_driver_takes_the_maps_of_single_copies(name: str) -> None:
    copy = COPIES[name]
    cuda_driver.encoded(fakes.Driver({}), copy.tensor_map, 4096)
    rank = len(copy.at)
    assert all(0 <= offset <= launch_plan.LARGEST_OFFSET[rank] for offset in copy.offsets)
    rows = tma.im2col_copy(copy.tensor_map, _memory(), copy.at, copy.offsets)
    assert rows.shape == copy.tensor_map.box[::-1]
    empty = name in (
        "an image behind the last one is 0",
        "a copy of no channel that there is brings zeros",
    )
    assert (rows == 0).all() == empty


@pytest.mark.skipif(not gpu.has_nvrtc(), reason="NVRTC is not here")
@pytest.mark.parametrize("rank_and_blocks", [(3, 1), (4, 1), (5, 1), (4, 2)])
def test_single_copies_compile(rank_and_blocks: tuple[int, int]) -> None:
    copy = next(c for c in COPIES.values() if (len(c.at), c.blocks) == rank_and_blocks)
    assert nvrtc.compile_cubin(copy.source(), "sm_90a")


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("timed_out", [0, 1])
def test_single_copies_are_launched_and_read_back(
    blocks: int, timed_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = dataclasses.replace(next(iter(COPIES.values())), blocks=blocks)
    expected = np.arange(blocks * copy.n_bytes, dtype=np.uint8).reshape(blocks, -1)

    def copy_once(args: Any) -> None:
        assert library.map_of(args[0]).box == copy.tensor_map.box
        fakes.array(fakes.word(args[1]), expected.size, np.uint8)[:] = expected.ravel()
        fakes.array(fakes.word(args[2]), 1, np.int32)[:] = timed_out

    library = fakes.Driver({"copy_once": copy_once})
    monkeypatch.setattr(cuda_driver, "libcuda", lambda: library)
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *args, **kwargs: b"cubin")
    brought = copy.run_here(cuda_driver.Context(), _memory())
    assert library.clusters == ([(2, 1, 1)] if blocks == 2 else []) and not library.memory
    if timed_out:
        assert brought == "the copy brought fewer bytes than its box has"
    else:
        np.testing.assert_array_equal(brought, expected)


@pytest.mark.skipif(gpu.IS_HERE, reason="there is a GPU")
def test_a_copy_that_fails_says_why() -> None:
    text = next(iter(COPIES.values())).run(_memory())
    assert isinstance(text, str) and "no CUDA driver here" in text


class TestOnGpu:
    """On an sm_90 device: what a copy leaves in shared memory is what the emulation says."""

    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("name", COPIES)
    def test_a_copy_brings(self, name: str) -> None:
        copy, memory = COPIES[name], _memory()
        rows = tma.im2col_copy(copy.tensor_map, memory, copy.at, copy.offsets)
        expected = tma.in_shared_memory(rows, copy.tensor_map.swizzle_bytes)
        brought = copy.run(memory)
        assert not isinstance(brought, str), brought
        for block in brought:
            np.testing.assert_array_equal(block, expected)
