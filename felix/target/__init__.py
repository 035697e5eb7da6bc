"""Targets: what a user writes, the TVM Target it means, and the limits and rates of the hardware.

In: a target string.
Out: TVM's target, `Hardware`: cores, rates, limits.
From: `measure`, `templates`, `frontend`, `space`.

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

from felix import errors, names
from felix.target import attributes, cpu
from felix.target import gpu as gpus

TargetLike: TypeAlias = str | Mapping[str, Any] | Target

#: CUDA architecture used when neither the user nor a local GPU says another one.
DEFAULT_ARCH = "sm_90"

#: Characters of a target's text; JSON of a GPU with all its attributes has about 700.
MAX_CHARACTERS = 4000
#: Limits of one CUDA block that are the same on all GPUs.
_CUDA_LIMITS = {
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
    "registers_per_block": 65536,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """Limits and rates of a target. A core is a CPU core or a GPU multiprocessor (SM).

    Those that have defaults are of launches: a CPU has none.
    """

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
    warp_size: int = 1  #: threads that execute together
    max_threads_per_block: int = 1
    max_threads_per_core: int = 1
    max_blocks_per_core: int = 1
    registers_per_block: int = 0  #: 32-bit registers
    registers_per_core: int = 0
    shared_bytes_per_block: int = 0  #: what one block may use, dynamic included
    shared_bytes_per_core: int = 0

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
    return _complete(explicit_attributes(spec))


def parse_of_client(text: str) -> Target:
    """As `parse`, of a client of the service, who may set less (`felix.target.attributes`).

    Raises:
        TargetError: see `parse`, or an option that clients may not set.
    """
    config = explicit_attributes(text)
    usual = _plain(_complete({"kind": config["kind"]}).export())
    attributes.check_client(config, usual)
    return _complete(config)


def explicit_attributes(spec: TargetLike) -> dict[str, Any]:
    """The attributes that a specification sets itself, before `parse` completes them.

    Raises:
        TargetError: see `parse`.
    """
    try:
        config = _config(spec)
    except RecursionError:
        raise errors.TargetError("the target is nested too deeply") from None
    kind = config.get("kind")
    if kind not in ("llvm", "cuda"):
        raise errors.TargetError(f"unsupported target kind {names.quoted(kind)}; use llvm or cuda")
    if isinstance(config.get("host"), str):
        config["host"] = _config(config["host"])
    attributes.check(config)
    return config


def refuse_foreign(target: Target) -> None:
    """Refuse a target whose machine code for a CPU this machine cannot run.

    Raises:
        TargetError: the message says what is missing.
    """
    full = target if target.kind.name == "llvm" else target.host
    if full is not None:
        cpu.refuse_foreign(full, parse("llvm"))


def _complete(config: dict[str, Any]) -> Target:
    is_llvm = config["kind"] == "llvm"
    return _make(_complete_llvm(config) if is_llvm else _complete_cuda(config))


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
        raise errors.TargetError(
            f"a target is a text, a dict or a TVM Target, got {names.quoted(spec)}"
        )
    text = spec.strip()
    if len(text) > MAX_CHARACTERS:
        raise errors.TargetError(
            f"a target has {MAX_CHARACTERS} characters at most, this one has {len(text)}"
        )
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
            # Of most cards, tags say the limit of static shared memory.
            config.pop("max_shared_memory_per_block", None)
        return config
    if re.fullmatch(r"sm_\d+[a-z]?", head):
        raise errors.TargetError(f"{head} is an architecture; use 'cuda -arch {head}'")
    known = ", ".join(["llvm", "cuda", *gpus.TABLE])
    raise errors.TargetError(
        f"unknown target {names.quoted(head)}; use a TVM tag or one of {known}"
    )


def _options(spec: str, words: list[str]) -> Iterator[tuple[str, Any]]:
    """The `-name value` and `-name=value` options of a target text."""
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        if not name.startswith("-"):
            raise errors.TargetError(
                f"target {names.quoted(spec)}: {names.quoted(words[position])} is not an option"
            )
        position += 1
        if not equals:
            if position == len(words):
                raise errors.TargetError(
                    f"target {names.quoted(spec)}: {names.quoted(name)[1:-1]} has no value"
                )
            value = words[position]
            position += 1
        key = name.lstrip("-")
        yield key, _option_value(spec, key, value)


def _option_value(spec: str, key: str, value: str) -> Any:
    if key == "mattr":
        return value.split(",")
    if key not in attributes.LARGEST:
        return value
    try:
        return int(value)
    except ValueError:
        raise errors.TargetError(
            f"target {names.quoted(spec)}: {key} must be an integer, got {names.quoted(value)}"
        ) from None


def _complete_llvm(config: dict[str, Any]) -> dict[str, Any]:
    local = codegen.llvm_get_system_triple()
    config.setdefault("mtriple", local)
    if _machine(config["mtriple"]) == _machine(local) and "mcpu" not in config:
        config["mcpu"] = codegen.llvm_get_system_cpu()
        hidden = cpu.hidden(config["mcpu"])
        if hidden:
            config["mattr"] = [*config.get("mattr", ()), *hidden]
    if not codegen.llvm_is_valid_cpu(config.get("mcpu", "generic"), config["mtriple"]):
        raise errors.TargetError(
            f"LLVM knows no CPU {names.quoted(config.get('mcpu'))} "
            f"for {names.quoted(config['mtriple'])}"
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
                f"target: GPU model {names.quoted(model)} is not in the table; give its arch, too"
            )
        else:
            config = (gpus.local(0) or {"arch": DEFAULT_ARCH}) | config
    config = _CUDA_LIMITS | config
    family = gpus.family(config)
    largest = min(family.shared_bytes_per_block, family.shared_bytes_per_sm)
    shared_bytes = config.get("max_shared_memory_per_block", largest)
    config["max_shared_memory_per_block"] = min(shared_bytes, largest)
    config.setdefault("host", {"kind": "llvm", "mtriple": codegen.llvm_get_system_triple()})
    return config


def _make(config: dict[str, Any]) -> Target:
    attributes.check(config)
    try:
        return Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        raise errors.TargetError(
            f"TVM does not accept this target: {names.quoted(_reason(error))}"
        ) from error


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0].split(". Target creation from")[0]


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
    )


def _vector_lanes(target: Target) -> int:
    features = cpu.of(target)
    if "avx512f" in features:
        return 16
    return 8 if features & {"avx", "avx2", "sve"} else 4
