"""LLVM's features of a CPU: what a target's code uses, and what this machine has of it."""

from __future__ import annotations

from tvm.target import Target, codegen

from felix import errors
from felix.target import cpu

#: LLVM feature -> flag of /proc/cpuinfo. A virtual machine may hide what its CPU model has.
FLAGS = {
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
#: More that LLVM uses for tensor programs; where one is missing, the program ends.
_OTHER_FLAGS = {
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "ssse3": "ssse3",
    "popcnt": "popcnt",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "f16c": "f16c",
    "fma4": "fma4",
    "xop": "xop",
    "tbm": "tbm",
    "movbe": "movbe",
    "gfni": "gfni",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxifma": "avx_ifma",
    "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16",
    "avxneconvert": "avx_ne_convert",
    "amx-fp16": "amx_fp16",
    "sve": "sve",
    "sve2": "sve2",
    "dotprod": "asimddp",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "fullfp16": "asimdhp",
}
_ALL_FLAGS = FLAGS | _OTHER_FLAGS


def of(target: Target) -> frozenset[str]:
    """LLVM features of the target's CPU model, with `mattr` applied."""
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    for item in target.attrs.get("mattr", ()):
        (features.add if item.startswith("+") else features.discard)(str(item[1:]))
    return frozenset(features)


def hidden(mcpu: str) -> list[str]:
    """`mattr` items that switch off what the CPU model has and this machine hides."""
    flags = cpu.flags()
    if not flags:
        return []
    features = of(Target({"kind": "llvm", "mcpu": mcpu}))
    return [f"-{name}" for name, flag in FLAGS.items() if name in features and flag not in flags]


def refuse_foreign(target: Target, local: Target) -> None:
    """Refuse an llvm target whose code this machine cannot run; `local` is its usual target.

    Raises:
        TargetError: the message names the instructions that are missing.
    """
    machine = str(local.attrs["mtriple"]).partition("-")[0]
    triple = str(target.attrs.get("mtriple", local.attrs["mtriple"]))
    if triple.partition("-")[0] != machine:
        raise errors.TargetError(
            f"the target is for {triple}, this machine is a {machine}: tune for 'llvm', "
            "which is this CPU"
        )
    missing = sorted(name for name in of(target) - of(local) if _is_missing(name, target))
    if missing:
        raise errors.TargetError(
            f"the CPU of this machine has no {', '.join(missing[:8])}, which the target may use: "
            "tune for 'llvm', which is this CPU, or switch them off with -mattr"
        )


def _is_missing(feature: str, target: Target) -> bool:
    """Whether this machine lacks a feature, or is not known to have one of `mattr`."""
    flags = cpu.flags()
    if feature in _ALL_FLAGS:
        return bool(flags) and _ALL_FLAGS[feature] not in flags
    return f"+{feature}" in [str(item) for item in target.attrs.get("mattr", ())]
