"""What `torch.compile(..., backend="felix", options={...})` may say."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Mapping
from typing import Any

from felix import errors

#: Sizes of a graph with dynamic shapes that get programs, unless options say otherwise.
MAX_SIZES = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the backend.

    Attributes:
        known_results: the file of known results; the default one if None.
        target: what to build for; by default the device of a graph's inputs.
        max_sizes: so many sizes of a graph with dynamic shapes get programs; the others run in
            PyTorch.
        never_slower: whether a part is timed beside PyTorch and runs only where it is not slower.
        queue: whether tasks of which nothing is known are queued for tuning.
        seconds: so long they are tuned in the background, while no call runs; pauses are
            included. The first call runs in PyTorch then, and graphs are built in the background.
            None: they wait for `felix tune --queued`, and the first call builds its graph.
        allow_tf32: whether products of float32 may be computed in TF32 on a GPU; PyTorch's own
            switches say it of PyTorch alone.
    """

    known_results: str | os.PathLike[str] | None = None
    target: str | None = None
    max_sizes: int = MAX_SIZES
    never_slower: bool = True
    queue: bool = True
    seconds: float | None = None
    allow_tf32: bool = False


#: What an option may be, and this in words.
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "known_results": ((str, os.PathLike), "str or a path"),
    "target": ((str,), "str"),
    "max_sizes": ((int,), "int"),
    "never_slower": ((bool,), "bool"),
    "queue": ((bool,), "bool"),
    "seconds": ((int, float), "a number"),
    "allow_tf32": ((bool,), "bool"),
}


def read(mode: str | None, options: Mapping[str, Any] | None) -> Settings:
    """The settings of a call of `torch.compile`.

    Raises:
        TuningError: a mode, an unknown option, or a value of the wrong type.
    """
    if mode is not None:
        raise errors.TuningError(
            f"the backend felix has no modes, got mode={mode!r}: leave it out"
        )
    chosen = dict(options or {})
    for name, value in chosen.items():
        _check(name, value)
    if chosen.get("seconds") is not None and not chosen.get("queue", True):
        raise errors.TuningError("the option 'seconds' tunes what is queued: leave out 'queue'")
    return Settings(**chosen)


def _check(name: str, value: Any) -> None:
    if name not in _TYPES:
        near = difflib.get_close_matches(str(name), _TYPES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise errors.TuningError(
            f"the backend felix has no option {name!r}{hint} (its options: {', '.join(_TYPES)})"
        )
    kinds, words = _TYPES[name]
    is_right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if not is_right:
        raise errors.TuningError(f"the option {name!r} is {words}, got {value!r}")
    if name == "seconds" and not 0.0 < value < math.inf:
        raise errors.TuningError(f"the option 'seconds' is larger than 0, got {value}")
    if name == "max_sizes" and value < 1:
        raise errors.TuningError(f"the option 'max_sizes' is at least 1, got {value}")
