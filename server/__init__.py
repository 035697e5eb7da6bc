"""The service: jobs over REST, a store, tuners that work on them, artifacts to download.

`server` imports `felix`, never the other way round. API servers touch only the database and the
blob store; tuners run the engine. docs/design/service.md has the contract between the two.
"""

from __future__ import annotations
