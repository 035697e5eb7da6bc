"""Targets: what users may write, what TVM gets, hardware figures, errors."""

from __future__ import annotations

import dataclasses
import os
import types

import pytest
import tvm

from felix import errors, target
from felix.target import cpu, gpu

CUDA_LIMITS = {"max_threads_per_block": 1024, "thread_warp_size": 32, "registers_per_block": 65536}


def test_llvm_is_this_machine():
    made = target.parse("llvm")
    assert made.attrs["num-cores"] == len(os.sched_getaffinity(0))
    assert made.attrs["mtriple"] == tvm.target.codegen.llvm_get_system_triple()
    assert made.attrs["mcpu"] == tvm.target.codegen.llvm_get_system_cpu()


@pytest.mark.parametrize(
    "spec, attrs",
    [
        ("llvm -num-cores 4", {"num-cores": 4}),
        ("llvm --num-cores=4 -mcpu=haswell", {"num-cores": 4, "mcpu": "haswell"}),
        ("llvm -mcpu haswell -mattr=+avx2,-fma", {"mcpu": "haswell", "mattr": ["+avx2", "-fma"]}),
        ({"kind": "llvm", "num-cores": 3}, {"num-cores": 3}),
        ('{"kind": "llvm", "num-cores": 3}', {"num-cores": 3}),
        (tvm.target.Target({"kind": "llvm", "mcpu": "znver3"}), {"mcpu": "znver3"}),
        ("llvm -mtriple aarch64-linux-gnu", {"mtriple": "aarch64-linux-gnu"}),
        ("aws/cpu/c5.4xlarge", {"mcpu": "skylake-avx512", "num-cores": 8}),
    ],
)
def test_llvm_spellings(spec, attrs):
    made = target.parse(spec)
    assert made.kind.name == "llvm"
    assert "num-cores" in made.attrs
    for name, value in attrs.items():
        got = made.attrs[name]
        assert (list(got) if isinstance(value, list) else got) == value


@pytest.mark.parametrize(
    "spec, arch, model",
    [
        ("cuda -arch sm_80", "sm_80", None),
        ("cuda -arch=sm_86 -model=a10g", "sm_86", "a10g"),
        ("cuda -model h200", "sm_90", "h200"),
        ("h200", "sm_90", "h200"),
        ("A100", "sm_80", "a100"),
        ("nvidia/nvidia-h100", "sm_90", "h100"),
        ("nvidia/geforce-rtx-4090", "sm_89", "rtx-4090"),
        ("nvidia/quadro-p4000", "sm_61", "quadro-p4000"),
        ({"tag": "nvidia/nvidia-a100"}, "sm_80", "a100"),
        ({"kind": "cuda", "arch": "sm_90a"}, "sm_90a", None),
    ],
)
def test_cuda_spellings(spec, arch, model):
    made = target.parse(spec)
    assert made.kind.name == "cuda"
    assert (made.attrs["arch"], made.attrs.get("model")) == (arch, model)
    assert {name: made.attrs[name] for name in CUDA_LIMITS} == CUDA_LIMITS
    assert made.host.kind.name == "llvm"


@pytest.mark.parametrize(
    "spec, kib",
    [
        ("h200", 227),
        ("cuda -arch sm_80", 163),
        ("a10g", 99),
        ("nvidia/geforce-rtx-4090", 99),
        ("nvidia/nvidia-a100", 163),  # the tag says 48 KiB, or more than a block may have
        ("t4", 64),
        ("v100", 96),
        ("nvidia/quadro-p4000", 48),
        ("cuda -arch sm_90 -max_shared_memory_per_block 49152", 48),
        ({"kind": "cuda", "arch": "sm_86", "max_shared_memory_per_block": 32768}, 32),
        ({"kind": "cuda", "arch": "sm_86", "max_shared_memory_per_block": 232448}, 99),
    ],
)
def test_shared_memory_of_a_block_is_the_card_s_or_less(spec, kib):
    made = target.parse(spec)
    assert made.attrs["max_shared_memory_per_block"] == kib * 1024
    assert target.hardware(spec).shared_bytes_per_block == kib * 1024
    assert target.describe(target.parse(target.describe(made))) == target.describe(made)


def test_cuda_without_a_gpu_is_the_documented_architecture(monkeypatch):
    monkeypatch.setattr(tvm, "cuda", lambda index: types.SimpleNamespace(exist=False))
    made = target.parse("cuda")
    assert made.attrs["arch"] == target.DEFAULT_ARCH == "sm_90"
    assert "model" not in made.attrs
    assert [device.target.kind.name for device in target.devices()] == ["llvm"]


@pytest.mark.parametrize(
    "spec, words",
    [
        ("foo", ["unknown target 'foo'", "llvm, cuda, h200"]),
        ("nvidia/h1000", ["unknown target"]),
        ("sm_90", ["use 'cuda -arch sm_90'"]),
        ("", ["a target is a text"]),
        (None, ["a target is a text"]),
        (7, ["a target is a text"]),
        ("llvm -mcpu", ["-mcpu has no value"]),
        ("llvm 4", ["'4' is not an option"]),
        ("llvm -num-cores many", ["num-cores must be an integer", "'many'"]),
        ("llvm -num-cores 0", ["num-cores must be a positive integer"]),
        ({"kind": "llvm", "num-cores": True}, ["num-cores must be a positive integer"]),
        ("llvm -bogus 1", ["TVM does not accept", "bogus"]),
        ("llvm -mcpu pentium99", ["no CPU 'pentium99'"]),
        ("cuda -arch 90", ["arch must look like sm_90", "'90'"]),
        ("cuda -model rtx-4070", ["'rtx-4070' is not in the table", "give its arch"]),
        ("cuda -arch sm_89 -feature.sms many", ["feature.sms must be an integer", "'many'"]),
        ({"kind": "cuda", "arch": "sm_89", "feature.sms": 0}, ["feature.sms must be a positive"]),
        ("nvidia/geforce-rtx-4070", ["unknown target 'nvidia/geforce-rtx-4070'"]),
        ({"kind": "cuda", "max_threads_per_block": 0}, ["max_threads_per_block"]),
        ({"kind": "metal"}, ["unsupported target kind 'metal'", "llvm or cuda"]),
        ({}, ["unsupported target kind None"]),
        ("{broken", ["not valid JSON"]),
        ({"kind": "cuda", "host": 5}, ["TVM does not accept"]),
    ],
)
def test_bad_targets_are_one_clear_line(spec, words):
    with pytest.raises(errors.TargetError) as caught:
        target.parse(spec)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_hidden_cpu_features_are_switched_off(monkeypatch):
    monkeypatch.setattr(cpu, "flags", lambda: frozenset({"avx", "avx2", "fma"}))
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "znver4")
    if tvm.target.codegen.llvm_get_system_triple().startswith("x86_64"):
        made = target.parse("llvm")
        assert "-avx512f" in made.attrs["mattr"]
        assert "-avx2" not in made.attrs["mattr"]
        assert target.hardware(made).vector_lanes == 8


@pytest.mark.parametrize(
    "mcpu, lanes", [("x86-64", 4), ("haswell", 8), ("skylake-avx512", 16), ("znver4", 16)]
)
def test_cpu_vector_lanes(mcpu, lanes):
    spec = {"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-linux-gnu", "num-cores": 4}
    rates = target.hardware(spec)
    assert rates.vector_lanes == lanes
    assert rates.peak_fp32_gflops == pytest.approx(4 * rates.clock_ghz * lanes * 2 * 2)
    assert (rates.kind, rates.cores, rates.is_gpu) == ("cpu", 4, False)


def test_local_cpu_caches_come_from_the_system(tmp_path, monkeypatch):
    caches = ("1 Data 48K", "1 Instruction 32K", "2 Unified 2048K", "3 Unified 30M")
    for number, texts in enumerate(caches):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "coherency_line_size").write_text("128\n")
        for name, text in zip(("level", "type", "size"), texts.split(), strict=True):
            (folder / name).write_text(text + "\n")
    monkeypatch.setattr(cpu, "CACHE_FOLDER", tmp_path)
    rates = target.hardware("llvm")
    assert (rates.l1_bytes, rates.l2_bytes, rates.l3_bytes) == (48 * 2**10, 2**21, 30 * 2**20)
    assert rates.cache_line_bytes == 128
    monkeypatch.setattr(cpu, "CACHE_FOLDER", tmp_path / "absent")
    assert target.hardware("llvm").l1_bytes == 32 * 2**10


# Peak float32 rates of NVIDIA's data sheets, in TFLOP/s
@pytest.mark.parametrize(
    "name, tflops",
    [
        ("h200", 67),
        ("h100", 67),
        ("h100-pcie", 51),
        ("h100-nvl", 60),
        ("a100", 19.5),
        ("a10g", 35),
        ("rtx-a5000", 27.8),
        ("rtx-3090", 35.6),
        ("rtx-4090", 82.6),
        ("l4", 30.3),
        ("l40s", 91.6),
        ("rtx-5090", 104.8),
        ("v100", 15.7),
        ("t4", 8.1),
    ],
)
def test_gpu_peak_rates_match_the_data_sheets(name, tflops):
    rates = target.hardware(name)
    assert rates.peak_fp32_gflops / 1000 == pytest.approx(tflops, rel=0.02)
    assert rates.is_gpu


def test_every_figure_of_every_gpu_is_positive():
    for name in gpu.TABLE:
        figures = dataclasses.asdict(target.hardware(name))
        assert figures.pop("l3_bytes") == 0
        assert all(value for value in figures.values()), name
        assert figures["shared_bytes_per_block"] <= figures["shared_bytes_per_core"]
        assert figures["l1_bytes"] < figures["l2_bytes"]


@pytest.mark.parametrize(
    "device, name",
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H200 MIG 1g.18gb", "h200-mig-1g-18gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-80gb-hbm3-mig-1g-10gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX A5000", "rtx-a5000"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop-gpu"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Quadro P4000", "quadro-p4000"),
    ],
)
def test_driver_names_map_to_the_table(device, name):
    assert gpu.slug(device) == name
