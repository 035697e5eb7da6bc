"""`/v1/operators`: what the catalogue has, with JSON Schema of the parameters."""

from __future__ import annotations

from typing import Annotated, Any

import fastapi

from server import errors
from server.web import auth, dependencies

router = fastapi.APIRouter(prefix="/v1/operators", tags=["operators"])


@router.get("")
def every(caller: auth.Reader, services: dependencies.ServicesDep) -> dict[str, dict[str, Any]]:
    """JSON Schema of the parameters of every operator, by name."""
    return services.parser.operators()


@router.get("/{name}")
def get(
    name: Annotated[str, fastapi.Path(max_length=100, examples=["gemm"])],
    caller: auth.Reader,
    services: dependencies.ServicesDep,
) -> dict[str, Any]:
    """JSON Schema of one operator's parameters."""
    schema: dict[str, Any] | None = services.parser.operators().get(name)
    if schema is None:
        raise errors.NotFound(f"there is no operator {name!r}: see /v1/operators")
    return schema
