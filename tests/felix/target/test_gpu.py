"""GPUs by what they report: cards outside the table have the name and figures of the device."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from costmodel.data import dataset, felix_bridge
from felix import errors, sketches, target, workloads
from felix.cli import main
from felix.measure import local
from felix.runner.cuda import devices, nvrtc
from felix.target import gpu

MIB = 2**20
DATA = Path(__file__).parents[3] / "data" / "cuda"
#: CUdevice_attribute -> value of cards, as drivers report them.
RTX_4070 = {12: 65536, 36: 10501000, 37: 192, 39: 1536, 81: 102400, 82: 65536, 97: 101376, 106: 24}
H200_NVL = {12: 65536, 36: 3201000, 37: 6144, 39: 2048, 81: 233472, 82: 65536, 97: 232448, 106: 32}


def card(name: str, version: str, sms: int, clock_khz: int, l2_bytes: int) -> Any:
    return types.SimpleNamespace(
        exist=True,
        device_name=name,
        compute_version=version,
        multi_processor_count=sms,
        max_clock_rate=clock_khz,
        l2_cache_size_bytes=l2_bytes,
        max_threads_per_block=1024,
        warp_size=32,
    )


class Driver:
    """`libcuda` with one device."""

    def __init__(self, attributes: dict[int, int]) -> None:
        self.attributes = attributes
        self.queried: list[int] = []

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return 0 if index == 0 else 101

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        self.queried.append(number)
        value._obj.value = self.attributes.get(number, 0)
        return 0 if number in self.attributes else 1


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`plug(device, attributes)` makes a card this machine's only one; None: it has none."""

    def one(device: Any, attributes: dict[int, int] | None = None) -> Driver:
        driver = Driver(attributes or {})
        absent = types.SimpleNamespace(exist=False)
        monkeypatch.setattr(tvm, "cuda", lambda index: absent if index or not device else device)
        real = ctypes.CDLL

        def library(name: str | None, **options: Any) -> Any:
            if name is None:  # the C library
                return real(name, **options)
            if not attributes:
                raise OSError("libcuda.so.1: cannot open shared object file")
            return driver

        monkeypatch.setattr(ctypes, "CDLL", library)
        return driver

    return one


def rtx_4070() -> Any:
    return card("NVIDIA GeForce RTX 4070", "8.9", 46, 2475000, 36 * MIB)


def test_a_card_outside_the_table_is_what_it_reports(plug: Any) -> None:
    plug(rtx_4070(), RTX_4070)
    rates = target.hardware("cuda")
    assert rates == target.Hardware(
        name="NVIDIA GeForce RTX 4070",
        kind="gpu",
        cores=46,
        clock_ghz=2.475,
        vector_lanes=4,
        peak_fp32_gflops=29145.6,  # data sheet: 29 TFLOP/s
        dram_bandwidth_gbs=504,  # data sheet: 504 GB/s
        cache_line_bytes=128,
        l1_bytes=128 * 1024,
        l2_bytes=36 * MIB,
        l3_bytes=0,
        warp_size=32,
        max_threads_per_block=1024,
        max_threads_per_core=1536,
        max_blocks_per_core=24,
        registers_per_block=65536,
        registers_per_core=65536,
        shared_bytes_per_block=99 * 1024,
        shared_bytes_per_core=100 * 1024,
    )


def test_records_data_sets_and_listings_tell_the_true_card(
    plug: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(rtx_4070(), RTX_4070)
    assert json.loads(felix_bridge.device_text("cuda"))["name"] == "NVIDIA GeForce RTX 4070"
    assert [device.name for device in target.devices()][1:] == ["NVIDIA GeForce RTX 4070"]
    assert main.main(["devices", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)[1]
    assert (listed["name"], listed["pretrained"]) == ("NVIDIA GeForce RTX 4070", None)
    assert listed["hardware"]["cores"] == 46


def test_its_target_tells_where_the_card_is_not(plug: Any) -> None:
    plug(rtx_4070(), RTX_4070)
    there = target.parse("cuda")
    text, expected = target.describe(there), target.hardware(there)
    plug(None)
    assert target.hardware(text) == expected
    assert target.describe(target.parse(text)) == text
    assert target.hardware(tvm.ir.load_json(tvm.ir.save_json(there))) == expected


@pytest.mark.parametrize(
    "device, attributes, gbs",
    [
        (card("NVIDIA H200 NVL", "9.0", 132, 1785000, 60 * MIB), H200_NVL, 4917),
        (card("NVIDIA H200 MIG 1g.18gb", "9.0", 16, 1980000, 8 * MIB), H200_NVL | {37: 768}, 615),
        (
            card("NVIDIA B200", "10.0", 148, 1965000, 126 * MIB),
            H200_NVL | {36: 3996000, 37: 8192},
            8184,
        ),
        (
            card("NVIDIA A100-SXM-64GB", "8.0", 124, 1395000, 32 * MIB),
            H200_NVL | {36: 1640000, 37: 4096},
            1679,
        ),
        # A name of the table, but of another chip
        (
            card("NVIDIA GeForce RTX 3080", "8.6", 70, 1710000, 6 * MIB),
            RTX_4070 | {36: 9501000, 37: 384},
            912,
        ),
    ],
)
def test_no_card_takes_the_name_or_figures_of_another(
    plug: Any, device: Any, attributes: dict[int, int], gbs: int
) -> None:
    plug(device, attributes)
    rates = target.hardware("cuda")
    assert rates.name == device.device_name
    assert rates.cores == device.multi_processor_count
    assert rates.clock_ghz == pytest.approx(device.max_clock_rate / 1e6)
    assert (rates.l2_bytes, rates.dram_bandwidth_gbs) == (device.l2_cache_size_bytes, gbs)
    assert rates.max_blocks_per_core == attributes[106]


def test_limits_that_differ_from_the_architecture_s_are_the_device_s(plug: Any) -> None:
    small = {12: 32768, 39: 1024, 81: 65536, 82: 32768, 106: 8}
    plug(rtx_4070(), RTX_4070 | small)
    rates = target.hardware("cuda")
    assert (rates.registers_per_block, rates.registers_per_core) == (32768, 32768)
    assert (rates.max_threads_per_core, rates.max_blocks_per_core) == (1024, 8)
    assert rates.shared_bytes_per_core == 65536


@pytest.mark.parametrize("attributes", [None, {36: 0, 37: 128}])
def test_what_a_device_does_not_report_is_typical_of_its_architecture(
    plug: Any, attributes: dict[int, int] | None
) -> None:
    """The driver is away, or the memory clock unknown, as on a system on a chip."""
    plug(card("Orin", "8.7", 16, 1300000, 4 * MIB), attributes)
    rates = target.hardware("cuda")
    typical = gpu.TABLE["rtx-a5000"]
    assert (rates.name, rates.cores, rates.clock_ghz, rates.l2_bytes) == ("Orin", 16, 1.3, 4 * MIB)
    assert rates.dram_bandwidth_gbs == typical.dram_bandwidth_gbs * 16 / typical.sms == 192
    assert rates.max_threads_per_core == 1536


def test_tvm_s_devices_have_the_properties_that_are_read() -> None:
    properties = vars(type(tvm.cuda(0)))
    assert set(gpu._TVM_PROPERTIES.values()) <= set(properties)


# ---------------------------------------------------------------- cards of the table


@pytest.mark.slow("opens the programs of every workload of the model")
def test_an_h200_stays_what_the_shipped_model_was_trained_for(plug: Any) -> None:
    recorded = {record.device for record in dataset.read(DATA).records}
    limits = {json.loads(each)["shared_bytes_per_block"] for each in recorded}
    assert limits == {49152, 232448}  # of static memory alone, and of dynamic memory
    devices = [json.loads(each) | {"shared_bytes_per_block": 232448} for each in recorded]
    assert all(each == json.loads(felix_bridge.device_text("h200")) for each in devices)
    driver = plug(card("NVIDIA H200", "9.0", 132, 1980000, 60 * MIB), H200_NVL)
    assert devices[0] == json.loads(felix_bridge.device_text("cuda"))
    assert not driver.queried
    attributes = json.loads(target.describe(target.parse("cuda")))
    del attributes["host"], attributes["keys"], attributes["tag"]
    assert attributes == {
        "kind": "cuda",
        "arch": "sm_90",
        "model": "h200",
        "l2_cache_size_bytes": 60 * MIB,
        "max_num_threads": 1024,
        "max_shared_memory_per_block": 232448,
        "max_threads_per_block": 1024,
        "registers_per_block": 65536,
        "thread_warp_size": 32,
    }


@pytest.mark.parametrize(
    "tag, figures",
    [
        ("h200", ("NVIDIA H200", 132, 1.98, 4800, 50 * MIB)),
        ("h100", ("NVIDIA H100 SXM", 132, 1.98, 3350, 50 * MIB)),
        ("h100-pcie", ("NVIDIA H100 PCIe", 114, 1.755, 2000, 50 * MIB)),
        ("a100", ("NVIDIA A100 80GB", 108, 1.41, 2039, 40 * MIB)),
        ("a10g", ("NVIDIA A10G", 80, 1.71, 600, 6 * MIB)),
        ("nvidia/geforce-rtx-4090", ("NVIDIA GeForce RTX 4090", 128, 2.52, 1008, 72 * MIB)),
    ],
)
def test_tags_of_the_table_do_not_depend_on_this_machine(
    plug: Any, tag: str, figures: tuple[Any, ...]
) -> None:
    for device in (None, rtx_4070()):
        plug(device, RTX_4070)
        got = target.hardware(tag)
        assert figures == (
            got.name,
            got.cores,
            got.clock_ghz,
            got.dram_bandwidth_gbs,
            got.l2_bytes,
        )


# ---------------------------------------------------------------- cards that are not here


@pytest.mark.parametrize(
    "spec, name, like",
    [
        ("nvidia/geforce-rtx-3070-ti", "NVIDIA GeForce RTX 3070 Ti", "rtx-a5000"),
        ("nvidia/nvidia-a40", "NVIDIA A40", "rtx-a5000"),
        ("cuda -arch sm_86 -model rtx-a9999", "rtx-a9999", "rtx-a5000"),
        ("cuda -arch sm_89", "unknown sm_89 GPU", "l4"),
    ],
)
def test_absent_cards_have_their_name_and_typical_rates(spec: str, name: str, like: str) -> None:
    rates, typical = target.hardware(spec), gpu.TABLE[like]
    assert rates.name == name
    assert (rates.cores, rates.clock_ghz) == (typical.sms, typical.clock_ghz)
    assert rates.dram_bandwidth_gbs == typical.dram_bandwidth_gbs


def test_a_tvm_tag_has_its_l2() -> None:
    assert target.hardware("nvidia/geforce-rtx-5060-ti").l2_bytes == 32 * MIB


def test_limits_of_capabilities_that_are_not_listed_are_those_of_the_nearest_older() -> None:
    assert target.hardware("cuda -arch sm_103").max_threads_per_core == 2048
    assert target.hardware("cuda -arch sm_50").max_threads_per_core == 2048


def test_a_user_may_describe_an_absent_card() -> None:
    rates = target.hardware(
        "cuda -arch sm_89 -model rtx-4070 -feature.sms 46 -feature.clock_khz 2475000"
        " -feature.memory_clock_khz 10501000 -feature.memory_bus_bits 192"
        " -l2_cache_size_bytes 37748736 -feature.fp32_lanes_per_sm 64 -feature.l1_bytes 65536"
    )
    assert (rates.name, rates.cores, rates.clock_ghz) == ("rtx-4070", 46, 2.475)
    assert (rates.dram_bandwidth_gbs, rates.l2_bytes) == (504, 36 * MIB)
    assert (rates.peak_fp32_gflops, rates.l1_bytes) == (14572.8, 65536)


def test_a_user_may_correct_a_card_of_the_table() -> None:
    table, rates = target.hardware("h200"), target.hardware("h200 -feature.clock_khz 1500000")
    assert rates == dataclasses.replace(table, clock_ghz=1.5, peak_fp32_gflops=50688.0)


def test_options_come_before_what_the_device_reports(plug: Any) -> None:
    plug(rtx_4070(), RTX_4070)
    made = target.parse("cuda -max_threads_per_block 512")
    assert (made.attrs["max_threads_per_block"], made.attrs["model"]) == (512, "rtx-4070")
    assert target.parse("cuda -arch sm_80").attrs["arch"] == "sm_80"


def test_features_of_a_card_outside_the_table_are_finite(plug: Any) -> None:
    plug(rtx_4070(), RTX_4070)
    task = workloads.gemm(64, 64, 64, target="cuda")
    plug(None)
    sketch = sketches(task)[0]
    values = sketch.formulas.exact(sketch.sample(4, seed=0))
    assert np.isfinite(values).all()


def test_what_is_measured_is_named_by_the_card_that_is_here(
    plug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug(rtx_4070(), RTX_4070)
    monkeypatch.setattr(tvm.runtime, "device", lambda kind, index: tvm.cuda(index))
    monkeypatch.setattr(devices, "version", lambda: (13, 0))
    archs: list[str] = []
    monkeypatch.setattr(nvrtc, "check", lambda arch, driver: archs.append(arch))
    for text in ("cuda", "cuda -arch sm_89"):
        device = local.of(target.parse(text))
        assert (device.kind, device.name) == ("cuda", "NVIDIA GeForce RTX 4070")
        assert device.cache_bytes == 36 * MIB
    wrong = "target is for NVIDIA L4, the GPU here is NVIDIA GeForce RTX 4070: tune for 'cuda'"
    with pytest.raises(errors.MeasureError, match=wrong):
        local.of(target.parse("l4"))
    assert archs == ["sm_89"] * 3
