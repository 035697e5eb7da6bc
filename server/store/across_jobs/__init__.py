"""Verbs that look at several jobs: reuse, similar jobs, the queue, batches, templates, imports.

Each that reads jobs of others takes a `Scope`, which says whose.
"""

from __future__ import annotations
