"""`/v1/session`: dashboard logins, for pages that log in by script.

The key goes in once; a cookie that scripts cannot read comes back, and a CSRF token that requests
which change something must send.
"""

from __future__ import annotations

import anyio.to_thread
import fastapi

from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/session", tags=["session"])


@router.post("", status_code=201)
async def log_in(
    body: request_bodies.NewLogin,
    request: fastapi.Request,
    response: fastapi.Response,
    services: dependencies.ServicesDep,
) -> response_bodies.Login:
    """Log in with a key; not from a page of another site."""
    auth.check_origin(request, services)
    token, login, _ = await anyio.to_thread.run_sync(auth.log_in, request, services, body.key)
    auth.set_cookie(response, services, token)
    return response_bodies.Login(csrf_token=login.csrf, expires_at=login.expires_at)


@router.delete("", status_code=204)
def log_out(
    request: fastapi.Request,
    response: fastapi.Response,
    caller: auth.Anyone,
    services: dependencies.ServicesDep,
) -> None:
    """End this login."""
    auth.log_out(request, services, caller)
    auth.clear_cookie(response, services)
