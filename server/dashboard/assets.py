"""Scripts, styles and Plotly, under addresses that change with their content.

`/dashboard/assets/DIGEST/NAME` may be cached by browsers for ever: another version has another
digest. Plotly comes from its Python package, so nothing is loaded from elsewhere. Texts are
packed once, in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import importlib.util
import pathlib

import fastapi

from server import errors

router = fastapi.APIRouter(prefix="/dashboard/assets", include_in_schema=False)

PLOTLY = "plotly.min.js"
_FOLDER = pathlib.Path(__file__).parent / "static"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_KEEP = "public, max-age=31536000, immutable"


@dataclasses.dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    packed: bytes
    media_type: str


@router.get("/{digest}/{name}")
def get(digest: str, name: str, request: fastapi.Request) -> fastapi.Response:
    """One file; a page of an older version gets today's, which is not cached."""
    if name not in _paths():
        raise errors.NotFound(f"there is no file {name!r}")
    asset = _read(name)
    headers = {
        "Cache-Control": _KEEP if digest == version() else "no-cache",
        "Vary": "Accept-Encoding",
    }
    content = asset.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = asset.packed, "gzip"
    return fastapi.Response(content, media_type=asset.media_type, headers=headers)


def address(name: str) -> str:
    """Where a file is."""
    return f"/dashboard/assets/{version()}/{name}"


@functools.cache
def version() -> str:
    """A digest of all files."""
    digest = hashlib.sha256()
    for name, path in sorted(_paths().items()):
        digest.update(name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _paths() -> dict[str, pathlib.Path]:
    paths = {path.name: path for path in _FOLDER.rglob("*") if path.suffix in _TYPES}
    paths[PLOTLY] = _plotly()
    return paths


def _plotly() -> pathlib.Path:
    """Plotly's script, found without importing the package."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = pathlib.Path(folder, "package_data", PLOTLY)
        if path.is_file():
            return path
    raise errors.SettingsError("charts need the package plotly: pip install 'felix-tuner[server]'")


@functools.cache
def _read(name: str) -> _Asset:
    path = _paths()[name]
    content = path.read_bytes()
    return _Asset(content, gzip.compress(content, 6, mtime=0), _TYPES[path.suffix])
