"""Two projects: what a key of one can learn of the other's jobs, over every route there is.

The jobs of the first project carry a mark in each text and large numbers, so that a trace of them
is seen wherever it is. To the second project a job of the first must look like one never made.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from server import app
from server.dashboard import routers
from server.database import database, models, visibility
from server.store import control, jobs, projects, requests, rows, webhooks
from tests.server.conftest import GEMM, Service, bearer, on_both_databases, testclient
from tests.support import api_rows, service_fakes

MARK = "quark"
SHA256 = hashlib.sha256(api_rows.CONTENT).hexdigest()
FIRST_ID = 770_001
MISSING_ID = 770_999
#: Number of the webhook and of the batch of the first project.
TEAM_ID = 660_001


#: Bodies of the requests that need one.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("patch", "/v1/jobs/{job_id}"): {"name": "taken"},
    ("post", "/v1/projects"): {"name": f"{MARK}-project"},
    ("put", "/v1/projects/{name}"): {},
    ("post", "/v1/webhooks"): {"url": "https://b.example/hook"},
    ("post", "/v1/keys"): {"name": "k"},
}

#: Routes that end what the others need, or show what is no project's.
LAST = ("delete", "/v1/session")


@dataclasses.dataclass(frozen=True)
class Two:
    """Two projects behind one application that caches responses for a minute."""

    service: Service
    client: testclient.TestClient
    theirs: dict[str, str]
    ours: dict[str, str]
    finished: rows.Job
    running: rows.Job
    queued: rows.Job
    webhook: rows.Webhook
    delivery: rows.Delivery
    batch: rows.Batch
    our_job: rows.Job


def number_from(db: database.Database, table: str, first: int) -> None:
    """The next row of a table gets this number."""
    with db.engine.begin() as connection:
        if db.is_sqlite:
            connection.exec_driver_sql(f"DELETE FROM sqlite_sequence WHERE name = '{table}'")
            connection.exec_driver_sql(
                f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{table}', {first - 1})"
            )
        else:
            connection.exec_driver_sql(f"ALTER SEQUENCE {table}_id_seq RESTART WITH {first}")


@pytest.fixture
def two(service: Service) -> Iterator[Two]:
    db = service.db
    for table in ("webhooks", "batches"):
        number_from(db, table, TEAM_ID)
    service_fakes.write(db, projects.create, f"{MARK}-project")
    service_fakes.write(db, projects.create, "ours")
    a = service_fakes.key(db, f"{MARK}-key", project=f"{MARK}-project", can_submit=True)
    b = service_fakes.key(db, "b", project="ours", can_submit=True)
    with db.write() as tx:
        hook = webhooks.create(
            tx, f"{MARK}-project", f"https://{MARK}.invalid/", list(webhooks.REPORTED), a.key.id
        )
    our_job = api_rows.queued(db, b.key.id, name="our job")
    number_from(db, "jobs", FIRST_ID)
    marked = {
        "name": f"{MARK} job",
        "op": f"{MARK}op",
        "tags": (f"{MARK}tag",),
        "note": MARK,
        "workload": {"params": {MARK: 1}},
    }
    finished = api_rows.finished(db, service.blobs, a.key.id, **marked)
    running = api_rows.running(db, a.key.id, **marked)
    queued = api_rows.queued(db, a.key.id, **marked)
    assert finished.id == FIRST_ID and hook.webhook.id == TEAM_ID
    number_from(db, "jobs", 880_001)  # what the second project makes
    with db.write() as tx:
        refused = {"problem": {"title": MARK, "status": 422, "detail": MARK}}
        batch = requests.create_batch(tx, a.key.id, [{"job_id": FIRST_ID}, refused], None)
        requests.save_template(tx, a.key.id, f"{MARK}-template", {**GEMM, "note": MARK})
    delivery = service_fakes.read(db, webhooks.deliveries, hook.webhook.id)[0]
    settings = service.settings.model_copy(update={"cache_ttl_s": 60.0})
    with testclient.TestClient(app.create_app(settings), raise_server_exceptions=False) as client:
        yield Two(
            service,
            client,
            bearer(a.text),
            bearer(b.text),
            finished,
            running.job,
            queued,
            hook.webhook,
            delivery,
            batch,
            our_job,
        )


def addresses(two: Two, template: str, job_id: int, other_id: int) -> str:
    """An address of a route with the number of a job, and numbers of other things."""
    values = {"job_id": job_id, "number": 1, "name": "job.zip", "path": "x", "verb": "pause"}
    values |= dict.fromkeys(("key_id", "webhook_id", "batch_id", "delivery_id"), other_id)
    if "/projects/" in template:
        values["name"] = f"{MARK}-project"
    query = f"?job={job_id}&key_id={other_id}&like={job_id}&q=a&tag={MARK}tag"
    return template.format(**values, digest="0") + query


def plain(response: Any, job_id: int) -> tuple[int, str]:
    """A response without what differs from request to request."""
    text = response.text.replace(str(job_id), "JOB")
    text = re.sub(r'"request_id":\s*"[0-9a-f]*"', "", text)
    text = re.sub(r"<code>[0-9a-f]{16}</code>|[0-9a-f]{16}", "", text)
    return response.status_code, text


def routes(two: Two) -> list[tuple[str, str]]:
    """Method and path of every route of the API."""
    paths = two.client.get("/v1/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def assert_no_trace(two: Two, where: str, text: str) -> None:
    for trace in (MARK, two.finished.created_at.isoformat()[:26], SHA256):
        assert trace not in text, (where, trace)
    assert re.search(r"(?<![0-9.])77000[1-3](?![0-9])", text) is None, where


def test_every_route_with_the_numbers_of_the_other_project(two: Two) -> None:
    """With warm caches: the owner asks first, and gets it."""
    n_owned = 0
    for method, template in routes(two):
        if (method, template) == LAST or template.endswith("/stream"):
            continue
        address = template.format(
            job_id=two.finished.id,
            number=1,
            name="job.zip",
            key_id=1,
            webhook_id=two.webhook.id,
            delivery_id=two.delivery.id,
            batch_id=two.batch.id,
        )
        if method == "get":
            mine = two.client.get(f"{address}?job={two.finished.id}", headers=two.theirs)
            n_owned += mine.status_code == 200
        body = BODIES.get((method, template))
        send = {"headers": two.ours, "json": body} if body else {"headers": two.ours}
        names_a_job = "{job_id}" in template or template in ("/v1/curves",)
        if names_a_job:
            address = addresses(two, template, MISSING_ID, MISSING_ID)
            absent = two.client.request(method, address, **send)
            assert absent.status_code in (404, 403, 415, 422), (template, absent.status_code)
        for job in (two.finished, two.running, two.queued):
            address = addresses(two, template, job.id, two.webhook.id)
            response = two.client.request(method, address, **send)
            if names_a_job:
                assert plain(response, job.id) == plain(absent, MISSING_ID), (method, template)
            elif "{webhook_id}" in template or "{batch_id}" in template:
                assert response.status_code == 404, (method, template)
            text = response.text.replace(f"{MARK}-project", "") if body else response.text
            if response.status_code >= 400:  # errors name the address that was asked for
                assert response.status_code in (403, 404, 415, 422), (method, template)
                text = text.replace(str(job.id), "").replace(f"/v1/projects/{MARK}-project", "")
            assert_no_trace(two, f"{method} {template}", text)
    assert n_owned > 20
    with two.service.db.read() as tx:
        for job in (two.finished, two.running, two.queued):
            now = jobs.get(tx, job.id)
            assert (now.state, now.name) == (job.state, job.name)
        assert webhooks.get(tx, two.webhook.id) == two.webhook
        assert len(webhooks.deliveries(tx, two.webhook.id)) == 6


def test_what_a_key_lists_counts_and_follows(two: Two) -> None:
    """The owner sees its traces, the other project none of them, an admin all."""
    check_owner(two)
    check_streams(two)
    check_filters(two)
    check_metrics(two)
    check_admin(two)


def check_owner(two: Two) -> None:
    for address in ("jobs", "jobs.csv", f"jobs/{FIRST_ID}", "projects", "webhooks"):
        assert MARK in two.client.get(f"/v1/{address}", headers=two.theirs).text, address
    workers = two.client.get("/v1/workers", headers=two.theirs).text
    assert f'"job_id":{two.running.id}' in workers


def check_streams(two: Two) -> None:
    address = f"/v1/jobs/{two.finished.id}/events/stream"
    with two.client.stream("GET", address, headers=two.theirs) as stream:
        assert "event: end" in "".join(stream.iter_text())
    response = two.client.get(address, headers=two.ours)
    missing = two.client.get(f"/v1/jobs/{MISSING_ID}/events/stream", headers=two.ours)
    assert response.status_code == 404
    assert plain(response, two.finished.id) == plain(missing, MISSING_ID)


def check_filters(two: Two) -> None:
    queries = [f"q={MARK}", f"tag={MARK}tag", f"op={MARK}op", f"project={MARK}-project"]
    queries += ["mine=1", "state=succeeded", "oldest_first=1", f"after={FIRST_ID + 9}"]
    for query in queries:
        listed = two.client.get(f"/v1/jobs?{query}", headers=two.ours)
        assert_no_trace(two, query, listed.text)
        assert listed.status_code == 200
        assert_no_trace(two, query, two.client.get(f"/v1/jobs.csv?{query}", headers=two.ours).text)
    assert [job["id"] for job in two.client.get("/v1/jobs", headers=two.ours).json()["items"]] == [
        two.our_job.id
    ]


def check_metrics(two: Two) -> None:
    def queued(headers: dict[str, str]) -> float:
        text = two.client.get("/metrics", headers=headers).text
        match = re.search(r'felix_jobs\{state="queued"\} ([0-9.]+)', text)
        assert match is not None
        return float(match.group(1))

    admin = two.service.auth("admin")
    assert (queued(two.ours), queued(two.theirs), queued(admin)) == (1.0, 1.0, 2.0)


@pytest.mark.slow("every page, of two projects")
def test_pages_of_the_dashboard(two: Two) -> None:
    client = two.client
    client.follow_redirects = False
    text = two.ours["Authorization"].removeprefix("Bearer ")
    assert client.post("/dashboard/login", data={"key": text}).status_code == 303
    token = client.get("/v1/me").json()["csrf_token"]
    templates = {
        (method.lower(), route.path)
        for router in routers.ALL
        for route in router.routes
        if re.match(r"/dashboard(?!/(login|logout|assets|reference$|{path))", route.path)
        for method in route.methods
    }
    assert len(templates) > 30
    for method, template in sorted(templates):
        is_team_s = any(name in template for name in ("{webhook_id}", "{batch_id}", "ts/{name}"))
        other_id, absent_id = (TEAM_ID, TEAM_ID + 9) if is_team_s else (1, 1)
        send = {"data": {"csrf_token": token, "name": "x"}} if method == "post" else {}
        missing = addresses(two, template, MISSING_ID, absent_id)
        absent = client.request(method, missing.replace(f"{MARK}-project", "none"), **send)
        for job in (two.finished, two.running):
            response = client.request(method, addresses(two, template, job.id, other_id), **send)
            if is_team_s:
                assert response.status_code in (403, 404), (method, template)
            if "{job_id}" in template or "submit" in template or is_team_s:
                compared = (response, job.id, other_id), (absent, MISSING_ID, absent_id)
                first, second = (
                    (status, text.replace(str(other), "OTHER") if is_team_s else text)
                    for each, number, other in compared
                    for status, text in [plain(each, number)]
                )
                assert first == second, (method, template)
            text = re.sub(r'(value|href|action|name="tag"[^>]*)="[^"]*"', "", response.text)
            text = text.replace(str(job.id), "").replace(f"{MARK}tag", "")
            assert_no_trace(two, f"{method} {template}", text)
    form = {"csrf_token": token, "name": "stolen"}
    saved, missing = (
        client.post("/dashboard/templates", data={**form, "job": str(number)})
        for number in (two.finished.id, MISSING_ID)
    )
    assert saved.status_code == 404
    assert plain(saved, two.finished.id) == plain(missing, MISSING_ID)
    assert client.get(f"/dashboard/submit?template={MARK}-template").status_code == 404
    assert client.get(f"/dashboard/jobs/{two.our_job.id}").status_code == 200


def test_a_foreign_job_takes_the_same_queries_as_none(two: Two) -> None:
    """Counted after the owner has warmed all caches, so no answer comes sooner than the other.

    Threads that work for a request have its context; the loops of the application have not.
    """
    statements: collections.Counter[str] = collections.Counter()
    engine = two.client.app.state.services.unrestricted_db.engine
    is_of_request = contextvars.ContextVar("is_of_request", default=False)

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if is_of_request.get():
            statements[statement] += 1

    tails = " /curve /network/curve /tasks /events /trials /log /artifacts/job.zip".split(" ")
    for tail in tails:
        two.client.get(f"/v1/jobs/{FIRST_ID}{tail}", headers=two.theirs)
    two.client.get("/v1/me", headers=two.ours)
    sa.event.listen(engine, "before_cursor_execute", note)
    counts = is_of_request.set(True)
    try:
        for tail in tails:
            counted = []
            for job_id in (FIRST_ID, MISSING_ID):
                statements.clear()
                two.client.get(f"/v1/jobs/{job_id}{tail}", headers=two.ours)
                counted.append(dict(statements))
            assert counted[0] == counted[1] and counted[0], tail
    finally:
        is_of_request.reset(counts)
        sa.event.remove(engine, "before_cursor_execute", note)


def check_admin(two: Two) -> None:
    admin = two.service.auth("admin")
    listed = two.client.get("/v1/jobs", headers=admin).json()["items"]
    assert {job["project"] for job in listed} == {"ours", f"{MARK}-project"}
    chosen = two.client.get("/v1/jobs?project=ours", headers=admin).json()["items"]
    assert [job["id"] for job in chosen] == [two.our_job.id]
    assert two.client.get(f"/v1/jobs/{FIRST_ID}", headers=admin).json()["project"] == (
        f"{MARK}-project"
    )


def test_a_content_that_two_projects_have_stays_while_one_has_it(two: Two) -> None:
    """The sweep after a deletion looks at all projects, not only at those that are visible."""
    key_id = service_fakes.key(two.service.db, project="ours", can_submit=True).key.id
    for job in (two.our_job, two.queued):
        service_fakes.write(two.service.db, control.cancel, job.id)
    ours = api_rows.finished(two.service.db, two.service.blobs, key_id)
    assert two.client.delete(f"/v1/jobs/{ours.id}", headers=two.service.auth("admin")).is_success
    download = f"/v1/jobs/{FIRST_ID}/artifacts/job.zip"
    assert two.client.get(download, headers=two.theirs).content == api_rows.CONTENT
    assert len(two.service.files()) == 1


def test_each_model_belongs_to_a_project_or_is_declared_shared() -> None:
    for model in visibility.owned_models():
        assert visibility._condition(model, "p") is not None
    names = {model.__tablename__ for model in visibility.owned_models()}
    assert {"jobs", "trials", "events", "artifacts", "tasks", "keys", "webhooks"} <= names


@on_both_databases
def test_no_statement_sees_another_project(two: Two) -> None:
    """Rows, counts, aliases, joins, updates and deletions, of every model."""
    for model in visibility.owned_models():
        check_model(two.service.db, model)


def check_model(db: database.Database, model: Any) -> None:
    core = sa.inspect(model).primary_key[0]
    key, aliased = getattr(model, core.key), sa.orm.aliased(model)
    count = sa.select(sa.func.count())
    with db.read() as tx:
        everything = tx.scalar(count.select_from(model))
    with db.write(visibility.Visibility("nobody")) as tx:
        assert tx.scalars(sa.select(model)).all() == []
        assert tx.execute(sa.select(key)).all() == []
        assert tx.scalar(count.select_from(model)) == 0
        assert tx.scalar(count.select_from(aliased)) == 0
        with pytest.raises(TypeError, match="statements of models"):
            tx.execute(sa.select(core))
        if hasattr(model, "job_id"):
            joined = sa.select(models.Job.id).join(model, models.Job.id == model.job_id)
            assert tx.execute(joined).all() == []
            within = models.Worker.id.in_(sa.select(model.job_id))
            assert tx.execute(sa.select(models.Worker.id).where(within)).all() == []
        unsynchronized = {"synchronize_session": False}
        changed = tx.execute(sa.update(model).values({key: key}), execution_options=unsynchronized)
        assert changed.rowcount == 0
        removed = tx.execute(sa.delete(model), execution_options=unsynchronized)
        assert removed.rowcount == 0
    with db.read() as tx:
        assert tx.scalar(count.select_from(model)) == everything


def test_who_may_see_all_projects() -> None:
    """Identifying callers, health, the loops, the tuners, their queue, and contents that projects
    share: nobody else."""
    server = pathlib.Path(app.__file__).parent
    users = {
        str(path.relative_to(server))
        for path in server.rglob("*.py")
        if "unrestricted_db" in path.read_text() or "UNRESTRICTED" in path.read_text()
    }
    assert users == {
        "app.py",
        "actions.py",
        "api/catalogue.py",
        "web/auth.py",
        "web/dependencies.py",
        "database/visibility.py",
        "store/control.py",
        "store/artifacts.py",
        "store/queue.py",
        "submission.py",
    }
