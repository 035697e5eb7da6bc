"""What the service's commands do: `felix db upgrade`, `felix tuner`, `felix serve`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

from felix.client import rows
from felix.processes import child, confine, policy
from server import errors, folders, logs, settings
from server.database import database, schema
from server.store import blobs, keys
from server.tuner import tuner
from server.tuner.cluster import link
from server.tuner.process import engine_process

_log = logs.of(__name__)

#: In the data folder; `felix.cli.remote.connection` reads it.
KEY_FILE = "admin-key"
#: Niceness of an API with a tuner on its machine: responses may wait, a timed kernel may not. On
#: Linux it is of a thread and those it starts, so it does not reach the tuner's process.
NICE_WITH_TUNER = 5
#: Before a tuner that died is started again, in seconds.
AGAIN_S = 2.0
#: How long a tuner may take to release its job, in seconds.
GRACE_S = 30.0


class TunerProcess:
    """Runs while the block does."""

    def __init__(self) -> None:
        self._leaving = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="tuner", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leaving.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
        self._thread.join(GRACE_S)
        if process is not None and process.poll() is None:
            process.kill()

    def _run(self) -> None:
        while not self._leaving.is_set():
            self._process = child.start(
                *("felix", "tuner", "--with-parent"),
                environment=os.environ,  # it has the service's secrets
                log=None,
                leads_session=False,
            )
            status = self._process.wait()
            if not self._leaving.wait(AGAIN_S):
                _log.error(
                    "the tuner ended with status %d and is started again",
                    status,
                    action="tuner_died",
                    status=status,
                )


def leave_with_parent(leaving: threading.Event, every_s: float = 1.0) -> None:
    """Set `leaving` when the process that started this one is gone."""
    parent = os.getppid()

    def poll_parent() -> None:
        while not leaving.wait(every_s):
            if os.getppid() != parent:
                leaving.set()

    threading.Thread(target=poll_parent, name="parent", daemon=True).start()


def upgrade(chosen: settings.Settings) -> tuple[str | None, str]:
    """Bring the database to this version's schema; the revisions before and after."""
    with _database(chosen) as db:
        before = schema.current(db)
        schema.upgrade(db)
        return before, schema.head()


def run_tuner(
    chosen: settings.Settings, name: str | None, jobs: int | None, with_parent: bool = False
) -> int:
    """Tune until a signal comes (or for so many jobs, or until the parent ends); the status."""
    logs.configure(chosen.log_json)
    _check_confinement(chosen)
    with _database(chosen) as db:
        schema.check(db)
        store = blobs.open_store(chosen.blobs, chosen.s3_endpoint)
        engine = engine_process.EngineProcess(chosen, cluster=_cluster(chosen, db))
        process = tuner.Tuner(db, store, engine, chosen, name)
        if with_parent:
            leave_with_parent(process.leaving)
        with contextlib.closing(process), _ended_by_signals(process.leaving):
            if jobs is None:
                process.run()
            while jobs and not process.leaving.is_set():
                if process.work_once():
                    jobs -= 1
                else:
                    process.leaving.wait(chosen.poll_s)
    return 0


def _cluster(chosen: settings.Settings, db: database.Database) -> link.RelayProcess | None:
    """The link to the cluster that measures; None: this machine does."""
    if chosen.cluster is None:
        return None
    if importlib.util.find_spec("ray") is None:
        raise errors.SettingsError(
            "FELIX_CLUSTER is set, and a cluster needs Ray: pip install 'felix-tuner[cluster]'"
        )
    refusals = link.Admission(db).refusals if chosen.require_worker_keys else None
    return link.RelayProcess(chosen.cluster, chosen.log_json, refusals)


def first_key(chosen: settings.Settings) -> str | None:
    """An admin key, if the database has no key at all; shown once."""
    with _database(chosen) as db, db.write() as tx:
        if keys.every(tx):
            return None
        everything: dict[str, Any] = {"can_read": True, "can_submit": True, "can_admin": True}
        return keys.create(tx, keys.NewKey(name="admin", **everything)).text


def create_key(
    chosen: settings.Settings, name: str, scopes: Collection[str], limits: Mapping[str, Any]
) -> tuple[int, str]:
    """Make a key in the database, without the API; its number and text."""
    can: dict[str, Any] = {f"can_{scope}": scope in scopes for scope in rows.SCOPES}
    with _database(chosen) as db:
        schema.check(db)
        with db.write() as tx:
            made = keys.create(tx, keys.NewKey(name=name, **can, **limits))
            keys.audit(tx, None, "key.create", f"key {made.key.id}", {"local": True})
    return made.key.id, made.text


def serve(chosen: settings.Settings, with_tuner: bool) -> int:
    """API and dashboard in this process, a tuner in another; the exit code."""
    logs.configure(chosen.log_json)
    _check_confinement(chosen)
    with _database(chosen) as db:
        schema.check(db)
    try:
        app = importlib.import_module("server.app")
        serving = importlib.import_module("server.web.connections")
    except ImportError as error:
        raise errors.SettingsError(
            f"the API needs the extra server ({error}): pip install 'felix-tuner[server]'"
        ) from error
    key_text = first_key(chosen)
    print(f"Felix listens on {chosen.address}", file=sys.stderr)
    _announce_key(chosen, key_text)
    with TunerProcess() if with_tuner else contextlib.nullcontext():
        if with_tuner:
            os.nice(NICE_WITH_TUNER)
        serving.run(app.create_app(chosen), chosen)
    return 0


@contextlib.contextmanager
def _database(chosen: settings.Settings) -> Iterator[database.Database]:
    """The database, in a data folder that is closed to other users."""
    folders.tighten(chosen.data_dir)
    with contextlib.closing(database.Database(chosen.database)) as db:
        yield db


def _check_confinement(chosen: settings.Settings) -> None:
    """An error if confinement is required and this system lacks a part of it."""
    lacks = confine.available().missing
    if chosen.require_confinement and lacks:
        raise errors.SettingsError(
            f"FELIX_REQUIRE_CONFINEMENT is set, and this system has {'; '.join(lacks)}: run on a "
            "kernel and in a container that allow it, or unset the variable"
        )
    if chosen.require_confinement and chosen.confine_gpu is policy.ConfineGpu.OFF:
        raise errors.SettingsError(
            "FELIX_REQUIRE_CONFINEMENT is set, and FELIX_CONFINE_GPU is off: unset one of them"
        )


def _announce_key(chosen: settings.Settings, text: str | None) -> None:
    """Leave the first key where commands on this machine find it, readable by its user only.

    It is printed for a person, not where lines are collected.
    """
    path = chosen.data_dir / KEY_FILE
    if text is not None:
        folders.make_folder(path.parent)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
        if not chosen.log_json:
            print(f"admin key: {text}", file=sys.stderr)
    folders.tighten(path)
    if path.is_file():
        print(f"the admin key is in {path}", file=sys.stderr)


@contextlib.contextmanager
def _ended_by_signals(leaving: threading.Event) -> Iterator[None]:
    def leave(*_: object) -> None:
        leaving.set()

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
