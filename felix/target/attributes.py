"""Attributes of targets: which there are, and their forms and ranges.

What is not listed is refused: LLVM's own options (`cl-opt`, `jit`) write files, libraries and
options of code generation change what is measured. A client of the service chooses less
(`CLIENT`): which device, and figures of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from felix import errors, names
from felix.target import gpu

#: Whole numbers: attribute -> the largest. No device of today or of the next years has more.
LARGEST = {
    "num-cores": 1024,
    "vector-width": 2048,
    "max_num_threads": 1024,
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 1 << 20,
    "thread_warp_size": 128,
    "registers_per_block": 1 << 18,
    "l2_cache_size_bytes": 1 << 32,
    "feature.sms": 1024,
    "feature.clock_khz": 10_000_000,
    "feature.memory_clock_khz": 100_000_000,
    "feature.memory_bus_bits": 1 << 16,
    "feature.max_threads_per_sm": 1 << 13,
    "feature.shared_bytes_per_sm": 1 << 22,
    "feature.registers_per_sm": 1 << 20,
    "feature.max_blocks_per_sm": 1 << 10,
    "feature.fp32_lanes_per_sm": 1 << 12,
    "feature.l1_bytes": 1 << 22,
}
#: Texts: attribute -> their form.
_TEXTS = {
    "mtriple": re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}"),
    "mcpu": re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}"),
    "mabi": re.compile(r"[a-z0-9-]{1,16}"),
    "mfloat-abi": re.compile(r"soft|softfp|hard"),
    "arch": re.compile(r"sm_\d{2,3}[af]?"),
    "model": re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./()+-]{0,99}"),
    "feature.name": re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./()+-]{0,99}"),
    "device": re.compile(r"[a-z0-9_]{1,32}"),
    "tag": re.compile(r"[A-Za-z0-9_./-]{0,100}"),
}
#: Lists of texts: attribute -> the form of one, and how many.
_LISTS = {
    "mattr": (re.compile(r"[+-][a-z0-9][a-z0-9_.-]{0,39}"), 64),
    "keys": (re.compile(r"[a-z0-9_-]{1,32}"), 8),
}
#: Truth values, which TVM's tags of ARM boards have.
_FLAG = re.compile(r"feature\.(has_[a-z0-9_]{1,32}|is_aarch64)")

_COMMON = ("kind", "tag", "keys", "device", "model")
_LLVM = (*_COMMON, "mtriple", "mcpu", "mattr", "mabi", "mfloat-abi", "num-cores", "vector-width")
_CUDA = (*_COMMON, "arch", "feature.name", "max_num_threads", *gpu.INTEGERS)
_OF_KIND = {"llvm": _LLVM, "cuda": _CUDA}
#: What clients of the service may set; anything else must be what this machine's target has.
CLIENT = {
    "llvm": ("kind", "mcpu", "num-cores"),
    "cuda": ("kind", "arch", "model", "feature.name", "max_num_threads", *gpu.INTEGERS),
}
#: Keys of targets and tags that are not of a special machine.
_CLIENT_KEYS = frozenset({"cpu", "x86", "cuda", "gpu"})


def check(config: Mapping[str, Any], *, is_host: bool = False) -> None:
    """Refuse attributes that are not listed, not of their form, or out of range.

    Raises:
        TargetError: the message says which, and what there is instead.
    """
    kind = str(config["kind"])
    for name, value in config.items():
        if name == "host" and not is_host:
            _check_host(value)
        elif name not in _OF_KIND[kind] and not (kind == "llvm" and _FLAG.fullmatch(name)):
            raise errors.TargetError(
                f"target: TVM does not accept {names.quoted(name)}, or Felix does not allow it; "
                f"attributes of {kind} are {', '.join(_OF_KIND[kind])}"
            )
        elif name in LARGEST:
            _check_number(name, value)
        elif name in _LISTS:
            _check_list(name, value)
        elif name in _TEXTS:
            _check_text(name, value)
        elif name != "kind" and not isinstance(value, bool):
            raise errors.TargetError(f"target: {name} must be true or false")


def check_client(explicit: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Refuse what a client of the service may not set, unless it is what is `usual` anyway.

    Raises:
        TargetError
    """
    allowed = CLIENT[str(explicit["kind"])]
    for name, value in explicit.items():
        is_usual = usual.get(name) == value or (name == "keys" and _CLIENT_KEYS.issuperset(value))
        if name not in allowed and not is_usual:
            raise errors.TargetError(
                f"target: the service does not let clients set {names.quoted(name)}; "
                f"they may set {', '.join(allowed)}"
            )


def _check_host(value: Any) -> None:
    if not isinstance(value, Mapping) or value.get("kind") != "llvm":
        raise errors.TargetError(
            "TVM does not accept this target: its host must be an llvm target"
        )
    check(value, is_host=True)


def _check_number(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise errors.TargetError(
            f"target: {name} must be a positive integer, got {names.quoted(value)}"
        )
    if value > LARGEST[name]:
        raise errors.TargetError(
            f"target: {name} must be at most {LARGEST[name]}, got {names.quoted(value)}"
        )


def _check_list(name: str, value: Any) -> None:
    form, most = _LISTS[name]
    is_right = isinstance(value, list) and len(value) <= most
    if not is_right or not all(isinstance(v, str) and form.fullmatch(v) for v in value):
        example = " such as +avx2" if name == "mattr" else ""
        raise errors.TargetError(
            f"target: {name} must be a list of at most {most} words{example}, "
            f"got {names.quoted(value)}"
        )


def _check_text(name: str, value: Any) -> None:
    if name == "arch" and not (isinstance(value, str) and _TEXTS[name].fullmatch(value)):
        raise errors.TargetError(f"arch must look like sm_90, got {names.quoted(value)}")
    if not isinstance(value, str) or not _TEXTS[name].fullmatch(value):
        raise errors.TargetError(f"target: {names.quoted(value)} is no value of {name}")
