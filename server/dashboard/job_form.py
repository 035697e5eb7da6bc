"""The form of a new job as the API has it, and back: texts of its fields, settings of a job.

Fields of parameters of operators begin with `PARAM`; empty fields are left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from server import submission
from server.store import rows

#: Fields of the form that all workloads have.
COMMON = ("name", "target", "trials", "seconds", "tags", "priority", "seed", "strategy", "note")
OPTIONS = ("round_size", "patience_rounds")
_OF_FILES = ("kind", "shapes", "file")
PARAM = "p."
#: The switch that is the opposite of `reuse`.
BEGIN_ANEW = "begin_anew"
ALLOW_TF32 = "allow_tf32"
#: The switch that is the opposite of `network`, of an ONNX file.
NO_NETWORK = "no_network"
#: The switch for PyTorch's operators in a network.
PYTORCH = "pytorch"


def settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """What all sources have, as the API has it."""
    chosen: dict[str, Any] = {
        name: texts[name].strip() for name in COMMON if texts.get(name, "").strip()
    }
    if "tags" in chosen:
        chosen["tags"] = [tag.strip() for tag in chosen["tags"].split(",") if tag.strip()]
    if texts.get(BEGIN_ANEW):
        chosen["reuse"] = False
    if texts.get(ALLOW_TF32):
        chosen["allow_tf32"] = True
    options = {name: texts[name].strip() for name in OPTIONS if texts.get(name, "").strip()}
    return chosen | {"options": options}


def of_file(texts: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a file, as the API has them.

    Raises:
        Wrong: the shapes are malformed.
    """
    chosen = settings(texts) | {"kind": texts.get("kind", "onnx")}
    if chosen["kind"] == "onnx":
        chosen["shapes"] = shapes_of(texts.get("shapes", ""))
        if texts.get(NO_NETWORK):
            chosen["network"] = False
        if texts.get(PYTORCH):
            chosen["pytorch"] = True
    return chosen


def params(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts of an operator's parameters, by their names."""
    return {name[len(PARAM) :]: text for name, text in texts.items() if name.startswith(PARAM)}


def of_job(job: rows.Job) -> dict[str, str]:
    """The texts for a job like this one, an operator's."""
    content = {name: getattr(job, name) for name in COMMON}
    if job.strategy == submission.default_strategy(job.target_key):
        del content["strategy"]
    workload = {"params": job.workload.get("params", {})}
    content["allow_tf32"] = job.workload.get("allow_tf32", False)
    return of_request({**content, "options": job.options, "workload": workload})


def of_request(content: Mapping[str, Any]) -> dict[str, str]:
    """The texts for a body of `POST /v1/jobs`."""
    texts = of_params(texts_of(content["workload"].get("params", {})))
    for name in COMMON:
        if content.get(name) is not None:
            texts[name] = text_of(content[name])
    for name, value in content.get("options", {}).items():
        if name in OPTIONS and value is not None:
            texts[name] = str(value)
    if not content.get("reuse", True):
        texts[BEGIN_ANEW] = "on"
    if content.get("allow_tf32"):
        texts[ALLOW_TF32] = "on"
    return texts


def of_params(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts of parameters as fields of the form."""
    return {f"{PARAM}{name}": text for name, text in texts.items()}


def wrong(validation_errors: Any) -> dict[str, str]:
    """What is wrong with a body, by field of the form."""
    return {_place(each["loc"]): words(each["msg"]) for each in validation_errors}


def words(message: str) -> str:
    """A message of the validation for people."""
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return message.split(", unable to parse")[0]


def idempotency_key(body: pydantic.BaseModel, texts: Mapping[str, str]) -> str:
    """An idempotency key: a form that is sent twice unchanged makes one job."""
    sha256 = texts.get("sha256", "")
    identity = f"{texts.get('form_id', '')}\n{body.model_dump_json()}\n{sha256}"
    return f"form-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def _place(location: tuple[int | str, ...]) -> str:
    """The field an error belongs to; the choice of the operator, if to none."""
    names = [part for part in location if part in (*COMMON, *OPTIONS, *_OF_FILES)]
    return str(names[-1]) if names else "op"


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
