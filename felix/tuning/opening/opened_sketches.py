"""Which sketches of a task a search opens, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from felix.sketch.sketch import Sketch


def searched(sketches: Sequence[Sketch]) -> list[Sketch]:
    """Those that a search is worth its while for."""
    from felix.sketch import diversity

    return diversity.searched(sketches)


def by_kind(sketches: Sequence[Sketch]) -> tuple[list[Sketch], list[Sketch]]:
    """(those of templates, those of traces).

    A search counts its sketches in this order, so that those of traces may join it later.
    """
    from felix.sketch import template_sketch

    templates: list[Sketch] = []
    traces: list[Sketch] = []
    for sketch in sketches:
        is_template = isinstance(sketch, template_sketch.TemplateSketch)
        (templates if is_template else traces).append(sketch)
    return templates, traces
