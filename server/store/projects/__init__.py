"""What belongs to a project besides its jobs: limits, how long files stay, webhooks."""

from __future__ import annotations
