"""Programs and schedules that the formulas do not foresee become one clear error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from felix.errors import UnsupportedSchedule

_LOGGER = logging.getLogger(__name__)
#: What modelling raises where a program has a form that no rule was written for.
_UNFORESEEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError,
               TypeError, ValueError)  # fmt: skip


@contextmanager
def reported() -> Iterator[None]:
    """Errors of modelling as UnsupportedSchedule, so that they cost a sketch and not a run."""
    try:
        yield
    except _UNFORESEEN as error:
        _LOGGER.debug("a form that no rule was written for", exc_info=True)
        lines = str(error).strip().splitlines()
        raise UnsupportedSchedule(
            f"the schedule has a form that cannot be modelled ({type(error).__name__}"
            f"{': ' + lines[-1].strip() if lines else ''})"
        ) from error
