"""Texts of pages: names from right to left stand alone; the reference has all of the document."""

from __future__ import annotations

import re
from html import parser
from typing import Any

import pytest

from server.dashboard.pages import reference
from server.store import jobs, requests, webhooks
from tests.server.dashboard.conftest import Pages, check_ids, words
from tests.support import api_rows, service_fakes
from tests.support.dashboard import growing

HEBREW = "שלום עולם 12"
ISOLATED = f"\u2068{HEBREW}\u2069"

#: Elements that `base.css` isolates, and those that browsers do.
INLINE = {"a", "b", "strong", "span", "code", "summary", "label", "button", "option", "bdi"}
VOID = {"meta", "link", "input", "img", "br"}

PLACES = ("", "/compare?job=1&job=2", "/jobs/1", "/jobs/1/trials", "/jobs/1/trials/2",
          "/jobs/1/search", "/jobs/1/code", "/jobs/1/log", "/submit?like=1", "/keys", "/audit",
          "/devices", "/batches", "/batches/1", "/webhooks", "/webhooks/1",
          "/projects/default")  # fmt: skip


class Texts(parser.HTMLParser):
    """Texts with the names of their elements; all text of a block element is one text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[tuple[str, list[str]]] = [("", [])]
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self._open.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        while tag in [name for name, _ in self._open]:
            name, parts = self._open.pop()
            self.texts.append((name, " ".join("".join(parts).split())))
            if name in INLINE:
                self._open[-1][1].append("\ufffc")  # stands for the element
            if name == tag:
                return

    def handle_data(self, data: str) -> None:
        self._open[-1][1].append(data)


def not_isolated(page: str) -> list[tuple[str, str]]:
    """Elements in which a name stands beside other text, without a direction of its own."""
    named = [(tag, text) for tag, text in Texts(page).texts if HEBREW in text]
    assert named
    return [
        (tag, text)
        for tag, text in named
        if tag not in ("script", "textarea")
        and text != HEBREW
        and HEBREW in text.replace(ISOLATED, "")
    ]


@pytest.fixture
def filled(pages: Pages) -> Pages:
    """A job of two tasks, a key and a tag with such names."""
    db = pages.service.db
    worker = growing.tuner(db)
    made = service_fakes.key(db, HEBREW, can_submit=True, can_admin=True)
    tasks = tuple(
        jobs.NewTask(name=HEBREW, weight=1.0, flops=1e6, min_bytes=1e3, program=f"{number}")
        for number in range(2)
    )
    changes = {"name": HEBREW, "tags": (HEBREW,), "note": HEBREW, "tasks": tasks}
    for _ in range(2):
        api_rows.queued(db, made.key.id, trials=64, **changes)
        growing.Growing(db, worker).step(10)
    with db.write() as tx:
        requests.create_batch(
            tx, made.key.id, [{"job_id": 1}, {"problem": {"detail": HEBREW}}], None
        )
        webhooks.create(tx, "default", "https://a.example/", [webhooks.REPORTED[0]], made.key.id)
    pages.client.cookies.clear()
    assert pages.client.post("/dashboard/login", data={"key": made.text}).status_code == 303
    return pages


def test_names_stand_alone(filled: Pages) -> None:
    for place in PLACES:
        assert not_isolated(filled.get(f"/dashboard{place}")) == [], place


def test_the_check_sees_a_name_beside_other_text() -> None:
    assert not_isolated(f"<p>{HEBREW} · job 7</p>") and not_isolated(f"<b>1 · {HEBREW}</b>")
    assert not_isolated(f"<p><bdi>{HEBREW}</bdi> · job 7</p>") == []
    assert not_isolated(f"<title>{ISOLATED} · job 7</title>") == []


def test_the_style_isolates_inline_elements(pages: Pages) -> None:
    address = re.search(r'href="([^"]+/base\.css)"', pages.get("/dashboard"))
    assert address is not None
    style = pages.get(address.group(1))
    rule = re.search(r"([^{}/]*)\{ unicode-bidi: isolate; \}", style)
    assert rule is not None
    selectors = {each.strip() for each in rule.group(1).split(",")}
    assert selectors >= INLINE - {"bdi"}


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
    }
}


def test_every_operation_with_its_parameters_is_there(pages: Pages) -> None:
    page = pages.get("/dashboard/reference")
    assert 'href="/dashboard/reference" aria-current="page"' in page
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
    check_ids(page)
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
