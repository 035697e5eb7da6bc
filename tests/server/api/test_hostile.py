"""Hostile input: the right 4xx, quickly, and no trace in the store."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from tests.server.conftest import GEMM, Service
from tests.support.hostile import onnx_models


@pytest.fixture
def clean(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Service]:
    """The service; afterwards there are no jobs, no blobs, no files left, and it still works."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield service
    assert service.client.get("/v1/jobs").json()["items"] == []
    left = [path for path in scratch.iterdir() if not path.name.startswith("pymp-")]
    assert service.files() == [] and left == []  # pymp: the parser's fork server
    assert service.client.get("/healthz").status_code == 200


def _is_problem(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status and problem["type"].startswith("urn:felix:problem:")
    return problem


def test_a_gigabyte_is_refused_when_announced(clean: Service) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": str(1 << 30)}
    response = clean.client.post("/v1/jobs/upload", headers=headers, content=b"--x")
    problem = _is_problem(response, 413)
    assert str(clean.settings.max_upload_bytes) in problem["detail"]


def test_a_gigabyte_is_refused_while_it_comes(clean: Service) -> None:
    """Without a Content-Length it is counted while it is read, and the rest is not read."""
    head = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.onnx"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n"
    )
    received: list[int] = []
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        received.append(1)
        body = head if len(received) == 1 else bytes(1 << 20)
        return {"type": "http.request", "body": body, "more_body": len(received) < 1024}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {**clean.auth("submit"), "Content-Type": "multipart/form-data; boundary=x"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs/upload",
        "query_string": b"",
        "raw_path": b"/v1/jobs/upload",
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("testserver", 80),
    }
    assert clean.client.portal is not None
    clean.client.portal.call(clean.client.app, scope, receive, send)
    assert sent[0]["status"] == 413 and json.loads(sent[1]["body"])["status"] == 413
    assert len(received) == 6  # 4 MiB are allowed, and 1 MiB for the form


def test_a_key_may_allow_less(clean: Service) -> None:
    ask = {"name": "s", "scopes": ["submit"], "max_upload_bytes": 100}
    text = clean.client.post("/v1/keys", json=ask, headers=clean.auth("admin")).json()["text"]
    headers = {"Authorization": f"Bearer {text}"}
    files = {"file": ("a.onnx", bytes(101))}
    response = clean.client.post("/v1/jobs/upload", files=files, headers=headers)
    assert "100 bytes" in _is_problem(response, 413)["detail"]
    body = {"workload": {"kind": "tir", "program": "x" * 101}}
    _is_problem(clean.client.post("/v1/jobs", json=body, headers=headers), 413)


def test_a_large_json_body_is_refused(clean: Service) -> None:
    body = b'{"workload": "' + b"x" * (21 << 20) + b'"}'
    headers = {"Content-Type": "application/json"}
    _is_problem(clean.client.post("/v1/jobs", content=body, headers=headers), 413)
    pieces = (body[i : i + (1 << 20)] for i in range(0, len(body), 1 << 20))
    _is_problem(clean.client.post("/v1/jobs", content=pieces, headers=headers), 413)


def test_a_zip_bomb_is_no_model(clean: Service) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model.onnx", bytes(256 << 20))
    assert len(bomb.getvalue()) < 1 << 20
    _is_problem(clean.upload("bomb.onnx", bomb.getvalue()), 422)


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "..", "a/b.onnx", "a\\b.onnx", "/etc/passwd", "a\u202eb", "x" * 300],
)
def test_names_with_paths_are_refused(clean: Service, name: str) -> None:
    problem = _is_problem(clean.upload(name, onnx_models.matmul_relu()), 422)
    assert problem["errors"][0]["where"] == "#/file/filename"


def test_malformed_programs_and_cut_models_are_refused(clean: Service) -> None:
    """How else they may be malformed is tested of the parser."""
    _is_problem(clean.upload("cut.onnx", onnx_models.matmul_relu()[:-1]), 422)
    _is_problem(clean.upload("t.json", b"\xff\xfe", '{"kind": "tir"}'), 422)
    for text in ("{", "[" * 100_000):
        body = {"workload": {"kind": "tir", "program": text}}
        _is_problem(clean.client.post("/v1/jobs", json=body), 422)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"workload": null}',
        b'{"workload": {"kind": "shell"}}',
        b'{"workload": {"kind": "operator", "name": "gemm", "params": {"m": NaN}}}',
        b'{"workload": {"kind": "operator", "name": "gemm", "params": {"m": "\\ud800"}}}',
        b'{"workload": {"kind": "operator", "name": "g\\u0000", "params": {}}}',
        b'{"workload": {"kind": "operator", "name": "nope", "params": {}}}',
        b'{"workload": {"kind": "operator", "name": "gemm", "params": {"m": -1}}}',
        b'{"workload": {"kind": "operator", "name": "gemm", "params": {"a": 1e999}}}',
    ],
)
def test_malformed_bodies_are_refused(clean: Service, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    _is_problem(clean.client.post("/v1/jobs", content=body, headers=headers), 422)


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 0},
        {"trials": 2**40},
        {"seconds": -1},
        {"seed": -1},
        {"priority": 10**9},
        {"tags": ["x"] * 33},
        {"target": "toaster"},
        {"strategy": "luck"},
        {"options": {"round_size": 0}},
        {"unknown": 1},
    ],
)
def test_settings_out_of_range_are_refused(clean: Service, changes: dict[str, Any]) -> None:
    _is_problem(clean.client.post("/v1/jobs", json=GEMM | changes), 422)


def test_forms_that_are_none_are_refused(clean: Service) -> None:
    send = clean.client.post
    _is_problem(send("/v1/jobs/upload", json={}), 415)
    _is_problem(send("/v1/jobs/upload", data={"job": "{}"}, files={"other": b"x"}), 422)
    _is_problem(clean.upload("a.onnx", b""), 422)
    _is_problem(clean.upload("a.onnx", b"x", "not json"), 422)
    _is_problem(clean.upload("a.onnx", b"x", '{"kind": "pickle"}'), 422)
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    _is_problem(send("/v1/jobs/upload", content=b"no form", headers=broken), 422)
    missing = {"Content-Type": "multipart/form-data"}
    _is_problem(send("/v1/jobs/upload", content=b"no form", headers=missing), 422)


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc%2Fpasswd", "%2e%2e", "%2Fetc%2Fpasswd", "a%00b", "x" * 400]
)
def test_artifact_names_reach_no_file(clean: Service, name: str) -> None:
    response = clean.client.get(f"/v1/jobs/1/artifacts/{name}")
    assert response.status_code in (404, 405, 422)


def test_numbers_beyond_the_database_are_refused(clean: Service) -> None:
    for path in (
        "/v1/jobs/99999999999999999999",
        "/v1/jobs/0",
        "/v1/jobs/-1",
        "/v1/jobs?after=4294967296",
        "/v1/jobs?limit=100000",
        "/v1/jobs/1/events?after_seq=-1",
    ):
        _is_problem(clean.client.get(path), 422)


def test_text_that_databases_refuse(clean: Service) -> None:
    for query in ("q=%00", "tag=%00", "op=%ff", "q=%ed%a0%80"):
        assert clean.client.get(f"/v1/jobs?{query}").status_code == 200


def test_wrong_methods_and_places_are_problems(clean: Service) -> None:
    _is_problem(clean.client.put("/v1/jobs"), 405)
    _is_problem(clean.client.get("/v1/nothing"), 404)
    _is_problem(clean.client.get("/v1/jobs/"), 404)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("secret detail"), 500),
        (sa.exc.OperationalError("SELECT secret", {}, Exception("gone")), 503),
    ],
)
def test_an_unexpected_error_tells_nothing(
    service: Service, monkeypatch: Any, error: Exception, status: int
) -> None:
    monkeypatch.setattr("server.store.job_lists.page", mock.Mock(side_effect=error))
    response = service.client.get("/v1/jobs")
    problem = _is_problem(response, status)
    assert "secret" not in response.text
    assert problem["request_id"] == response.headers["X-Request-Id"]
    assert ("Retry-After" in response.headers) == (status == 503)
