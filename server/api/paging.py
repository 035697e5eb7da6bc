"""Keyset pages: `next` in the body, the whole address of the next page in a `Link` header."""

from __future__ import annotations

import fastapi


def link(request: fastapi.Request, response: fastapi.Response, after: int | None) -> None:
    """Name the next page, if there is one."""
    if after is not None:
        url = request.url.include_query_params(after=after)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
