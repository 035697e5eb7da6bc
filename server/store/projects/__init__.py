"""What belongs to a project besides its jobs: limits, webhooks and what is sent to them."""

from __future__ import annotations
