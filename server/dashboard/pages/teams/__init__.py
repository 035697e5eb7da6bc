"""Pages about more than a job: projects, webhooks, batches, templates."""

from __future__ import annotations
