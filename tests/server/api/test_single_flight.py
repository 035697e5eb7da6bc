"""Responses that clients share: for a moment, not across a change, only with the right to read."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from server import app, cache, errors
from server.api import events as event_routes
from server.database import columns, database, models
from server.store import control, events, keys, leases
from server.web import auth, response_bodies
from tests.server.conftest import Service, bearer, testclient
from tests.support import api_rows, service_fakes


def test_callers_of_one_key_share_a_value_for_a_moment() -> None:
    made: list[int] = []
    refused: list[int] = []

    async def compute() -> int:
        made.append(1)
        await asyncio.sleep(0.01)
        return len(made)

    async def refuse() -> int:
        refused.append(1)
        raise errors.NotFound()

    async def play() -> None:
        shared: cache.SingleFlight[int] = cache.SingleFlight(ttl_s=60.0)
        loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time
        leaver = asyncio.create_task(shared.get("a", compute))
        await asyncio.sleep(0)
        others = [asyncio.create_task(shared.get("a", compute)) for _ in range(10)]
        leaver.cancel()  # the others still get the value
        assert await asyncio.gather(*others) == [1] * 10
        assert await shared.get("a", compute) == 1 and await shared.get("b", compute) == 2
        loop.time = lambda: now() + 61.0  # type: ignore[method-assign]
        await asyncio.sleep(0.01)
        assert await shared.get("a", compute) == 3
        for _ in range(2):  # errors are raised, not cached
            with pytest.raises(errors.NotFound):
                await shared.get("c", refuse)
        assert refused == [1, 1]

    asyncio.run(play())


def test_a_value_from_before_a_change_is_not_shared_after_it() -> None:
    async def play() -> None:
        shared: cache.SingleFlight[str] = cache.SingleFlight(ttl_s=60.0)
        may_end = asyncio.Event()

        async def slow() -> str:
            await may_end.wait()
            return "before"

        async def quick() -> str:
            return "after"

        early = asyncio.create_task(shared.get("a", slow))
        await asyncio.sleep(0)
        shared.forget()
        assert await shared.get("a", quick) == "after"
        may_end.set()
        assert await early == "before"  # this caller came before the change
        await asyncio.sleep(0)
        assert await shared.get("a", slow) == "after"  # and removes nothing when it ends

    asyncio.run(play())


@pytest.fixture
def cached(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The same store behind an application that caches responses for a minute."""
    quiet = {"reap_s": 3600.0, "clean_s": 3600.0, "webhook_poll_s": 3600.0}  # loops ask, too
    patient = service.settings.model_copy(update={"cache_ttl_s": 60.0, **quiet})
    with testclient.TestClient(app.create_app(patient)) as client:
        client.headers.update(service.auth("submit"))
        yield dataclasses.replace(service, client=client, settings=patient)


@pytest.fixture
def queries(cached: Service) -> Iterator[collections.Counter[str]]:
    """Queries of the application's engine since the counter was cleared."""
    counter: collections.Counter[str] = collections.Counter()
    engine = cached.client.app.state.services.unrestricted_db.engine

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        counter["select"] += statement.lstrip().upper().startswith("SELECT")

    sa.event.listen(engine, "before_cursor_execute", note)
    yield counter
    sa.event.remove(engine, "before_cursor_execute", note)


def test_clients_that_poll_share_responses(
    cached: Service, queries: collections.Counter[str]
) -> None:
    job = api_rows.finished(cached.db, cached.blobs)
    # events first: new ones invalidate the responses about their job
    paths = ["/events", "/events?after_seq=3", "", "/curve", "/curve?task=7", "/tasks"]
    first = [cached.client.get(f"/v1/jobs/{job.id}{path}").json() for path in paths]
    assert 0 < queries["select"] < 20
    queries.clear()
    for scope in ("read", "submit", "admin"):
        for path, content in zip(paths, first, strict=True):
            response = cached.client.get(f"/v1/jobs/{job.id}{path}", headers=cached.auth(scope))
            assert response.json() == content
    assert queries["select"] <= 2  # the two other keys
    assert len({str(content) for content in first}) == len(paths)  # none is another's


def test_a_client_reads_what_it_wrote(cached: Service) -> None:
    client = cached.client
    job = api_rows.queued(cached.db, cached.keys["submit"].key.id)

    def state() -> str:
        current: str = client.get(f"/v1/jobs/{job.id}").json()["state"]
        return current

    assert state() == "queued" and client.get(f"/v1/jobs/{job.id}/events").json()["last_seq"] == 1
    assert client.post(f"/v1/jobs/{job.id}/pause").json()["state"] == "paused" == state()
    assert client.get(f"/v1/jobs/{job.id}/events").json()["last_seq"] == 2
    client.patch(f"/v1/jobs/{job.id}", json={"name": "other"})
    assert client.get(f"/v1/jobs/{job.id}").json()["name"] == "other"
    client.post(f"/v1/jobs/{job.id}/cancel")
    assert client.delete(f"/v1/jobs/{job.id}").status_code == 204
    for path in ("", "/events", "/curve", "/tasks"):
        assert client.get(f"/v1/jobs/{job.id}{path}").status_code == 404
    assert client.get("/v1/jobs/99").status_code == 404


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_got_an_event_gets_no_older_response(cached: Service, stream: bool) -> None:
    claim = api_rows.running(cached.db, n_trials=1)
    other = api_rows.queued(cached.db)
    number, client = claim.job.id, cached.client
    paths = [f"/v1/jobs/{number}", f"/v1/jobs/{number}/curve", f"/v1/jobs/{number}/tasks"]
    paths += [f"/v1/curves?job={other.id}&job={number}", f"/v1/jobs/{other.id}"]
    before = [client.get(path).json() for path in paths]
    service_fakes.add(cached.db, claim.fence, service_fakes.new_trial(30, 2.0))
    with cached.db.write() as tx:  # as other processes do
        control.pause(tx, other.id)
        leases.succeed(tx, claim.fence, "trials")
    assert [client.get(path).json() for path in paths] == before
    where = "events/stream" if stream else "events"
    news = client.get(f"/v1/jobs/{number}/{where}", params={"after_seq": before[0]["last_seq"]})
    assert "succeeded" in news.text
    after = [client.get(path).json() for path in paths]
    assert after[0]["state"] == "succeeded" and after[0]["best_us"] == 2.0
    assert [old == new for old, new in zip(before, after, strict=True)] == [False] * 4 + [True]


def test_refused_changes_invalidate_nothing(
    cached: Service, queries: collections.Counter[str]
) -> None:
    job = api_rows.queued(cached.db, cached.keys["admin"].key.id)
    address = f"/v1/jobs/{job.id}"
    first = cached.client.get(address).json()
    assert cached.client.post(f"{address}/pause").status_code == 403
    queries.clear()
    assert cached.client.get(address).json() == first
    assert queries["select"] == 0


def test_a_404_is_not_cached(cached: Service) -> None:
    client = cached.client
    job = api_rows.queued(cached.db)
    assert client.get(f"/v1/jobs/{job.id + 1}").status_code == 404
    made = api_rows.queued(cached.db)  # by another process, after a 404 of its number
    assert client.get(f"/v1/jobs/{made.id}").status_code == 200


def test_changes_of_another_process_are_visible_a_moment_later(cached: Service) -> None:
    job = api_rows.queued(cached.db)
    brief = cached.settings.model_copy(update={"cache_ttl_s": 0.05})
    with testclient.TestClient(app.create_app(brief)) as client:
        client.headers.update(cached.auth("read"))
        for either in (cached.client, client):
            assert either.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"
        service_fakes.write(cached.db, control.pause, job.id)
        assert cached.client.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"
        client.portal.call(asyncio.sleep, 0.1)
        assert client.get(f"/v1/jobs/{job.id}").json()["state"] == "paused"
        assert client.get(f"/v1/jobs/{job.id}/events").json()["last_seq"] == 2


def test_shared_responses_need_a_key_that_may_read(cached: Service) -> None:
    job = api_rows.queued(cached.db)
    blind = service_fakes.key(cached.db, can_read=False, can_submit=True)
    for path in ("", "/curve", "/tasks", "/events"):
        address = f"/v1/jobs/{job.id}{path}"
        assert cached.client.get(address).status_code == 200
        for text, status in (
            (blind.text, 403),
            (f"{cached.keys['submit'].text}x", 401),
            ("felix_000000000000_x", 401),
        ):
            assert cached.client.get(address, headers=bearer(text)).status_code == status


def test_a_cached_key_is_read_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "KEY_TTL_S", 0.1)
    with testclient.TestClient(app.create_app(service.settings)) as client:
        headers = service.auth("read")
        assert client.get("/v1/me", headers=headers).status_code == 200
        with service.db.write() as tx:  # as another process would
            keys.revoke(tx, service.keys["read"].key.id)
        client.portal.call(asyncio.sleep, 0.2)
        assert client.get("/v1/me", headers=headers).status_code == 401


def test_a_cached_key_expires(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "KEY_TTL_S", 3600.0)
    with testclient.TestClient(app.create_app(service.settings)) as client:
        made = service_fakes.key(service.db, expires_s=1000.0)
        headers = bearer(made.text)
        assert client.get("/v1/me", headers=headers).status_code == 200
        later = auth._now() + datetime.timedelta(seconds=2000.0)
        monkeypatch.setattr(auth, "_now", lambda: later)
        assert client.get("/v1/me", headers=headers).status_code == 200  # the database's clock
        with service.db.write() as tx:
            ended = sa.update(models.Key).where(models.Key.id == made.key.id)
            tx.execute(ended.values(expires_at=columns.db_now(-1.0)))
        assert client.get("/v1/me", headers=headers).status_code == 401


@pytest.mark.parametrize("length", [2, 5, 256])
def test_a_window_has_what_the_database_has(
    service: Service, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(cache, "LENGTH", length)
    job = api_rows.finished(service.db, service.blobs)
    types: list[tuple[events.Type, ...]] = [(), (events.Type.TRIAL, events.Type.STATE)]
    for chosen in types:
        for seq in (0, 3, job.last_seq - 2, job.last_seq, job.last_seq + 5):
            for limit in (1, 4, 500):
                query = {"after_seq": seq, "limit": limit, "type": [str(one) for one in chosen]}
                response = service.client.get(f"/v1/jobs/{job.id}/events", params=query)
                stored = service_fakes.read(service.db, events.after, job.id, seq, limit, chosen)
                expected = [response_bodies.Event.model_validate(one) for one in stored]
                got = response_bodies.Events.model_validate_json(response.content)
                assert got.items == expected
                assert got.last_seq == (stored[-1].seq if stored else seq)


def test_a_window_grows_and_stays_short(db: database.Database, monkeypatch: Any) -> None:
    monkeypatch.setattr(cache, "LENGTH", 4)
    monkeypatch.setattr(cache, "POLLED_JOBS", 2)
    numbers = [api_rows.queued(db).id for _ in range(3)]
    encoded = []

    def encode(event: Any) -> bytes:
        encoded.append(event.seq)
        return event_routes.encode(event)

    def append(job_id: int, count: int) -> None:
        with db.write() as tx:
            for _ in range(count):
                events.append(tx, job_id, events.Type.WARNING, {"message": "x"})

    async def play() -> None:
        invalidated: list[int] = []
        windows = cache.RecentEvents(db, encode, 0.0, invalidated.append)
        first = numbers[0]
        for count, since, last in ((0, 0, 1), (2, 0, 3), (3, 2, 6), (9, 11, 15)):
            append(first, count)
            await asyncio.sleep(0)
            windows.forget()
            window = await windows.of(first)
            assert (window.since, window.last_seq) == (since, last)
            assert [one.seq for one in window.events] == list(range(since + 1, last + 1))
        windows.forget()
        await windows.of(first)
        assert invalidated == [first] * 4  # not when nothing is new
        assert encoded == [1, 2, 3, 4, 5, 6, 12, 13, 14, 15]  # each once
        for number in (*numbers[1:], first):  # the first has been dropped meanwhile
            await windows.of(number)
        windows.forget()
        await windows.of(first)
        assert encoded[10:] == [1, 1, 12, 13, 14, 15]
        with pytest.raises(errors.NotFound):
            await windows.of(99)

    asyncio.run(play())


def test_waiting_streams_share_a_query() -> None:
    newest = {1: 5, 2: 3}
    queried: list[set[int]] = []

    def last_seqs(job_ids: Collection[int]) -> Mapping[int, int]:
        queried.append(set(job_ids))
        return newest

    async def play() -> None:
        made = cache.Notifier(last_seqs, every_s=0.01)
        running = asyncio.create_task(made.run())
        waiting = [asyncio.create_task(made.newer(1, 5, 60.0)) for _ in range(20)]
        waiting.append(asyncio.create_task(made.newer(2, 2, 60.0)))
        assert await waiting[-1]
        assert await made.newer(9, 0, 60.0)  # a job that is gone is news
        assert not any(task.done() for task in waiting[:-1])
        newest[1] = 6
        assert all(await asyncio.gather(*waiting))
        assert all(job_ids <= {1, 2, 9} for job_ids in queried)
        n_queries = len(queried)
        await asyncio.sleep(0.05)
        assert len(queried) == n_queries  # nobody waits: no query
        assert not await made.newer(1, 6, 0.03)  # the time is over
        last = asyncio.create_task(made.newer(1, 6, 60.0))
        await asyncio.sleep(0)
        made.close()
        assert not await last and made.is_closed
        running.cancel()

    asyncio.run(play())
