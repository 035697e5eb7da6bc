"""A task: one tensor program to tune, for one target.

`Task` holds an IRModule with one PrimFunc "main" of static shapes, the target, and how often the
program occurs in a model (`weight`). `flops` are the float operations of the PrimFunc as it is
written (additions, multiplications, divisions, maxima, minima and math functions on floats,
times the loop extents; a multiply-add counts two; casts, comparisons and copies none; sums and
products of int8 that are widened to int32 count as floats do, other integer work none), and
`min_bytes` the bytes of the distinct elements of its parameters that must be read or written
once.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import te, tirx

from felix import errors, names
from felix import target as targets
from felix.tir import bounds, grammar, sandbox, tf32, validate
from felix.tir import cost as tir_cost

TargetLike: TypeAlias = targets.TargetLike

#: Version of the text `Task.to_json` writes.
FORMAT = 1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One tensor program to tune for one target; equal programs have equal `key`s."""

    name: str
    mod: tvm.IRModule
    target: tvm.target.Target
    weight: float
    flops: int
    min_bytes: int

    def __post_init__(self) -> None:
        """Refuse a name that is not one line of printable text of 200 characters at most."""
        names.check("a task's name", self.name)

    @classmethod
    def from_prim_func(
        cls,
        func: tirx.PrimFunc,
        target: TargetLike = "llvm",
        name: str | None = None,
        weight: float = 1,
        *,
        clamp: bool = False,
    ) -> Task:
        """Make a task from a TIR function.

        Args:
            func: static shapes, float or integer buffers, blocks (not plain loops) as MetaSchedule
                needs them. It is copied with int32 indices where all of them fit.
            target: what to tune for.
            name: the task's name, one line of printable text of at most 200 characters; made
                from the function's `global_symbol` when left out.
            weight: how often the program occurs in the model.
            clamp: move indices that are loaded from a buffer into the buffer they index, where
                they are not proved to lie in it; without it such a program is refused.

        Raises:
            WorkloadError: dynamic shapes, unsupported dtypes or operations, malformed TIR, a
                name that is none.
            TargetError: unknown target.
        """
        return _make(func, target, name, weight, clamp)

    @classmethod
    def from_te(
        cls,
        tensors: list[te.Tensor],
        target: TargetLike = "llvm",
        name: str | None = None,
        weight: float = 1,
    ) -> Task:
        """Make a task from te tensors: the inputs, then the outputs.

        Indices are 64 bits wide where products of extents need it. Those that are loaded from a
        tensor are clamped to the tensor they index.

        Raises:
            WorkloadError: see `from_prim_func`.
        """
        try:
            return _make(_prim_func(tensors), target, name, weight, clamp=True)
        except bounds.NarrowIndices:
            return _make(_prim_func(tensors, "int64"), target, name, weight, clamp=True)

    @classmethod
    def from_json(
        cls, text: str, target: TargetLike | None = None, *, trusted: bool = False
    ) -> Task:
        """Read a task from `to_json`'s text, or from the JSON of a bare IRModule or PrimFunc.

        TVM's reader can crash on malformed text, so it runs first in a child process with limits
        of time and memory, unless the text is `trusted` (written by this program).

        Args:
            text: the JSON text.
            target: what to tune for; the text's own when left out.
            trusted: skip the child process.

        Raises:
            WorkloadError: the text is malformed or holds no program Felix can tune.
        """
        body, name, weight, text_target, allows_tf32 = _envelope(text)
        if target is None and text_target is None:
            raise errors.WorkloadError("the text names no target; pass one")
        chosen = targets.parse(target if target is not None else text_target or "")
        if not trusted:
            sandbox.try_in_child(body, targets.describe(chosen))
        made = _make(sandbox.load(body), chosen, name, weight)
        return made.allowing_tf32() if allows_tf32 else made

    def to_json(self) -> str:
        """The task as text that `from_json` reads."""
        return json.dumps(
            {
                "felix_task": FORMAT,
                "name": self.name,
                "weight": self.weight,
                "target": json.loads(targets.describe(self.target)),
                "mod": tvm.ir.save_json(self.mod),
                **({"allow_tf32": True} if self.allows_tf32 else {}),
            }
        )

    @property
    def allows_tf32(self) -> bool:
        """Whether its products of float32 may be computed in TF32 (`felix.tir.tf32`)."""
        return tf32.allowed(self.func)

    def allowing_tf32(self) -> Task:
        """The same task whose products of float32 may be computed in TF32.

        It has another key. Its outputs may be further from the exact ones
        (`felix.runner.checking.rounding`).
        """
        return dataclasses.replace(self, mod=tvm.IRModule({"main": tf32.allow(self.func)}))

    def where_tf32_matters(self) -> Task:
        """`allowing_tf32` if TF32 changes anything: products of float32 on a GPU; else itself."""
        is_changed = self.target.kind.name == "cuda" and tf32.matters(self.func)
        return self.allowing_tf32() if is_changed else self

    @property
    def func(self) -> tirx.PrimFunc:
        """The PrimFunc `main`."""
        return self.mod["main"]

    @property
    def key(self) -> str:
        """Hash of the program's structure and the target; the same in every process."""
        text = f"{self._structure}|{targets.describe(self.target)}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def program_key(self) -> str:
        """Hash of the program's structure alone, whatever the target; for searching by it."""
        return hashlib.sha256(self._structure.encode()).hexdigest()

    @property
    def _structure(self) -> str:
        return f"{tvm_ffi.structural_hash(self.mod) % 2**64:016x}"

    def __repr__(self) -> str:
        kind = self.target.kind.name
        return f"Task({self.name!r}, {kind}, weight={self.weight:g}, flops={self.flops:,})"

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Task.from_json, trusted=True), (self.to_json(),)


def _make(
    func: tirx.PrimFunc, spec: TargetLike, name: str | None, weight: float, clamp: bool = False
) -> Task:
    full = targets.parse(spec)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e18:
        raise errors.WorkloadError(
            f"a task's weight must be a positive number, got {names.quoted(weight)}"
        )
    if name is not None:
        names.check("a task's name", name)
    checked = validate.normalise(func, clamp=clamp)
    if tf32.allowed(func):
        checked = tf32.allow(checked)
    _check_float8(checked, full)
    validate.check_names(checked)
    cost = tir_cost.count(checked)
    return Task(
        name=_symbol(func) if name is None else name,
        mod=tvm.IRModule({"main": checked}),
        target=full,
        weight=float(weight),
        flops=cost.flops,
        min_bytes=cost.min_bytes,
    )


def _check_float8(func: tirx.PrimFunc, full: tvm.target.Target) -> None:
    """Refuse float8 on CPUs."""
    types = {grammar.dtype(buffer) for buffer in grammar.buffers(func)}
    if full.kind.name == "llvm" and types & set(grammar.STORAGE_DTYPES):
        raise errors.WorkloadError(
            "programs of float8 are tuned for cuda alone: TVM's code for CPUs converts float8 to "
            "wrong values. Give a GPU as the target, like cuda or h100, or another dtype"
        )


def _prim_func(tensors: list[te.Tensor], index_dtype: str | None = None) -> tirx.PrimFunc:
    """TVM's function of te tensors, with indices of this type or of that of their shapes."""
    try:
        return te.create_prim_func(list(tensors), index_dtype_override=index_dtype)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise errors.WorkloadError(
            f"TVM cannot make a function of these tensors: {grammar.first_line(error)}"
        ) from error


def _symbol(func: tirx.PrimFunc) -> str:
    symbol = func.attrs.get("global_symbol") if func.attrs else None
    return names.derived(str(symbol), "main") if symbol else "main"


def _envelope(text: str) -> tuple[str, str | None, float, dict[str, Any] | None, bool]:
    """(TVM JSON, name, weight, target, whether TF32 is allowed) of either form of text."""
    if not isinstance(text, str):
        raise errors.WorkloadError(f"a task's JSON must be text, got {type(text).__name__}")
    if len(text) > sandbox.MAX_JSON_CHARACTERS:
        raise errors.WorkloadError(
            f"a task's JSON may have at most {sandbox.MAX_JSON_CHARACTERS} characters"
        )
    try:
        outer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.WorkloadError(
            f"the task is not valid JSON: {grammar.first_line(error)}"
        ) from error
    if not isinstance(outer, dict):
        raise errors.WorkloadError("a task's JSON must be an object")
    if "felix_task" not in outer:
        return text, None, 1.0, None, False
    if outer["felix_task"] != FORMAT:
        raise errors.WorkloadError(
            f"task format {names.quoted(outer['felix_task'])} is not {FORMAT}"
        )
    expected: dict[str, type | tuple[type, ...]] = {
        "name": str,
        "weight": (int, float),
        "target": dict,
        "mod": str,
    }
    for field, kinds in expected.items():
        if not isinstance(outer.get(field), kinds):
            raise errors.WorkloadError(f"the task's field {field!r} is missing or malformed")
    allows_tf32 = outer.get("allow_tf32", False)
    if not isinstance(allows_tf32, bool):
        raise errors.WorkloadError("the task's field 'allow_tf32' must be true or false")
    return outer["mod"], outer["name"], outer["weight"], outer["target"], allows_tf32
