"""Targets: what a user writes, the TVM Target it means, and the limits and rates of the hardware.

A target is written as "llvm", "cuda", "cuda -arch sm_80", "llvm -num-cores 4 -mcpu znver4", a
GPU of the table below ("h100", "a10g", "nvidia/nvidia-h100"), any TVM tag, a dict, JSON text, or
a TVM Target. `parse` completes it with what MetaSchedule needs:

- llvm: mtriple, mcpu and num-cores of this machine where the target leaves them out;
- cuda: arch, thread, shared-memory and register limits, and an llvm host. The attribute `model`
  names the GPU. Plain "cuda" is the local GPU if there is one, else `DEFAULT_ARCH`; a target
  that says its arch or model is never looked up on this machine, so it is the same everywhere.
  Attributes `feature.*` (`felix.target.gpu`) hold what a GPU outside the table reports of itself.

`hardware` gives a `Hardware`; units are in the field names (bytes, GB/s = 1e9 B/s, GFLOP/s,
GHz). CPU values come from the operating system where the target is this machine's CPU; what
the system does not report (DRAM bandwidth, FMA units) is a stated default, so rates are for
comparing schedules, not promises.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import tvm
from tvm.target import Target, codegen

from felix import errors
from felix.target import cpu
from felix.target import gpu as gpus

TargetLike: TypeAlias = str | Mapping[str, Any] | Target

#: CUDA architecture used when neither the user nor a local GPU says another one.
DEFAULT_ARCH = "sm_90"

_INTEGERS = (
    "num-cores",
    "vector-width",
    "max_num_threads",
    *gpus.INTEGERS,
)
#: Static limits of one CUDA block; TVM kernels use static shared memory, so 48 KiB on all GPUs.
_CUDA_LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
    "registers_per_block": 65536,
}
#: LLVM feature -> flag of /proc/cpuinfo. A virtual machine may hide what its CPU model has.
_CPU_FLAGS = {
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512cd": "avx512cd",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avxvnni": "avx_vnni",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """Limits and rates of a target. A core is a CPU core or a GPU multiprocessor (SM)."""

    name: str
    kind: str  #: "cpu" or "gpu"
    cores: int
    clock_ghz: float
    vector_lanes: int  #: float32 values of one vector instruction (GPU: of one 16-byte access)
    peak_fp32_gflops: float  #: all cores, a multiply-add counts two
    dram_bandwidth_gbs: float
    cache_line_bytes: int  #: GPU: the 128-byte line of a coalesced access
    l1_bytes: int  #: per core; GPU: the part shared with shared memory
    l2_bytes: int  #: CPU: per core; GPU: the whole chip
    l3_bytes: int  #: the whole chip; 0 where there is none
    warp_size: int  #: threads that execute together; 1 on a CPU
    max_threads_per_block: int  #: 1 on a CPU
    max_threads_per_core: int
    max_blocks_per_core: int
    registers_per_block: int  #: 32-bit registers; 0 on a CPU (not a resource of a launch)
    registers_per_core: int
    shared_bytes_per_block: int  #: what one block may use; 0 on a CPU
    shared_bytes_per_core: int

    @property
    def is_gpu(self) -> bool:
        """Whether programs are launched as grids of thread blocks."""
        return self.kind == "gpu"


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Something this machine can tune for."""

    name: str
    target: Target
    hardware: Hardware


def parse(spec: TargetLike) -> Target:
    """The complete TVM Target of a user's specification.

    Raises:
        TargetError: an unknown kind, tag or option, or a bad value.
    """
    config = _config(spec)
    kind = config.get("kind")
    if kind == "llvm":
        return _make(_complete_llvm(config))
    if kind == "cuda":
        return _make(_complete_cuda(config))
    raise errors.TargetError(f"unsupported target kind {kind!r}; use llvm or cuda")


def describe(target: Target) -> str:
    """One canonical JSON line of the target, equal for equal targets."""
    return json.dumps(_plain(target.export()), sort_keys=True, separators=(",", ":"))


def _config(spec: TargetLike) -> dict[str, Any]:
    """The attributes the user gave, as a dict with at least `kind`."""
    if isinstance(spec, Target):
        return _without_empty_tag(_plain(spec.export()))
    if isinstance(spec, Mapping):
        config: dict[str, Any] = _plain(spec)
        if "tag" in config and "kind" not in config:
            return _tagged(str(config.pop("tag"))) | config
        return _without_empty_tag(config)
    if not isinstance(spec, str) or not spec.strip():
        raise errors.TargetError(f"a target is a text, a dict or a TVM Target, got {spec!r}")
    text = spec.strip()
    if text.startswith("{"):
        return _config(_json(text))
    head, *options = text.split()
    return _tagged(head) | dict(_options(spec, options))


def _without_empty_tag(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "tag" or value}


def _json(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise errors.TargetError(f"the target is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise errors.TargetError("a JSON target must be an object")
    return config


def _tagged(head: str) -> dict[str, Any]:
    """A kind, a GPU of our table, or a TVM tag, as attributes."""
    if head in ("llvm", "cuda"):
        return {"kind": head}
    short = head.lower().removeprefix("nvidia/").removeprefix("nvidia-").removeprefix("geforce-")
    if short in gpus.TABLE:
        gpu = gpus.TABLE[short]
        return {"kind": "cuda", "arch": gpu.arch, "model": short}
    if head in tvm.target.list_tags():
        config = _without_empty_tag(_plain(Target(head).export()))
        if config["kind"] == "cuda":
            config |= {"model": short, "feature.name": gpus.title(head)}
        return config
    known = ", ".join(["llvm", "cuda", *gpus.TABLE])
    raise errors.TargetError(f"unknown target {head!r}; use a TVM tag or one of {known}")


def _options(spec: str, words: list[str]) -> Iterator[tuple[str, Any]]:
    """The `-name value` and `-name=value` options of a target text."""
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        if not name.startswith("-"):
            raise errors.TargetError(f"target {spec!r}: {words[position]!r} is not an option")
        position += 1
        if not equals:
            if position == len(words):
                raise errors.TargetError(f"target {spec!r}: {name} has no value")
            value = words[position]
            position += 1
        key = name.lstrip("-")
        yield key, _option_value(spec, key, value)


def _option_value(spec: str, key: str, value: str) -> Any:
    if key == "mattr":
        return value.split(",")
    if key not in _INTEGERS:
        return value
    try:
        return int(value)
    except ValueError:
        raise errors.TargetError(
            f"target {spec!r}: {key} must be an integer, got {value!r}"
        ) from None


def _complete_llvm(config: dict[str, Any]) -> dict[str, Any]:
    local = codegen.llvm_get_system_triple()
    config.setdefault("mtriple", local)
    if _machine(config["mtriple"]) == _machine(local) and "mcpu" not in config:
        config["mcpu"] = codegen.llvm_get_system_cpu()
        hidden = _hidden_features(config["mcpu"])
        if hidden:
            config["mattr"] = [*config.get("mattr", ()), *hidden]
    if not codegen.llvm_is_valid_cpu(config.get("mcpu", "generic"), config["mtriple"]):
        raise errors.TargetError(
            f"LLVM knows no CPU {config.get('mcpu')!r} for {config['mtriple']!r}"
        )
    config.setdefault("num-cores", cpu.available_cores())
    return config


def _complete_cuda(config: dict[str, Any]) -> dict[str, Any]:
    if "arch" not in config:
        model = config.get("model")
        if model in gpus.TABLE:
            config["arch"] = gpus.TABLE[model].arch
        elif model is not None:
            raise errors.TargetError(
                f"target: GPU model {model!r} is not in the table; give its arch, too"
            )
        else:
            config = (gpus.local(0) or {"arch": DEFAULT_ARCH}) | config
    if not re.fullmatch(r"sm_\d{2,3}[af]?", str(config["arch"])):
        raise errors.TargetError(f"arch must look like sm_90, got {config['arch']!r}")
    config = _CUDA_LIMITS | config
    # Static shared memory ends at 48 KiB whatever a tag says of the dynamic limit.
    limit = _CUDA_LIMITS["max_shared_memory_per_block"]
    config["max_shared_memory_per_block"] = min(config["max_shared_memory_per_block"], limit)
    config.setdefault("host", {"kind": "llvm", "mtriple": codegen.llvm_get_system_triple()})
    return config


def _make(config: dict[str, Any]) -> Target:
    for name in _INTEGERS:
        value = config.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise errors.TargetError(f"target: {name} must be a positive integer, got {value!r}")
    try:
        return Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0].split(". Target creation from")[0]
        raise errors.TargetError(f"TVM does not accept this target: {reason}") from error


def _plain(value: Any) -> Any:
    """TVM containers as plain Python ones."""
    if isinstance(value, Target):
        return _plain(value.export())
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "__iter__"):
        return [_plain(item) for item in value]
    return value


def _machine(triple: str) -> str:
    return triple.partition("-")[0]


def _features(target: Target) -> frozenset[str]:
    """LLVM features of the target's CPU model, with `mattr` applied."""
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    for item in target.attrs.get("mattr", ()):
        (features.add if item.startswith("+") else features.discard)(item[1:])
    return frozenset(features)


def _hidden_features(mcpu: str) -> list[str]:
    """`mattr` items that switch off what the CPU model has and this machine hides."""
    flags = cpu.flags()
    if not flags:
        return []
    features = _features(Target({"kind": "llvm", "mcpu": mcpu}))
    return [f"-{name}" for name, flag in _CPU_FLAGS.items()
            if name in features and flag not in flags]  # fmt: skip


def devices() -> list[Device]:
    """What this machine can tune for: its CPU, then its CUDA devices."""
    targets = [parse("llvm")]
    index = 0
    while config := gpus.local(index):
        targets.append(parse(config))
        index += 1
    with_rates = [(target, hardware(target)) for target in targets]
    return [Device(rates.name, target, rates) for target, rates in with_rates]


def hardware(target: TargetLike) -> Hardware:
    """Limits and rates of a target: of the GPU it names or describes, or of this machine's CPU."""
    full = parse(target)
    return _gpu_hardware(full) if full.kind.name == "cuda" else _cpu_hardware(full)


def _gpu_hardware(target: Target) -> Hardware:
    attrs = target.attrs
    gpu, family = gpus.find(attrs), gpus.family(attrs)
    cores_fp32 = gpu.sms * family.fp32_lanes_per_sm
    return Hardware(
        name=gpu.name,
        kind="gpu",
        cores=gpu.sms,
        clock_ghz=gpu.clock_ghz,
        vector_lanes=4,
        peak_fp32_gflops=round(2 * cores_fp32 * gpu.clock_ghz, 1),
        dram_bandwidth_gbs=gpu.dram_bandwidth_gbs,
        cache_line_bytes=128,
        l1_bytes=family.l1_bytes,
        l2_bytes=gpu.l2_bytes,
        l3_bytes=0,
        warp_size=int(attrs["thread_warp_size"]),
        max_threads_per_block=int(attrs["max_threads_per_block"]),
        max_threads_per_core=family.max_threads_per_sm,
        max_blocks_per_core=family.max_blocks_per_sm,
        registers_per_block=int(attrs["registers_per_block"]),
        registers_per_core=family.registers_per_sm,
        shared_bytes_per_block=int(attrs["max_shared_memory_per_block"]),
        shared_bytes_per_core=family.shared_bytes_per_sm,
    )


#: No file of the OS has the DRAM bandwidth: two channels of DDR4-3200 at half their peak.
_DEFAULT_CPU_DRAM_GBS = 25.0
_FMA_UNITS = 2


def _cpu_hardware(target: Target) -> Hardware:
    local = parse("llvm")
    same = target.attrs.get("mcpu") == local.attrs.get("mcpu")
    is_local = same and target.attrs["mtriple"] == local.attrs["mtriple"]
    l1, l2, l3, line = cpu.caches() if is_local else cpu.DEFAULT_CACHES
    clock_ghz = cpu.clock_ghz() if is_local else cpu.DEFAULT_GHZ
    lanes = _vector_lanes(target)
    cores = int(target.attrs["num-cores"])
    return Hardware(
        name=str(target.attrs.get("mcpu", "generic")),
        kind="cpu",
        cores=cores,
        clock_ghz=clock_ghz,
        vector_lanes=lanes,
        peak_fp32_gflops=round(cores * clock_ghz * lanes * 2 * _FMA_UNITS, 1),
        dram_bandwidth_gbs=_DEFAULT_CPU_DRAM_GBS,
        cache_line_bytes=line,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
        warp_size=1,
        max_threads_per_block=1,
        max_threads_per_core=1,
        max_blocks_per_core=1,
        registers_per_block=0,
        registers_per_core=0,
        shared_bytes_per_block=0,
        shared_bytes_per_core=0,
    )


def _vector_lanes(target: Target) -> int:
    features = _features(target)
    if "avx512f" in features:
        return 16
    return 8 if features & {"avx", "avx2", "sve"} else 4
