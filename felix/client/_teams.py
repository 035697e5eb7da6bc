"""Verbs around one job: batches, templates, databases; keys, projects, webhooks, devices."""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from felix import errors, files
from felix.client import _http, rows


class Teams:
    """The part of the client that is about several jobs, and what is around them."""

    _http: _http.Http

    def submit_batch(
        self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> rows.Batch:
        """Queue several jobs (bodies of `POST /v1/jobs`); refused ones say why in `items`."""
        body = {"jobs": [dict(job) for job in jobs]}
        return self._http.made(rows.Batch, "/v1/batches", idempotency_key, json=body)

    def batch(self, batch_id: int) -> rows.Batch:
        """A batch, with its jobs as they stand."""
        return self._http.row(rows.Batch, "GET", f"/v1/batches/{batch_id}")

    def batches(self, limit: int = 20) -> list[rows.Batch]:
        """The newest batches of this key, at most 100, with their jobs as they stand."""
        return self._http.listed(rows.Batch, "/v1/batches", limit=limit)

    def save_template(self, name: str, job: Mapping[str, Any]) -> rows.Template:
        """Save a body of `POST /v1/jobs` under a name; an earlier one is replaced."""
        return self._http.row(rows.Template, "PUT", f"/v1/templates/{name}", json=dict(job))

    def templates(self) -> list[rows.Template]:
        """The templates of this key."""
        return self._http.listed(rows.Template, "/v1/templates")

    def delete_template(self, name: str) -> None:
        """Remove a template; its jobs stay."""
        self._http.send("DELETE", f"/v1/templates/{name}")

    def submit_template(
        self, template: str, /, *, idempotency_key: str | None = None, **changes: Any
    ) -> rows.Job:
        """Queue a job of a template, with changes such as `workload={"params": {"m": 64}}`."""
        path = f"/v1/templates/{template}/jobs"
        return self._http.made(rows.Job, path, idempotency_key, json={"job": changes})

    def estimate(self, job: Mapping[str, Any]) -> rows.Estimate:
        """How long a job (a body of `POST /v1/jobs`) would take; nothing is queued."""
        return self._http.row(rows.Estimate, "POST", "/v1/estimate", json=dict(job))

    def similar(self, job_id: int) -> list[dict[str, Any]]:
        """Other jobs of the same operator or with a program of this one, newest first."""
        items: list[dict[str, Any]] = self._http.get(f"/v1/jobs/{job_id}/similar")["items"]
        return items

    def import_database(
        self, path: str | pathlib.Path, *, idempotency_key: str | None = None
    ) -> rows.Job:
        """Import a zip of a MetaSchedule database; the job that holds it has ended.

        Raises:
            RemoteError: the service refused; the message says why.
        """
        path = pathlib.Path(path)
        file = {"file": (path.name, _http.content_of(path))}
        return self._http.made(rows.Job, "/v1/databases", idempotency_key, files=file)

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
        with errors.writing(path):
            with files.replacing(path, durable=False) as file:
                file.write(response.content)
        return path

    def devices(self) -> list[rows.Device]:
        """What tuners measure on."""
        return self._http.listed(rows.Device, "/v1/devices")

    def workers(self) -> list[rows.Worker]:
        """Tuners, newest first."""
        return self._http.listed(rows.Worker, "/v1/workers")

    def keys(self) -> list[rows.Key]:
        """All API keys; needs the scope admin."""
        return self._http.listed(rows.Key, "/v1/keys")

    def create_key(
        self, name: str, scopes: Sequence[str] = ("read",), **limits: Any
    ) -> rows.MadeKey:
        """Make an API key.

        Args:
            name: who or what will use it.
            scopes: of read, submit, priority, worker and admin.
            limits: project, device_kinds (of a worker), max_running_jobs, max_trials,
                max_upload_bytes, expires_s.
        """
        body = {"name": name, "scopes": list(scopes), **limits}
        created = self._http.send("POST", "/v1/keys", json=body).json()
        return rows.MadeKey(rows.of(rows.Key, created["key"]), str(created["text"]))

    def revoke_key(self, key_id: int) -> rows.Key:
        """End an API key."""
        return self._http.row(rows.Key, "DELETE", f"/v1/keys/{key_id}")

    def projects(self) -> list[rows.Project]:
        """The projects that the key sees: its own; an admin all."""
        return self._http.listed(rows.Project, "/v1/projects")

    def create_project(self, name: str, **limits: int | None) -> rows.Project:
        """Make a project, as an admin.

        Args:
            name: permanent.
            limits: max_running_jobs, max_trials, max_bytes, retention_days.
        """
        return self._http.row(rows.Project, "POST", "/v1/projects", json={"name": name, **limits})

    def limit_project(self, name: str, **limits: int | None) -> rows.Project:
        """Replace all limits of a project, as an admin; those left out are the service's."""
        quoted = urllib.parse.quote(name, safe="")
        return self._http.row(rows.Project, "PUT", f"/v1/projects/{quoted}", json=limits)

    def webhooks(self) -> list[rows.Webhook]:
        """Who is told of changes of the project's jobs."""
        return self._http.listed(rows.Webhook, "/v1/webhooks")

    def create_webhook(self, url: str, states: Sequence[str] | None = None) -> rows.MadeWebhook:
        """Make a webhook; `states` are those that it reports, None: all but queued."""
        body: dict[str, Any] = {"url": url} | ({"states": list(states)} if states else {})
        made = self._http.send("POST", "/v1/webhooks", json=body).json()
        return rows.MadeWebhook(rows.of(rows.Webhook, made["webhook"]), str(made["secret"]))

    def delete_webhook(self, webhook_id: int) -> None:
        """Remove a webhook and its notifications."""
        self._http.send("DELETE", f"/v1/webhooks/{webhook_id}")

    def test_webhook(self, webhook_id: int) -> rows.Delivery:
        """Send a notification that reports nothing; `deliveries` says what came of it."""
        return self._http.row(rows.Delivery, "POST", f"/v1/webhooks/{webhook_id}/test")

    def deliveries(
        self, webhook_id: int, *, limit: int | None = None, **filters: Any
    ) -> Iterator[rows.Delivery]:
        """Notifications of a webhook, newest first; filters: state."""
        path = f"/v1/webhooks/{webhook_id}/deliveries"
        return self._http.items(rows.Delivery, path, limit, filters)
