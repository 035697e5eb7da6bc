"""Tensors and text metadata in safetensors files, written atomically and checked on reading.

Nothing is unpickled, so a hostile file can be refused but cannot run.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import safetensors
from safetensors import torch as safetensors_torch
from torch import Tensor

from felix import errors, files


def write(path: pathlib.Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata to `path`, all or nothing; its folder is made.

    Raises:
        OutputError: the folder cannot be used.
    """
    # the package refuses views and tensors that share memory: each is stored as a copy
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    data = safetensors_torch.save(copies, dict(metadata) or None)
    with errors.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, data)


def read(path: pathlib.Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of `path`, in memory of their own.

    Raises:
        CheckpointError: there is no such file, or it is not one of these or damaged.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            # copies: a view of the file would change with it
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
            return tensors, dict(file.metadata() or {})
    except OSError as error:
        raise errors.CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        raise errors.CheckpointError(f"{path} is not a checkpoint or is damaged") from error
