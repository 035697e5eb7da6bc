"""What bodies of responses have in common."""

from __future__ import annotations

import datetime
from typing import Generic, TypeVar

import pydantic

T = TypeVar("T")
Time = datetime.datetime


class ResponseBody(pydantic.BaseModel):
    """Made from rows of the store by their attributes."""

    model_config = pydantic.ConfigDict(from_attributes=True, frozen=True)


class Page(ResponseBody, Generic[T]):
    """Some of a list; `next` is the `after` of the next page, null on the last."""

    items: list[T]
    next: int | None = None


class Listed(ResponseBody, Generic[T]):
    """A whole list."""

    items: list[T]
