"""`/v1/batches` and `/v1/templates`: many jobs, and requests that are kept."""

from __future__ import annotations
