"""Values of options, as the command line takes them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

from felix import errors
from felix.cli.comparison import libraries as comparison


def positive(kind: type) -> Any:
    """Parses numbers of a kind, "int" or "float", above 0."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not 0 < value < 1e9:
            raise argparse.ArgumentTypeError(f"must be a positive number, got {text}")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid int value"
    return parse


def devices(text: str) -> tuple[int, ...] | Literal["all"]:
    """Numbers of GPUs: "all" or "0,2"."""
    if text == "all":
        return "all"
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'all' nor numbers like 0,1")
    return tuple(int(number) for number in numbers)


def libraries(text: str) -> tuple[str, ...]:
    """Names of libraries, joined by +."""
    names = () if text == "none" else tuple(text.split("+"))
    if unknown := [name for name in names if name not in comparison.NAMES]:
        known = ", ".join(comparison.NAMES)
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {known}, none")
    return names


def size(text: str) -> int:
    """A number of bytes."""
    value = int(text)
    if not 0 <= value < 2**62:
        raise argparse.ArgumentTypeError(f"must be a number of bytes, got {text}")
    return value


def natural(text: str) -> int:
    """A number from 0 on."""
    value = int(text)
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return value


def worker_devices(text: str) -> tuple[int, ...] | Literal["all", "cpu"]:
    """What a worker measures on: `devices`, "cpu" or "none"."""
    if text == "cpu":
        return "cpu"
    return () if text == "none" else devices(text)


def values(texts: Iterable[str] | None) -> dict[str, Any] | None:
    """Values by name of each NAME=JSON; None without any.

    Raises:
        WorkloadError: a text is none of these.
    """
    return _named(texts, json.loads, "--value takes NAME=[1,2] or NAME=0.5")


def shapes(texts: Iterable[str] | None) -> dict[str, list[int]] | None:
    """Extents by name of each NAME=1x3x224x224; None without any.

    Raises:
        WorkloadError: a text is none of these.
    """
    return _named(
        texts,
        lambda text: [int(extent) for extent in text.split("x")],
        "--shape takes NAME=1x3x224x224",
    )


def _named(
    texts: Iterable[str] | None, read: Callable[[str], Any], usage: str
) -> dict[str, Any] | None:
    """What is read of each NAME=TEXT, by name; a name may have "="."""
    found = {}
    for text in texts or ():
        name, _, value = text.rpartition("=")
        try:
            found[name] = read(value)
        except ValueError:
            name = ""
        if not name:
            raise errors.WorkloadError(f"{usage}, got {text!r}")
    return found or None
