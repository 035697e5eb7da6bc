"""A child that runs a module of ours: started without what may be secret, out of the terminal's
reach, and removed with what it has left."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from felix import files

# The environment of a child: what programs need to run, and nothing that may be a secret.

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


# Removing what a process that may have been hostile has left.


def remove_tree(path: pathlib.Path) -> None:
    """Remove a file or a folder with all that is in it; nothing if it is not there."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # folders nested deeper than Python follows
        subprocess.run(["rm", "-rf", "--", str(path)], check=False)


def start(module: str, *arguments: str, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """`python -m module arguments`, with this process's formula cache; nobody reads its output.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=for_child(os.environ) | {"FELIX_CACHE_DIR": str(files.cache_folder())},
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal is the parent's to handle
    )
