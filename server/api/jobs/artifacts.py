"""`/v1/jobs/{id}/artifacts`: what a job made, to download."""

from __future__ import annotations

import base64
import urllib.parse
from typing import Annotated

import fastapi
from starlette import responses

from server.store import artifacts, jobs
from server.web import auth, dependencies, requests
from server.web import responses as response_models

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])

_Name = Annotated[str, fastapi.Path(max_length=300)]


@router.get("")
def every(
    job_id: requests.Id, caller: auth.Reader, services: dependencies.Needed
) -> response_models.Listed[response_models.Artifact]:
    """The artifacts of a job, by name."""
    with services.db.read() as tx:
        jobs.get(tx, job_id)
        found = artifacts.of_job(tx, job_id)
    return response_models.Listed(
        items=[response_models.Artifact.model_validate(one) for one in found]
    )


@router.get("/{name}", response_class=responses.StreamingResponse,
            responses={200: {"content": {"application/octet-stream": {}}}})  # fmt: skip
def download(
    job_id: requests.Id, name: _Name, caller: auth.Reader, services: dependencies.Needed
) -> fastapi.Response:
    """The content; `ETag` and `Repr-Digest` are its sha256."""
    with services.db.read() as tx:
        found = artifacts.get(tx, job_id, name)
    digest = base64.b64encode(bytes.fromhex(found.sha256)).decode()
    quoted = urllib.parse.quote(found.name, safe="")
    return responses.StreamingResponse(
        services.blobs.read(found.sha256),
        media_type=found.media_type,
        headers={
            "Content-Length": str(found.size_bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quoted}",
            "ETag": f'"{found.sha256}"',
            "Repr-Digest": f"sha-256=:{digest}:",
            "X-Sha256": found.sha256,
            "Cache-Control": "private, no-cache",
        },
    )
