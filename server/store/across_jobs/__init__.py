"""Verbs that look at several jobs: lists, reuse, queue, batches, templates, imports, retention.

Each that reads jobs of others takes a `Scope`, which says whose.
"""

from __future__ import annotations
