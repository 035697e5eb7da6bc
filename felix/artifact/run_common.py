"""What the `run.py` of a task and of a network have in common; `export.standalone` puts this text
into them, so it imports nothing of Felix."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Integers made of floats that may be off by 1.
TIES_SHARE = 0.01


class Failure(Exception):
    """The folder is damaged, cannot run here or gives a wrong result."""


def command_line(
    of_what: str,
    run: Callable[[int], dict[str, Any]],
    lines: Callable[[dict[str, Any]], Sequence[str]],
) -> int:
    """Check and time what a folder has; the exit status.

    Args:
        of_what: "this tuned kernel".
        run: what so many timed calls say.
        lines: this for a person.
    """
    parser = argparse.ArgumentParser(description=f"Check and time {of_what}.")
    parser.add_argument("--repeats", type=int, default=100, help="timed calls (default 100)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        report = run(max(options.repeats, 1))
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    print(json.dumps(report) if options.json else "\n".join(lines(report)))
    return 0


def checked_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """The folder's manifest, whose files are what it says."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        hashes = manifest["files"]
    except (OSError, ValueError, KeyError) as error:
        raise Failure(f"manifest.json cannot be read: {error}") from None
    for name, expected in hashes.items():
        try:
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise Failure(f"{name} cannot be read: {error.strerror}") from None
        if digest != expected:
            raise Failure(f"{name} is not the file the manifest names (sha256 differs)")
    return manifest


def module_of(folder: pathlib.Path, name: str, prefix: str = "") -> Any:
    """A file of the folder as a module, known to other code by the prefix and the file's name."""
    known_as = f"{prefix}{name}"
    spec = importlib.util.spec_from_file_location(known_as, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[known_as] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tvm_for(manifest: dict[str, Any], folder: pathlib.Path, prefix: str = "") -> Any:
    """TVM, whose kernels run on PyTorch's threads if it is installed (`openmp.py`).

    They have as many as the target has cores, where this process is kept from PyTorch.
    """
    threads = manifest["target"].get("num-cores")
    if threads:
        os.environ.setdefault("TVM_NUM_THREADS", str(threads))
    try:
        import tvm
    except ImportError as error:
        raise Failure(f"TVM is needed: pip install apache-tvm ({error})") from None
    if "openmp.py" in manifest["files"]:
        openmp = module_of(folder, "openmp", prefix)
        is_kept_from_torch = sys.modules.get("torch", tvm) is None
        if openmp.use() and threads and is_kept_from_torch:
            openmp.set_threads(min(threads, len(os.sched_getaffinity(0))))
    return tvm


def loaded(tvm: Any, folder: pathlib.Path, name: str) -> Any:
    """A library of the folder."""
    try:
        return tvm.runtime.load_module(str(folder / name))
    except (RuntimeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines()
        raise Failure(f"{name} cannot be loaded here: {lines[-1:]}") from None


def device_of(tvm: Any, of_what: str, kind: str) -> Any:
    """The device that a target of this kind needs."""
    device = tvm.runtime.device("cpu" if kind == "llvm" else kind, 0)
    if not device.exist:
        raise Failure(f"{of_what} needs a {kind} device and there is none here")
    return device


def difference(actual: Any, expected: Any, is_exact: bool) -> float:
    """`largest_error`, relative to the root mean square of what is finite as well; infinite where
    shapes or types differ."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return math.inf
    ideal = expected.astype(np.float64)
    finite = ideal[np.isfinite(ideal)]
    rms = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    return largest_error(actual, expected, rms, is_exact)


def largest_error(actual: Any, expected: Any, size: float, is_exact: bool) -> float:
    """max |y - y'| / (|y'| + size); infinite where integers differ.

    Unless they are exact, one in a hundred may be off by 1: they were floats next to a tie.
    """
    if actual.dtype.kind in "iub":
        differs = actual != expected
        is_exact = is_exact or expected.dtype.kind == "b"
        if not is_exact and np.count_nonzero(differs) <= TIES_SHARE * differs.size:
            differs &= np.maximum(actual, expected) - np.minimum(actual, expected) != 1
        return math.inf if np.any(differs) else 0.0
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    scale = np.maximum(np.abs(expected) + size, np.finfo(np.float64).tiny)
    with np.errstate(invalid="ignore"):
        error = np.asarray(np.abs(actual - expected) / scale)
    error[(actual == expected) | (np.isnan(actual) & np.isnan(expected))] = 0.0
    return float(np.max(np.nan_to_num(error, nan=np.inf), initial=0.0))
