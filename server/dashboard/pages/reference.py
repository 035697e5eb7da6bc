"""What the service has: the REST API as a page, its devices and tuners.

The API's page has every operation of the OpenAPI document, with parameters and examples. It is
rendered here from what `/v1/openapi.json` serves, so it needs no script and nothing from
elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fastapi
import markupsafe

from server.dashboard import formats, render
from server.store import tuners as store_tuners

router = render.router()

_METHODS = ("get", "post", "put", "patch", "delete")

#: Nested objects are shown to this depth.
MAX_DEPTH = 3

Schema = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Property:
    """A parameter of an operation, or a field of a body; `depth` counts from 0."""

    name: str
    type: str
    place: str
    is_required: bool
    help: str
    depth: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one address."""

    anchor: str
    method: str
    path: str
    tag: str
    #: the first sentence of its description, and the rest
    title: markupsafe.Markup
    text: markupsafe.Markup
    parameters: Sequence[Property]
    body: Sequence[Property]
    body_type: str
    responses: Sequence[tuple[str, str]]
    fields: Sequence[Property]
    example: Any


@router.get("/dashboard/reference")
def reference(request: fastapi.Request, viewer: render.Viewer) -> fastapi.Response:
    """All operations, by tag."""
    document = request.app.openapi()
    by_tag: dict[str, list[Operation]] = {}
    for operation in operations(document):
        by_tag.setdefault(operation.tag, []).append(operation)
    return viewer.page(
        "reference.html",
        paragraphs=with_code(document["info"].get("description", "")).split("\n\n"),
        by_tag=by_tag,
        address=str(request.base_url).rstrip("/"),
    )


def with_code(text: str) -> markupsafe.Markup:
    """A text of the document, with what stands between backticks as code."""
    escaped = str(markupsafe.escape(text))
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def operations(document: Schema) -> Iterator[Operation]:
    """The operations of an OpenAPI document, in its order."""
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield _operation(document, path, method, methods[method])


def _operation(document: Schema, path: str, method: str, operation: Schema) -> Operation:
    media_type, body = _content(operation.get("requestBody", {}))
    answer: Schema = next((r for code, r in operation["responses"].items() if code[0] == "2"), {})
    _, fields = _content(answer)
    title, *rest = re.split(r"\.(?:\s+|$)", operation.get("description", ""), maxsplit=1)
    content: Schema = next(iter(answer.get("content", {}).values()), {})
    return Operation(
        anchor=operation.get("operationId") or f"{method}-{path}",
        method=method.upper(),
        path=path,
        tag=(operation.get("tags") or ["service"])[0],
        title=with_code(title or operation.get("summary", "")),
        text=with_code("".join(rest)),
        parameters=[_parameter(document, each) for each in operation.get("parameters", ())],
        body=list(_properties(document, body)),
        body_type=media_type,
        responses=[(code, r.get("description", "")) for code, r in operation["responses"].items()],
        fields=list(_properties(document, fields)),
        example=_example(content.get("example")),
    )


def _parameter(document: Schema, parameter: Schema) -> Property:
    schema = parameter.get("schema", {})
    return Property(
        parameter["name"],
        type_of(document, schema),
        parameter["in"],
        bool(parameter.get("required")),
        parameter.get("description") or schema.get("description", ""),
    )


def _content(holder: Schema) -> tuple[str, Schema]:
    """The media type and the schema of a body; empty ones without a body."""
    for media_type, content in holder.get("content", {}).items():
        return media_type, content.get("schema", {})
    return "", {}


def _properties(document: Schema, schema: Schema, depth: int = 0) -> Iterator[Property]:
    """The fields of a body, those of nested objects behind theirs."""
    schema = _object(document, schema)
    required = set(schema.get("required", ()))
    for name, each in schema.get("properties", {}).items():
        text = each.get("description", "")
        place = "" if "default" not in each else _default(each["default"])
        yield Property(name, type_of(document, each), place, name in required, text, depth)
        if depth + 1 < MAX_DEPTH:
            yield from _properties(document, each, depth + 1)


def _object(document: Schema, schema: Schema) -> Schema:
    """The object that a schema has, inside references, lists and alternatives; else it itself."""
    schema = _resolved(document, schema)
    if "items" in schema:
        return _object(document, schema["items"])
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        inner = _object(document, each)
        if "properties" in inner:
            return inner
    return schema


def _resolved(document: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def type_of(document: Schema, schema: Schema) -> str:
    """The type of a value in a few words: `integer or null`, `list of string`, `Job`."""
    if "$ref" in schema:
        schema = _resolved(document, schema)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return " or ".join(dict.fromkeys(type_of(document, each) for each in alternatives))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    match schema.get("type"):
        case "array":
            return f"list of {type_of(document, schema.get('items', {}))}"
        case "string":
            return schema.get("format") or ("file" if "contentMediaType" in schema else "string")
        case None:
            return "any"
    return str(schema["type"])


def _default(value: Any) -> str:
    return "" if value is None else f"default {json.dumps(value, ensure_ascii=False)}"


def _example(value: Any) -> Any:
    """An example as marked JSON; a text as it is, None without one."""
    if value is None:
        return None
    if isinstance(value, str):
        return value
    return formats.marked(json.dumps(value, indent=2, ensure_ascii=False), "json")


devices_router = render.router()

#: What is shown of `felix.target.Hardware`, with its unit.
FACTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "cores": ("Cores", formats.count),
    "clock_ghz": ("Clock", lambda value: f"{value:.2f} GHz"),
    "vector_lanes": ("float32 lanes of a vector", formats.count),
    "peak_fp32_gflops": ("Peak float32", lambda value: f"{formats.number(value)} GFLOP/s"),
    "dram_bandwidth_gbs": ("Memory bandwidth", lambda value: f"{formats.number(value)} GB/s"),
    "l1_bytes": ("L1", formats.memory),
    "l2_bytes": ("L2", formats.memory),
    "l3_bytes": ("L3", formats.memory),
    "max_threads_per_block": ("Threads a block", formats.count),
    "shared_bytes_per_block": ("Shared memory a block", formats.memory),
}
_OF_GPUS = ("max_threads_per_block", "shared_bytes_per_block")

#: Tuners that are gone are shown up to this number.
MAX_GONE = 20


@devices_router.get("/dashboard/devices")
def devices(viewer: render.Viewer) -> fastapi.Response:
    """Devices by kind; tuners, newest first."""
    stale_s = viewer.services.settings.stale_s
    with viewer.read() as tx:
        tuners = store_tuners.every(tx, stale_s)
        reports = store_tuners.reports_of(tx, [tuner.id for tuner in tuners])
    gone = [tuner for tuner in tuners if not tuner.is_alive]
    return viewer.page(
        "devices.html",
        devices=[
            (each, facts(each.kind, each.hardware))
            for each in store_tuners.devices(tuners, reports)
        ],
        tuners=[tuner for tuner in tuners if tuner.is_alive] + gone[:MAX_GONE],
        n_hidden=max(0, len(gone) - MAX_GONE),
        stale_s=stale_s,
    )


def facts(kind: str, hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a person wants to know of a device: label and value."""
    return [
        (label, write(hardware[name]))
        for name, (label, write) in FACTS.items()
        if hardware.get(name) and not (kind == "llvm" and name in _OF_GPUS)
    ]
