"""Attributes of targets that attack: LLVM's options, figures out of range, other machines."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import tvm

from felix import errors, target, workloads
from felix.measure import local
from felix.target import cpu

LONG = "x" * 10**6


@pytest.mark.parametrize(
    "spec",
    [
        "llvm -cl-opt=-info-output-file=/tmp/felix-attack",
        {"kind": "llvm", "cl-opt": ["-info-output-file=/tmp/felix-attack"]},
        "llvm -jit=orcjit",
        "llvm -libs=mkl",
        "llvm -system-lib=1",
        "llvm -opt-level=0",
        "llvm -fast-math=1",
        {"kind": "llvm", "unknown": 1},
        {"kind": "llvm", "fcompile": "x"},
        {"kind": "cuda", "libs": ["cudnn"]},
        {"kind": "cuda", "host": {"kind": "llvm", "cl-opt": ["-debug"]}},
        {"kind": "cuda", "host": "llvm -cl-opt=-debug"},
        {"kind": "cuda", "host": {"kind": "cuda"}},
        {"kind": "cuda", "host": {"kind": "llvm", "host": {"kind": "llvm", "jit": "x"}}},
        {"kind": "cuda", "host": 7},
    ],
)
def test_options_that_are_not_listed_are_refused(spec: Any) -> None:
    with pytest.raises(errors.TargetError, match="TVM does not accept") as caught:
        target.parse(spec)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600
    if isinstance(spec, dict):
        with pytest.raises(errors.TargetError, match="TVM does not accept"):
            target.parse(json.dumps(spec))


def test_a_made_target_is_checked_as_well() -> None:
    made = tvm.target.Target({"kind": "llvm", "cl-opt": ["-fast-isel=true"]})
    with pytest.raises(errors.TargetError, match="'cl-opt'"):
        target.parse(made)


@pytest.mark.parametrize(
    "spec",
    [
        "llvm -num-cores 100000000",
        "llvm -num-cores " + "9" * 3000,
        "cuda -arch sm_90 -max_threads_per_block 100000",
        "cuda -arch sm_90 -max_shared_memory_per_block 99999999",
        "cuda -arch sm_90 -feature.sms 1000000",
        "cuda -arch sm_90 -thread_warp_size 4096",
        "cuda -arch sm_90x",
        "cuda -arch ../../x",
        "llvm -mcpu ../../etc/passwd",
        "llvm -mcpu a\u202eb",
        "llvm -mcpu " + "x" * 100,
        "llvm -mtriple " + "x" * 200,
        "llvm -mattr=avx2",
        "llvm -mattr=" + ",".join(["+avx2"] * 100),
        {"kind": "llvm", "mattr": "+avx2"},
        {"kind": "llvm", "mattr": [["+avx2"]]},
        {"kind": "llvm", "mcpu": ["znver4"]},
        {"kind": "llvm", "num-cores": 1.5},
        {"kind": "llvm", "num-cores": None},
        {"kind": "llvm", "keys": ["x" * 100]},
        {"kind": "llvm", "keys": "cpu"},
        {"kind": "llvm", "tag": "a\nb"},
        {"kind": "cuda", "arch": "sm_89", "model": "a\nb"},
        {"kind": "cuda", "arch": "sm_89", "feature.name": LONG},
        {"kind": "cuda", "arch": "sm_89", "feature.sms": "46"},
        LONG,
        "llvm " + LONG,
        "{" + LONG,
        '{"kind":' + "[" * 3000,
        {"kind": LONG},
        {"kind": ["llvm"]},
        {"tag": LONG},
        {LONG: 1, "kind": "llvm"},
    ],
    ids=lambda spec: str(spec)[:40],
)
def test_values_out_of_form_or_range_are_refused_in_one_line(spec: Any) -> None:
    with pytest.raises(errors.TargetError) as caught:
        target.parse(spec)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize("tag", ["raspberry-pi/4b-aarch64", "riscv/sifive-u74", "arm/rasp4b64"])
def test_tags_of_tvm_are_targets_still(tag: str) -> None:
    assert target.parse(tag).kind.name == "llvm"


@pytest.mark.parametrize(
    "text",
    [
        "llvm -mattr=+avx2",
        "llvm -mattr=-avx512f",
        "llvm -mtriple aarch64-linux-gnu",
        "llvm -vector-width 8",
        '{"kind":"llvm","keys":["arm_cpu"]}',
        '{"kind":"llvm","tag":"aws/cpu/c5.large"}',
        '{"kind":"cuda","host":{"kind":"llvm","mcpu":"haswell"}}',
        "raspberry-pi/4b-aarch64",
    ],
)
def test_clients_may_set_less(text: str) -> None:
    with pytest.raises(errors.TargetError, match="does not let clients set"):
        target.parse_of_client(text)


@pytest.mark.parametrize(
    "text",
    [
        "llvm",
        target.describe(target.parse("llvm")),
        "llvm -num-cores 2",
        "llvm -mcpu haswell",
        "cuda",
        "h100",
        "cuda -arch sm_80",
        "cuda -arch sm_89 -model rtx-4070 -feature.sms 46",
        "nvidia/quadro-p4000",
        "aws/cpu/c5.4xlarge",
    ],
)
def test_what_clients_may_set_means_the_same(text: str) -> None:
    assert target.describe(target.parse_of_client(text)) == target.describe(target.parse(text))


@pytest.fixture
def old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with AVX2 and without AVX-512."""
    if not tvm.target.codegen.llvm_get_system_triple().startswith("x86_64"):
        pytest.skip("names features of x86-64")
    flags = "avx avx2 fma sse4_1 sse4_2 ssse3 popcnt abm bmi1 bmi2 f16c movbe"
    monkeypatch.setattr(cpu, "flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "haswell")


@pytest.mark.parametrize(
    "spec, missing",
    [
        ("llvm -mcpu skylake-avx512", "avx512bw"),
        ("llvm -mattr=+avx512f", "avx512f"),
        ("llvm -mcpu znver4", "avx512"),
        ("llvm -mattr=+no-such-thing", "no-such-thing"),
        ("llvm -mtriple aarch64-linux-gnu", "aarch64-linux-gnu"),
    ],
)
def test_a_cpu_that_is_not_here_is_refused_before_its_code_runs(
    old_cpu: None, spec: str, missing: str
) -> None:
    """Its code ends in SIGILL, which counted as a failure of the machine."""
    with pytest.raises(errors.TargetError, match=missing):
        local.LocalPool(workloads.gemm(8, 8, 8, target=spec))


@pytest.mark.parametrize(
    "spec",
    [
        "llvm",
        "llvm -mcpu haswell",
        "llvm -mcpu x86-64",
        "llvm -mattr=+avx2,-fma",
        "llvm -mcpu skylake-avx512 -mattr=-avx512f,-avx512bw,-avx512cd,-avx512dq,-avx512vl",
        "cuda -arch sm_80",
    ],
)
def test_a_cpu_whose_code_runs_here_is_taken(old_cpu: None, spec: str) -> None:
    target.refuse_foreign(target.parse(spec))


def test_memory_of_a_container_counts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from felix.target import memory

    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CGROUP_LIMIT", limit)
    here, card = target.parse("llvm"), target.parse("h100")
    whole = memory.memory_bytes(here)
    limit.write_text("max\n")
    assert memory.memory_bytes(here) == whole
    limit.write_text(f"{1 << 30}\n")
    assert memory.memory_bytes(here) == memory.memory_bytes(card) == 1 << 30
