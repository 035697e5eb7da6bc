"""Verbs around the jobs: keys, projects, webhooks, devices, tuners."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from felix.client import _http, _rows


class Administration:
    """The part of the client that is about the service around the jobs."""

    _http: _http.Http

    def devices(self) -> list[_rows.Device]:
        """What tuners measure on."""
        return [_rows.of(_rows.Device, item) for item in self._http.get("/v1/devices")["items"]]

    def workers(self) -> list[_rows.Worker]:
        """Tuners, newest first."""
        return [_rows.of(_rows.Worker, item) for item in self._http.get("/v1/workers")["items"]]

    def keys(self) -> list[_rows.Key]:
        """All API keys; needs the scope admin."""
        return [_rows.of(_rows.Key, item) for item in self._http.get("/v1/keys")["items"]]

    def create_key(
        self, name: str, scopes: Sequence[str] = ("read",), **limits: Any
    ) -> _rows.MadeKey:
        """Make an API key.

        Args:
            name: who or what will use it.
            scopes: of read, submit, priority, worker and admin.
            limits: project, device_kinds (of a worker), max_running_jobs, max_trials,
                max_upload_bytes, expires_s.
        """
        body = {"name": name, "scopes": list(scopes), **limits}
        created = self._http.send("POST", "/v1/keys", json=body).json()
        return _rows.MadeKey(_rows.of(_rows.Key, created["key"]), str(created["text"]))

    def revoke_key(self, key_id: int) -> _rows.Key:
        """End an API key."""
        return _rows.of(_rows.Key, self._http.send("DELETE", f"/v1/keys/{key_id}").json())

    def projects(self) -> list[_rows.Project]:
        """The projects that the key sees: its own; an admin all."""
        return [_rows.of(_rows.Project, item) for item in self._http.get("/v1/projects")["items"]]

    def create_project(self, name: str, **limits: int | None) -> _rows.Project:
        """Make a project, as an admin.

        Args:
            name: permanent.
            limits: max_running_jobs, max_trials, max_bytes, retention_days.
        """
        response = self._http.send("POST", "/v1/projects", json={"name": name, **limits})
        return _rows.of(_rows.Project, response.json())

    def limit_project(self, name: str, **limits: int | None) -> _rows.Project:
        """Replace all limits of a project, as an admin; those left out are the service's."""
        quoted = urllib.parse.quote(name, safe="")
        response = self._http.send("PUT", f"/v1/projects/{quoted}", json=limits)
        return _rows.of(_rows.Project, response.json())

    def webhooks(self) -> list[_rows.Webhook]:
        """Who is told of changes of the project's jobs."""
        return [_rows.of(_rows.Webhook, item) for item in self._http.get("/v1/webhooks")["items"]]

    def create_webhook(self, url: str, states: Sequence[str] | None = None) -> _rows.MadeWebhook:
        """Make a webhook; `states` are those that it reports, None: all but queued."""
        body: dict[str, Any] = {"url": url} | ({"states": list(states)} if states else {})
        made = self._http.send("POST", "/v1/webhooks", json=body).json()
        return _rows.MadeWebhook(_rows.of(_rows.Webhook, made["webhook"]), str(made["secret"]))

    def delete_webhook(self, webhook_id: int) -> None:
        """Remove a webhook and its notifications."""
        self._http.send("DELETE", f"/v1/webhooks/{webhook_id}")

    def test_webhook(self, webhook_id: int) -> _rows.Delivery:
        """Send a notification that reports nothing; `deliveries` says what came of it."""
        response = self._http.send("POST", f"/v1/webhooks/{webhook_id}/test")
        return _rows.of(_rows.Delivery, response.json())

    def deliveries(
        self, webhook_id: int, *, limit: int | None = None, **filters: Any
    ) -> Iterator[_rows.Delivery]:
        """Notifications of a webhook, newest first; filters: state."""
        path = f"/v1/webhooks/{webhook_id}/deliveries"
        return (_rows.of(_rows.Delivery, item) for item in self._http.items(path, limit, filters))
