"""Compiled formulas on disk, so that the formulas of a sketch are extracted once.

One file per sketch variant under `$FELIX_CACHE_DIR` or `~/.cache/felix/formulas`, named by a
hash of its key, the feature version and a digest of the formula code. A file that cannot be
read is made anew.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import zlib

from felix.autodiff.program import FormulaProgram
from felix.errors import RecordError
from felix.features import spec
from felix.features.stores import RowName
from felix.files import cache_folder, write_atomically

_COMPILER = ("autodiff/graph.py", "autodiff/passes.py", "autodiff/program.py")
#: Modules and packages of `felix` that decide what a compiled formula of a trace is,
SOURCES = ("symbolic", "features", "space/formulas.py", *_COMPILER)
#: and of a template.
TEMPLATE_SOURCES = (
    "templates",
    "symbolic/expr.py",
    "space/formulas.py",
    "space/template_sketch.py",
    *_COMPILER,
)


@dataclasses.dataclass(frozen=True, slots=True)
class StructureFormulas:
    """Compiled formulas under one structural choice.

    Attributes:
        rows: the store of each row; all structures of a sketch have the same rows in one order.
        program: R * F outputs, row after row, transformed as their table says.
        constraint_program: legal where every output is <= 0.
    """

    rows: tuple[RowName, ...]
    program: FormulaProgram
    constraint_program: FormulaProgram

    @property
    def n_rows(self) -> int:
        return len(self.rows)


def folder() -> pathlib.Path:
    """Where the cache lives."""
    return cache_folder() / "formulas"


@functools.cache
def code_digest(sources: tuple[str, ...] = SOURCES) -> str:
    """Digest of the modules that make formulas: another version of them is another cache."""
    return digest_of(pathlib.Path(__file__).parents[1], sources)


def digest_of(root: pathlib.Path, sources: tuple[str, ...] = SOURCES) -> str:
    """Digest of the feature version and the sources below a folder.

    Raises:
        FileNotFoundError: a source is missing, so that no digest would say what formulas are.
    """
    digest = hashlib.sha256(str(spec.FEATURES_VERSION).encode())
    for name in sources:
        path = root / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if not files:
            raise FileNotFoundError(f"{path} has no modules: the formula cache cannot be keyed")
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _path(key: str, sources: tuple[str, ...]) -> pathlib.Path:
    name = hashlib.sha256(f"{code_digest(sources)}|{key}".encode()).hexdigest()
    return folder() / f"{name[:40]}.bin"


def load(key: str, sources: tuple[str, ...]) -> StructureFormulas | None:
    """The formulas of `key` by this version of the sources; None without any that can be read."""
    try:
        data = zlib.decompress(_path(key, sources).read_bytes())
        head, rest = data.split(b"\n", 1)
        meta = json.loads(head)
        size = meta["size"]
        programs = [FormulaProgram.from_bytes(part) for part in (rest[:size], rest[size:])]
    except (OSError, ValueError, KeyError, zlib.error, RecordError):
        return None
    return StructureFormulas(tuple(RowName(*r) for r in meta["rows"]), *programs)


def store(key: str, made: StructureFormulas, sources: tuple[str, ...]) -> None:
    """Write formulas; a folder that cannot be written only means extraction next time."""
    first, second = made.program.to_bytes(), made.constraint_program.to_bytes()
    head = json.dumps({"rows": made.rows, "size": len(first)})
    data = zlib.compress(head.encode() + b"\n" + first + second, 1)
    path = _path(key, sources)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, durable=False, mode=0o600)
    except OSError:
        return
