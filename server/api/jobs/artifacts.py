"""`/v1/jobs/{id}/artifacts`: what a job made, to download."""

from __future__ import annotations

import base64
import urllib.parse
from typing import Annotated

import fastapi
from starlette import responses

from server.store import artifacts, jobs
from server.web import auth, dependencies, request_bodies
from server.web import response_bodies as response_models

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])

_Name = Annotated[str, fastapi.Path(max_length=300)]


@router.get("")
def every(
    job_id: request_bodies.Id, caller: auth.Reader, services: dependencies.ServicesDep
) -> response_models.Listed[response_models.Artifact]:
    """The artifacts of a job, by name."""
    with caller.read() as tx:
        jobs.get(tx, job_id)
        files = artifacts.of_job(tx, job_id)
    return response_models.Listed(
        items=[response_models.Artifact.model_validate(file) for file in files]
    )


@router.get(
    "/{name}",
    response_class=responses.StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
def download(
    job_id: request_bodies.Id, name: _Name, caller: auth.Reader, services: dependencies.ServicesDep
) -> fastapi.Response:
    """The content; `ETag` and `Repr-Digest` are its sha256."""
    with caller.read() as tx:
        artifact = artifacts.get(tx, job_id, name)
    digest = base64.b64encode(bytes.fromhex(artifact.sha256)).decode()
    quoted = urllib.parse.quote(artifact.name, safe="")
    return responses.StreamingResponse(
        services.blobs.read(artifact.sha256),
        media_type=artifact.media_type,
        headers={
            "Content-Length": str(artifact.size_bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quoted}",
            "ETag": f'"{artifact.sha256}"',
            "Repr-Digest": f"sha-256=:{digest}:",
            "X-Sha256": artifact.sha256,
            "Cache-Control": "private, no-cache",
        },
    )
