"""Verbs over several jobs: batches, templates, estimates, similar jobs, databases."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from felix import errors, files
from felix.client import _http, _rows


class Teams:
    """The part of the client that is about more than one job."""

    _http: _http.Http

    def submit_batch(
        self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> _rows.Batch:
        """Queue several jobs (bodies of `POST /v1/jobs`); refused ones say why in `items`."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_urlsafe(16)}
        body = {"jobs": [dict(job) for job in jobs]}
        response = self._http.send("POST", "/v1/batches", headers, json=body)
        return _rows.of(_rows.Batch, response.json())

    def batch(self, batch_id: int) -> _rows.Batch:
        """A batch, with its jobs as they stand."""
        return _rows.of(_rows.Batch, self._http.get(f"/v1/batches/{batch_id}"))

    def batches(self, limit: int = 20) -> list[_rows.Batch]:
        """The newest batches of this key, at most 100, with their jobs as they stand."""
        items = self._http.get("/v1/batches", limit=limit)["items"]
        return [_rows.of(_rows.Batch, item) for item in items]

    def save_template(self, name: str, job: Mapping[str, Any]) -> _rows.Template:
        """Save a body of `POST /v1/jobs` under a name; an earlier one is replaced."""
        response = self._http.send("PUT", f"/v1/templates/{name}", json=dict(job))
        return _rows.of(_rows.Template, response.json())

    def templates(self) -> list[_rows.Template]:
        """The templates of this key."""
        items = self._http.get("/v1/templates")["items"]
        return [_rows.of(_rows.Template, item) for item in items]

    def delete_template(self, name: str) -> None:
        """Remove a template; its jobs stay."""
        self._http.send("DELETE", f"/v1/templates/{name}")

    def submit_template(
        self, template: str, /, *, idempotency_key: str | None = None, **changes: Any
    ) -> _rows.Job:
        """Queue a job of a template, with changes such as `workload={"params": {"m": 64}}`."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_urlsafe(16)}
        path = f"/v1/templates/{template}/jobs"
        response = self._http.send("POST", path, headers, json={"job": changes})
        return _rows.of(_rows.Job, response.json())

    def estimate(self, job: Mapping[str, Any]) -> _rows.Estimate:
        """How long a job (a body of `POST /v1/jobs`) would take; nothing is queued."""
        response = self._http.send("POST", "/v1/estimate", json=dict(job))
        return _rows.of(_rows.Estimate, response.json())

    def similar(self, job_id: int) -> list[dict[str, Any]]:
        """Other jobs of the same operator or with a program of this one, newest first."""
        items: list[dict[str, Any]] = self._http.get(f"/v1/jobs/{job_id}/similar")["items"]
        return items

    def import_database(
        self, path: str | pathlib.Path, *, idempotency_key: str | None = None
    ) -> _rows.Job:
        """Import a zip of a MetaSchedule database; the job that holds it has ended.

        Raises:
            RemoteError: the service refused; the message says why.
        """
        path = pathlib.Path(path)
        headers = {"Idempotency-Key": idempotency_key or secrets.token_urlsafe(16)}
        try:
            content = path.read_bytes()
        except OSError as error:
            raise errors.WorkloadError(f"cannot read {path}: {error.strerror}") from error
        file = {"file": (path.name, content)}
        response = self._http.send("POST", "/v1/databases", headers, files=file)
        return _rows.of(_rows.Job, response.json())

    def export_database(
        self, path: str | pathlib.Path, job_ids: Sequence[int] | None = None, **filters: Any
    ) -> pathlib.Path:
        """Write one MetaSchedule database of several jobs, a zip that plain TVM loads unpacked.

        Args:
            path: of the zip.
            job_ids: whose best schedules; None: of those that the filters select.
            filters: tag, op, program, target_key, mine.

        Raises:
            OutputError: the file cannot be written.
        """
        query = {"job": None if job_ids is None else list(job_ids), **filters}
        params = {name: value for name, value in query.items() if value is not None}
        response = self._http.send("GET", "/v1/database", params=params)
        path = pathlib.Path(path)
        try:
            with files.replacing(path, durable=False) as file:
                file.write(response.content)
        except OSError as error:
            raise errors.OutputError(f"cannot write {path}: {error.strerror}") from error
        return path
