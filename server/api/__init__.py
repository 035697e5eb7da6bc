"""The routers of the REST API, one noun a module; `routers.ALL` lists them.

Routes touch the store, the blobs and the parser, nothing else; their bodies are in
`server.web.requests` and `server.web.responses`.
"""

from __future__ import annotations
