"""The routers of the REST API, one noun a module; `routers.ALL` lists them.

Routes touch the store, the blobs and the parser, nothing else; `shapes` has what they answer.
"""

from __future__ import annotations
