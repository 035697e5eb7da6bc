"""What the forms of these pages have in common: who may send them, and what was wrong in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

import fastapi
import pydantic

from server import errors
from server.dashboard import job_form, render
from server.web import auth


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """A form that came in: its texts, the ticked boxes, and by field what is wrong."""

    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ticked: tuple[str, ...] = ()
    wrong: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def status(self) -> int:
        """The status of a page with this form."""
        return 422 if self.wrong else 200


def texts_of(form: Mapping[str, list[str]]) -> dict[str, str]:
    """The last value of each field, without the space around it."""
    return {name: values[-1].strip() for name, values in form.items()}


def wrong_of(error: pydantic.ValidationError) -> dict[str, str]:
    """What a body's validation says, by field of the body."""
    return {str(each["loc"][0]): job_form.words(each["msg"]) for each in error.errors()}


def submitter(viewer: render.Viewer) -> auth.Caller:
    """Whoever is logged in and may submit.

    Raises:
        Forbidden
    """
    if not viewer.can("submit"):
        raise errors.Forbidden("this needs a key with the scope submit")
    return viewer


#: May submit; every viewer may read.
Submitter = Annotated[auth.Caller, fastapi.Depends(submitter)]
