"""The walk of the architecture page from a request to an artifact is the calls that are made."""

from __future__ import annotations

import contextlib
from multiprocessing.connection import Connection
from typing import Any

import pytest

from felix.measure import fork_server_main, local_workers, worker_main
from felix.processes import policy
from server.parsing import child
from server.parsing import fork_server_main as parsing_fork_server_main
from server.parsing import parser as parsing
from server.tuner import felix_engine, tuner
from server.tuner.process import engine_child, engine_main, engine_process
from tests.server.conftest import GEMM, Service, testclient
from tests.support import walks


def _parse(conn: Connection, settings: dict[str, Any]) -> None:
    parsing_fork_server_main._work([conn], settings)


def _be_engine(conn: Connection, _: dict[str, Any]) -> None:
    engine_main.serve(conn, lambda: felix_engine.FelixEngine(policy.ConfineGpu.OFF))


def _be_worker(conn: Connection, settings: dict[str, Any]) -> None:
    worker_main.serve(conn, fork_server_main._verbs(conn, settings))


def test_from_a_request_to_an_artifact(
    service: Service, parser: parsing.Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "From a request to an artifact"
    hops = walks.walk(title)
    with contextlib.ExitStack() as stack:
        parsers, engines, workers = (
            stack.enter_context(contextlib.closing(walks.Workers(serve)))
            for serve in (_parse, _be_engine, _be_worker)
        )
        monkeypatch.setattr(parser, "_forks", lambda: parsers)
        monkeypatch.setattr(child, "become", lambda _: None)
        monkeypatch.setattr(child, "confine_to", lambda *_: None)
        monkeypatch.setattr(engine_child, "fork_server_of", lambda *_: engines)
        monkeypatch.setattr(local_workers.fork_server, "ForkServer", lambda *_: workers)
        monkeypatch.setattr(parsing, "Parser", lambda *_: parser)
        watched = service.client.app  # in threads that begin while calls are noted
        with walks.Calls(hops) as calls, testclient.TestClient(watched) as client:
            client.headers.update(service.auth("submit"))
            body = GEMM | {"trials": 2, "target": "llvm -num-cores 2"}
            job = client.post("/v1/jobs", json=body).json()
            engine = engine_process.EngineProcess(service.settings)
            working = tuner.Tuner(service.db, service.blobs, engine, service.settings, "here")
            with contextlib.closing(working):
                assert working.work_once()
            (listed,) = client.get(f"/v1/jobs/{job['id']}/artifacts").json()["items"]
            artifact = client.get(f"/v1/jobs/{job['id']}/artifacts/{listed['name']}")
        assert service.get(f"/v1/jobs/{job['id']}")["state"] == "succeeded"
        assert artifact.content[:2] == b"PK"
    walks.check(title, calls, hops)
