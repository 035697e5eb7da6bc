"""What callers do to projects, webhooks, batches and templates; for the API and the dashboard.

Routes of the API and forms of the dashboard call these, so that both do, refuse and record the
same.
"""

from __future__ import annotations
