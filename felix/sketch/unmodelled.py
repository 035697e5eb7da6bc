"""Forms of programs and schedules that no rule of the formulas was written for.

Modelling raises UnsupportedSchedule for what it deliberately leaves out. Any other error is a
defect of it: a rule met a form that nobody thought of. Such an error costs the sketch, not the run
of all tasks. It ends here, and is logged with its traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from felix.errors import UnforeseenForm, UnsupportedSchedule

_LOGGER = logging.getLogger(__name__)


@contextmanager
def reported() -> Iterator[None]:
    """Errors that modelling does not raise on purpose as UnforeseenForm.

    Raises:
        UnsupportedSchedule, MemoryError: as they are.
        UnforeseenForm: any other error was raised.
    """
    try:
        yield
    except (UnsupportedSchedule, MemoryError):
        raise
    except Exception as error:  # the edge of modelling: a defect costs one sketch, by name
        action = {"action": "unforeseen_form"}
        _LOGGER.warning("a form that no rule was written for", exc_info=True, extra=action)
        lines = str(error).strip().splitlines()
        raise UnforeseenForm(
            f"the schedule has a form that no rule was written for ({type(error).__name__}"
            f"{': ' + lines[-1].strip() if lines else ''}); please report it with the program"
        ) from error
