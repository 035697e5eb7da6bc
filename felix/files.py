"""Files that appear whole or not at all, whenever the process is stopped."""

from __future__ import annotations

import os
import pathlib
import tempfile


def write_atomically(path: pathlib.Path, data: bytes | str) -> None:
    """Replace `path` by `data` (text as UTF-8): a temporary file beside it, fsync, rename.

    Raises:
        OSError: the folder cannot be used; `path` is as before.
    """
    content = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
