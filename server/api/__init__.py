"""The routers of the REST API, one noun a module; `document.ROUTERS` lists them.

In: a caller's request.
Out: JSON.
From: `app`.

Routes touch the store, the blobs and the parser, nothing else; their bodies are in
`server.web.request_bodies` and `server.web.response_bodies`.
"""

from __future__ import annotations
