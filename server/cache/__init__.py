"""What the requests to one API server share."""

from __future__ import annotations
