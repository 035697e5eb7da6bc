"""The reference of the API: all of the OpenAPI document, from it alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.dashboard.pages import reference
from tests.server.dashboard.conftest import Pages, words

DOCUMENT: dict[str, Any] = {
    "components": {
        "schemas": {
            "Job": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer", "description": "its <number>"},
                    "inner": {"anyOf": [{"$ref": "#/components/schemas/Inner"}, {"type": "null"}]},
                },
            },
            "Inner": {
                "type": "object",
                "required": ["x"],
                "properties": {"x": {"type": "string"}},
            },
        }
    },
}


def test_every_operation_with_its_parameters_is_there(pages: Pages) -> None:
    page = pages.get("/dashboard/reference")
    text = words(page)
    document = pages.client.get("/v1/openapi.json").json()
    n_operations = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            n_operations += 1
            assert f'id="{operation["operationId"]}"' in page, path
            assert f"{method.upper()} {path}" in text, (method, path)
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in page, (path, parameter)
    assert page.count('class="operation"') == n_operations > 30
    assert "best_us" in text and "Weighted sum of the tasks&" not in text
    assert "Example of a response" in text
    assert "<code>database_workload.json</code>" in page  # the point ends no sentence
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for address in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert address.startswith(("/", "#")), address


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "integer"),
        ({}, "any"),
        ({"const": "tir"}, '"tir"'),
        ({"type": "array", "items": {"type": "string"}}, "list of string"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "number or null"),
        ({"enum": ["a", "b"], "type": "string"}, "a | b"),
        ({"type": "string", "format": "date-time"}, "date-time"),
        ({"$ref": "#/components/schemas/Job"}, "object"),
    ],
)
def test_types_in_words(schema: dict[str, Any], text: str) -> None:
    assert reference.type_of(DOCUMENT, schema) == text


def test_fields_of_nested_objects_stand_behind_theirs() -> None:
    schema = {"type": "array", "items": {"$ref": "#/components/schemas/Job"}}
    content = {"application/json": {"schema": schema, "example": [{"id": "<1>"}]}}
    operation = {
        "description": "All `jobs`, <b>. More.",
        "responses": {"200": {"description": "OK", "content": content}},
    }
    document = {**DOCUMENT, "paths": {"/v1/x": {"get": operation}}}
    (made,) = reference.operations(document)
    assert [(one.name, one.depth) for one in made.fields] == [("id", 0), ("inner", 0), ("x", 1)]
    assert str(made.title) == "All <code>jobs</code>, &lt;b&gt;" and str(made.text) == "More."
    assert "<1>" not in made.example and "&lt;1&gt;" in made.example
