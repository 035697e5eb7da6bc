"""Which table of features rows are of; each kind has a cost model of its own."""

from __future__ import annotations

import enum


class FeatureKind(enum.StrEnum):
    """What one row of features describes."""

    #: A store of a scheduled program (`felix.features.spec`).
    TRACE = "trace"
    #: A kernel that a template launches (`felix.templates.spec`).
    TEMPLATE = "template"
