"""What the service's commands do: `felix db upgrade`, `felix tuner`, `felix serve`."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from server import errors, logs, settings
from server.database import database, schema
from server.store import blobs, keys
from server.tuner import tuner, tuner_process

#: In the data folder; `felix.cli.remote.connection` reads it.
KEY_FILE = "admin-key"
#: Niceness of an API with a tuner on its machine: responses may wait, a timed kernel may not. On
#: Linux it is of a thread and those it starts, so it does not reach the tuner's process.
NICE_WITH_TUNER = 5


def upgrade(chosen: settings.Settings) -> tuple[str | None, str]:
    """Bring the database to this version's schema; the revisions before and after."""
    with contextlib.closing(database.Database(chosen.database)) as db:
        before = schema.current(db)
        schema.upgrade(db)
        return before, schema.head()


def run_tuner(
    chosen: settings.Settings, name: str | None, jobs: int | None, with_parent: bool = False
) -> int:
    """Tune until a signal comes (or for so many jobs, or until the parent ends); the status."""
    logs.configure(chosen.log_json)
    with contextlib.closing(database.Database(chosen.database)) as db:
        schema.check(db)
        store = blobs.open_store(chosen.blobs, chosen.s3_endpoint)
        from server.tuner import felix_engine  # loads TVM and torch: the checks above come first

        process = tuner.Tuner(db, store, felix_engine.FelixEngine(), chosen, name)
        if with_parent:
            tuner_process.leave_with_parent(process.leaving)
        with contextlib.closing(process), _ended_by_signals(process.leaving):
            if jobs is None:
                process.run()
            while jobs and not process.leaving.is_set():
                if process.work_once():
                    jobs -= 1
                else:
                    process.leaving.wait(chosen.poll_s)
    return 0


def first_key(chosen: settings.Settings) -> str | None:
    """An admin key, if the database has no key at all; shown once."""
    with contextlib.closing(database.Database(chosen.database)) as db, db.write() as tx:
        if keys.every(tx):
            return None
        everything = {"can_read": True, "can_submit": True, "can_admin": True}
        return keys.create(tx, keys.NewKey(name="admin", **everything)).text


def create_key(
    chosen: settings.Settings, name: str, scopes: Collection[str], limits: Mapping[str, Any]
) -> tuple[int, str]:
    """Make a key in the database, without the API; its number and text."""
    can = {f"can_{scope}": scope in scopes for scope in ("read", "submit", "admin")}
    with contextlib.closing(database.Database(chosen.database)) as db:
        schema.check(db)
        with db.write() as tx:
            made = keys.create(tx, keys.NewKey(name=name, **can, **limits))
            keys.audit(tx, None, "key.create", f"key {made.key.id}", {"local": True})
    return made.key.id, made.text


def serve(chosen: settings.Settings, with_tuner: bool) -> int:
    """API and dashboard in this process, a tuner in another; the exit code."""
    logs.configure(chosen.log_json)
    with contextlib.closing(database.Database(chosen.database)) as db:
        schema.check(db)
    try:
        app = importlib.import_module("server.app")
        serving = importlib.import_module("server.web.uvicorn_server")
    except ImportError as error:
        raise errors.SettingsError(
            f"the API needs the extra server ({error}): pip install 'felix-tuner[server]'"
        ) from error
    key_text = first_key(chosen)
    print(f"Felix listens on {chosen.address}", file=sys.stderr)
    _announce_key(chosen, key_text)
    with tuner_process.TunerProcess() if with_tuner else contextlib.nullcontext():
        if with_tuner:
            os.nice(NICE_WITH_TUNER)
        serving.run(app.create_app(chosen), chosen.host, chosen.port)
    return 0


def _announce_key(chosen: settings.Settings, text: str | None) -> None:
    """Leave the first key where commands on this machine find it, readable by its user only.

    It is printed for a person, not where lines are collected.
    """
    path = chosen.data_dir / KEY_FILE
    if text is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
        if not chosen.log_json:
            print(f"admin key: {text}", file=sys.stderr)
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
