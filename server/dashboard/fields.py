"""Fields of a form from the JSON Schema of an operator, and their texts read back as parameters.

One line of text a parameter: whole numbers as they are, lists with commas (`1, 56, 56`; for
numbers also `1x56x56`), choices from a list, switches as check boxes. A field that is left empty
takes the operator's default. What the schema forbids is reported at the field.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]


class Wrong(ValueError):
    """The text is none of what the schema allows; the message says what it must be."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One parameter: `kind` is text, number, choice or switch."""

    name: str
    kind: str
    is_required: bool
    help: str
    #: an empty one stands for none of them
    choices: tuple[str, ...] = ()
    #: shown in the empty field
    hint: str = ""
    #: for number fields
    minimum: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """Parameters, and by field what is wrong."""

    params: dict[str, Any]
    wrong: dict[str, str]


def of_schema(schema: Schema) -> list[Field]:
    """The fields of an operator, required ones first."""
    required = set(schema.get("required", ()))
    fields = [_field(name, each, name in required) for name, each in schema["properties"].items()]
    return sorted(fields, key=lambda field: not field.is_required)


def defaults(schema: Schema) -> dict[str, str]:
    """The texts of an empty form: choices and switches show the operator's defaults."""
    texts = {}
    for field in of_schema(schema):
        default = schema["properties"][field.name].get("default")
        if field.kind in ("choice", "switch") and default is not None:
            texts[field.name] = text_of(default)
    return texts


def texts_of(params: Mapping[str, Any]) -> dict[str, str]:
    """The texts of given parameters, to show them in a form."""
    return {name: text_of(value) for name, value in params.items() if value is not None}


def text_of(value: Any) -> str:
    """The text of one parameter."""
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(each) for each in value)
    return str(value)


def read(schema: Schema, texts: Mapping[str, str]) -> Reading:
    """The parameters that a filled form means."""
    reading = Reading({}, {})
    required = set(schema.get("required", ()))
    for name, each in schema["properties"].items():
        text = texts.get(name, "").strip()
        if each.get("type") == "boolean":
            value = bool(text)
            if value != each.get("default", False) or name in required:
                reading.params[name] = value
            continue
        if not text:
            if name in required:
                reading.wrong[name] = f"is needed: {_expected(each)}"
            continue
        try:
            reading.params[name] = _value(each, text)
        except Wrong as error:
            reading.wrong[name] = str(error)
    return reading


def shapes_of(text: str) -> dict[str, list[int]]:
    """The shapes of a model's inputs, one input a line: `x: 1, 3, 224, 224`.

    Raises:
        Wrong: a line is none of that.
    """
    shapes = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = re.fullmatch(r"(.+?)\s*[:=]\s*([\d,x×\s]+)", line)
        if match is None:
            raise Wrong("one input a line, like x: 1, 3, 224, 224")
        shapes[match[1]] = [int(each) for each in re.findall(r"\d+", match[2])]
    return shapes


def _field(name: str, schema: Schema, is_required: bool) -> Field:
    plain = _plain(schema)
    kind = "text"
    if plain.get("type") == "boolean":
        kind = "switch"
    elif plain.get("enum"):
        kind = "choice"
    elif plain.get("type") == "integer":
        kind = "number"
    default = schema.get("default")
    hint = "" if default in (None, [], "") or kind == "choice" else text_of(default)
    items = plain.get("items", {})
    description = str(schema.get("description", ""))
    if items.get("enum"):
        description += f" With commas: {', '.join(items['enum'])}."
    return Field(
        name=name,
        kind=kind,
        is_required=is_required,
        help=description[:1].upper() + description[1:],
        choices=_choices(schema, plain) if kind == "choice" else (),
        hint=hint,
        minimum=plain.get("minimum") if kind == "number" else None,
    )


def _choices(schema: Schema, plain: Schema) -> tuple[str, ...]:
    """The names to choose from, after an empty one where the value may be null."""
    is_optional = _alternatives(schema) != [schema]
    return (*[""] * is_optional, *map(str, plain["enum"]))


def _alternatives(schema: Schema) -> list[Schema]:
    """What a value may be; nothing at all is an empty field."""
    choices = schema.get("oneOf") or schema.get("anyOf") or [schema]
    return [each for each in choices if each.get("type") != "null"]


def _plain(schema: Schema) -> Schema:
    """The one thing that a value may be; without one, any text."""
    alternatives = _alternatives(schema)
    return alternatives[0] if len(alternatives) == 1 else {}


def _value(schema: Schema, text: str) -> Any:
    alternatives = _alternatives(schema)
    if len(alternatives) == 1:
        return _one(alternatives[0], text)
    for each in alternatives:
        try:
            return _one(each, text)
        except Wrong:
            continue
    raise Wrong(f"must be {_expected(schema)}")


def _one(schema: Schema, text: str) -> Any:
    kind = schema.get("type")
    if kind == "array":
        return [_one(schema["items"], part) for part in _parts(schema, text)]
    value: Any = text
    if kind in ("integer", "number"):
        try:
            value = int(text) if kind == "integer" else float(text)
        except ValueError:
            raise Wrong(f"must be {_expected(schema)}, not {text[:40]!r}") from None
    if "enum" in schema and value not in schema["enum"]:
        raise Wrong(f"must be {_expected(schema)}, not {text[:40]!r}")
    if "minimum" in schema and value < schema["minimum"]:
        raise Wrong(f"must be at least {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        raise Wrong(f"must be at most {schema['maximum']}")
    return value


def _parts(schema: Schema, text: str) -> list[str]:
    separator = r"[\s,x×]+" if schema["items"].get("type") == "integer" else r"[\s,]+"
    return [part for part in re.split(separator, text.strip("[]() ")) if part]


def _expected(schema: Schema) -> str:
    """What a value has to be, in words."""
    return " or ".join(_words(each) for each in _alternatives(schema))


def _words(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    match schema.get("type"):
        case "integer":
            return "a whole number"
        case "number":
            return "a number"
        case "array" if schema["items"].get("type") == "integer":
            return "whole numbers with commas"
        case "array":
            return "names with commas"
    return "a text"
