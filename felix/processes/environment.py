"""The environment of a child: what programs need to run, and nothing that may be a secret."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

#: Variables that a child gets.
NAMES = frozenset({
    "CC", "CXX", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONHOME",
    "PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "TMPDIR", "TZ",
    "USER", "LOGNAME", "VIRTUAL_ENV",
})  # fmt: skip
#: And those that begin so.
PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "TVM_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
            "TORCH_", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "MALLOC_", "ASAN_",
            "UBSAN_")  # fmt: skip
#: No threads of libraries for linear algebra before a process is confined: they would not be.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def for_child(
    environment: Mapping[str, str], also: Mapping[str, str] = ONE_THREAD
) -> dict[str, str]:
    """The variables of `environment` that a child gets, `also`, and where it finds these packages.

    A child that is confined only in its forks, which have no thread yet, needs no `ONE_THREAD`.
    """
    passed = {
        name: value
        for name, value in environment.items()
        if name in NAMES or name.startswith(PREFIXES)
    }
    packages = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join([packages, *filter(None, [environment.get("PYTHONPATH")])])
    return {**passed, **also, "PYTHONPATH": path}
