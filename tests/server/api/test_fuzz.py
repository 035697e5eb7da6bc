"""schemathesis over the OpenAPI document: whatever it sends, no response is a 5xx.

It also checks that statuses, media types and bodies are those that the document promises.
"""

from __future__ import annotations

import pathlib
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from server import app
from server import settings as service_settings
from server.api import events
from server.database import database, schema
from server.store import blobs
from tests.server import conftest
from tests.server.api import test_access
from tests.support import api_rows, service_fakes, share

EXAMPLES = share.rounds(3, 5)

#: PostgreSQL takes less of what comes through; what does not fit the document is refused before a
#: database is asked, so it is tried on that alone.
ROUNDS = [
    ("postgresql", schemathesis.GenerationMode.POSITIVE),
    ("postgresql", schemathesis.GenerationMode.NEGATIVE),
    *([("sqlite", schemathesis.GenerationMode.POSITIVE)] if share.ALL else []),
]
#: Every route in each round, or in one of them; an application serves a whole round.
CASES = sorted(share.crossed(test_access.NEEDS, ROUNDS), key=lambda case: ROUNDS.index(case[1]))

#: Besides the status: what the document promises of media types and bodies.
PROMISES = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The document of an application with some jobs; only what needs no child is parsed."""
    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)
    patch.setattr(events, "MAX_STREAM_S", 0.2)  # of jobs that never end
    patch.setattr(events, "PING_S", 0.1)
    folder = tmp_path_factory.mktemp("fuzz")
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres")
    settings = service_settings.Settings(data_dir=pathlib.Path(folder), database_url=url)
    db = database.Database(settings.database)
    if url is not None:
        conftest.empty(db)
    schema.upgrade(db)
    key = service_fakes.key(db, can_admin=True)
    for _ in range(3):
        api_rows.finished(db, blobs.open_store(settings.blobs), key.key.id)
    db.close()
    made = schemathesis.openapi.from_asgi("/v1/openapi.json", app.create_app(settings))
    return made, {"Authorization": f"Bearer {key.text}"}


@pytest.mark.parametrize(
    ("api", "mode", "method", "path"),
    [(*chosen, *route) for route, chosen in CASES],
    indirect=["api"],
    scope="module",
)
def test_no_response_is_a_server_error(
    api: Any, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    """Requests that fit the document, and some that do not."""
    document, headers = api
    operation = document[path][method]

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if (method, path) == ("DELETE", "/v1/keys/{key_id}"):
            case.path_parameters["key_id"] = 99  # not the key of the test
        response = case.call(headers=headers)
        assert response.status_code < 500, f"{case.as_curl_command()}: {response.text}"
        if mode.is_positive and path != "/v1/session":
            assert response.status_code not in (401, 403)
        case.validate_response(response, checks=PROMISES)

    try:
        check()
    except hypothesis.errors.Unsatisfiable:  # nothing is malformed where nothing is sent
        assert mode.is_negative
