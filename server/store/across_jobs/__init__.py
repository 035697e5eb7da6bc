"""Verbs that look at several jobs: reuse, queue, batches, templates, imports, how long files stay.

Each that reads jobs of others takes a `Scope`, which says whose.
"""

from __future__ import annotations
