"""Compiled formulas on disk, so that a sketch seen before costs no extraction.

One file per sketch variant under `$FELIX_CACHE_DIR` or `~/.cache/felix/formulas`, named by a
hash of its key, the feature version and a digest of the formula code. A file that cannot be
read is made anew. Reads `objective`; feeds `felix.formulas`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import tempfile
import zlib

from felix import objective
from felix.errors import RecordError
from felix.features import spec
from felix.features.nest import RowName

#: (rows, constraint names, (features, constraints)).
Entry = tuple[tuple[RowName, ...], tuple[str, ...], tuple[objective.Program, objective.Program]]

_SOURCES = ("symbolic", "features")


def folder() -> pathlib.Path:
    """Where the cache lives."""
    base = os.environ.get("FELIX_CACHE_DIR")
    return pathlib.Path(base or pathlib.Path.home() / ".cache" / "felix") / "formulas"


@functools.cache
def code_digest() -> str:
    """Digest of the modules that make formulas: another version of them is another cache."""
    digest = hashlib.sha256(str(spec.FEATURES_VERSION).encode())
    root = pathlib.Path(__file__).parent
    files = [root / "formulas.py", root / "objective.py", root / "tape.py", root / "plan.py"]
    for name in _SOURCES:
        files += sorted((root / name).glob("*.py"))
    for path in files:
        if path.exists():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _path(key: str) -> pathlib.Path:
    name = hashlib.sha256(f"{code_digest()}|{key}".encode()).hexdigest()
    return folder() / f"{name[:40]}.bin"


def load(key: str) -> Entry | None:
    """The entry of `key`, or None if there is none that can be read."""
    try:
        data = zlib.decompress(_path(key).read_bytes())
        head, rest = data.split(b"\n", 1)
        meta = json.loads(head)
        first = rest[: meta["size"]]
        programs = (
            objective.Program.from_bytes(first),
            objective.Program.from_bytes(rest[meta["size"] :]),
        )
    except (OSError, ValueError, KeyError, zlib.error, RecordError):
        return None
    return tuple(RowName(*r) for r in meta["rows"]), tuple(meta["constraints"]), programs


def store(key: str, entry: Entry) -> None:
    """Write an entry; a folder that cannot be written only means extraction next time."""
    rows, names, (features, constraints) = entry
    first = features.to_bytes()
    meta = {"rows": [list(r) for r in rows], "constraints": list(names), "size": len(first)}
    data = zlib.compress(json.dumps(meta).encode() + b"\n" + first + constraints.to_bytes(), 1)
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError:
        return
