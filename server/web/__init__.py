"""HTTP around the routes: middleware, authentication, request and response models.

In: a request.
Out: its caller, within limits, or a problem.
From: `api`, `dashboard`, `app`.
"""

from __future__ import annotations
