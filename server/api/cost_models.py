"""`/v1/models`: the cost models that ship with this version, with their cards.

Only files are read: the API loads no model. A checkpoint is a safetensors file, whose head is
JSON.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
from typing import Any

import fastapi

import costmodel
from server.web import auth, response_bodies

router = fastapi.APIRouter(prefix="/v1/models", tags=["models"])

_FOLDER = pathlib.Path(costmodel.__file__).parent / "pretrained"


@router.get("")
def every(caller: auth.Reader) -> response_bodies.Listed[response_bodies.Model]:
    """The shipped cost models, by device kind."""
    return response_bodies.Listed(items=list(_shipped()))


@functools.cache
def _shipped() -> tuple[response_bodies.Model, ...]:
    return tuple(_read(path) for path in sorted(_FOLDER.glob("*/model.safetensors")))


def _read(path: pathlib.Path) -> response_bodies.Model:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + size])
    card = path.with_name("MODEL_CARD.md")
    return response_bodies.Model(
        name=path.parent.name,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        metadata={name: _value(text) for name, text in head.get("__metadata__", {}).items()},
        card=card.read_text() if card.is_file() else "",
    )


def _value(text: str) -> Any:
    """Metadata are texts, some of them JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
