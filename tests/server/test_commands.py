"""Settings, the commands of the service as a user types them, and the files that they make."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap

import psutil
import pytest

from felix.cli import main
from felix.processes import policy
from server import commands, errors, folders, settings
from server.database import database, schema
from server.store import keys
from tests.support.waiting import until


def test_every_variable_changes_its_setting() -> None:
    texts = {int: "7", float: "7.5", bool: "true", policy.ConfineGpu: "off"}
    for name, field in settings.Settings.model_fields.items():
        other = "7" if "int" in str(field.annotation) else "/x"  # int | None
        text = {"trusted_proxies": "10.0.0.0/8", "cluster": "head:6379"}.get(
            name, texts.get(field.annotation, other)
        )
        environment = {f"FELIX_{name.upper()}": text}
        changed = settings.Settings.from_environment(environment)
        assert getattr(changed, name) != getattr(settings.Settings(), name)
    assert settings.Settings.from_environment({}) == settings.Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FELIX_PORT", "http"),
        ("FELIX_LEASE_S", "-1"),
        ("FELIX_LEASE_S", "nan"),
        ("FELIX_LOG_JSON", "maybe"),
        ("FELIX_MAX_TRIALS", "0"),
        ("FELIX_CONFINE_GPU", "1"),
        ("FELIX_TRUSTED_PROXIES", "everybody"),
        ("FELIX_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("FELIX_CLUSTER", "head"),
        ("FELIX_CLUSTER", "http://head:6379"),
    ],
)
def test_wrong_values_are_named(name: str, text: str) -> None:
    with pytest.raises(errors.SettingsError, match=f"{name} is '{text}'"):
        settings.Settings.from_environment({name: text})


def test_an_empty_variable_counts_as_absent() -> None:
    assert settings.Settings.from_environment({"FELIX_PORT": ""}) == settings.Settings()


def test_only_from_environment_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    default = settings.Settings().port
    monkeypatch.setenv("FELIX_PORT", "99")
    assert settings.Settings().port == default
    assert settings.Settings.from_environment().port == 99


def test_the_lifetime_of_cached_responses_has_an_earlier_name() -> None:
    earlier, now = {"FELIX_LOOK_S": "3"}, {"FELIX_CACHE_TTL_S": "4"}
    assert settings.Settings.from_environment(earlier).cache_ttl_s == 3.0
    assert settings.Settings.from_environment(earlier | now).cache_ttl_s == 4.0


@pytest.mark.parametrize(
    ("url", "with_driver"),
    [
        ("postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgres://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_urls_name_the_driver(url: str, with_driver: str) -> None:
    assert settings.Settings(database_url=url).database == with_driver


def test_defaults_lie_in_the_data_folder(tmp_path: pathlib.Path) -> None:
    chosen = settings.Settings(data_dir=tmp_path / "a b")
    assert chosen.database == f"sqlite:///{tmp_path}/a b/felix.db"
    assert chosen.blobs == (tmp_path / "a b" / "blobs").as_uri()
    assert chosen.address == "http://127.0.0.1:8000"


def felix(
    folder: pathlib.Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "felix", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"FELIX_DATA_DIR": str(folder)} | environment,
    )


def test_nothing_starts_on_another_schema(tmp_path: pathlib.Path) -> None:
    for command in (["tuner"], ["serve", "--no-tuner"]):
        done = felix(tmp_path, *command)
        assert done.returncode == 1
        assert "run `felix db upgrade`" in done.stderr and len(done.stderr.splitlines()) == 1


def test_db_upgrade(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FELIX_DATA_DIR", str(tmp_path))
    assert main.main(["db", "upgrade"]) == 0 and "before: none" in capsys.readouterr().out
    assert main.main(["db", "upgrade", "--json"]) == 0
    head = schema.head()
    assert capsys.readouterr().out == f'{{"before": "{head}", "after": "{head}"}}\n'
    assert list(tmp_path.glob("felix.db"))


def test_a_wrong_setting_is_one_line(tmp_path: pathlib.Path) -> None:
    done = felix(tmp_path, "tuner", FELIX_LEASE_S="soon")
    assert done.returncode == 1 and "FELIX_LEASE_S" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_the_extra_the_message_says_what_to_install(tmp_path: pathlib.Path) -> None:
    script = (
        "import sys; sys.modules['sqlalchemy'] = None; "
        "from felix.cli import main; sys.exit(main.main(['tuner']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'felix-tuner[server]'" in done.stderr


def test_the_first_key_is_made_once(tmp_path: pathlib.Path) -> None:
    chosen = settings.Settings(data_dir=tmp_path)
    commands.upgrade(chosen)
    text = commands.first_key(chosen)
    assert text is not None and commands.first_key(chosen) is None
    db = database.Database(chosen.database)
    with db.read() as tx:
        assert keys.find(tx, text).can_admin
    db.close()


@pytest.fixture
def tuner_script(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Stands for Python in the tuner's command: records its start, ends on SIGTERM."""
    script = tmp_path / "python"
    script.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import os, signal, sys
        with open({str(tmp_path / "starts")!r}, "a") as file:
            file.write(f"{{os.getpid()}} {{' '.join(sys.argv[1:])}}\\n")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.pause()
        """)
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(commands, "AGAIN_S", 0.05)
    return tmp_path / "starts"


def starts(path: pathlib.Path, n: int) -> list[str]:
    """The first n starts, once they were."""
    until(lambda: path.exists() and len(path.read_text().splitlines()) >= n)
    return path.read_text().splitlines()


@pytest.mark.fresh_processes
def test_a_tuner_that_dies_is_started_again(tuner_script: pathlib.Path) -> None:
    with commands.TunerProcess():
        pid, _, arguments = starts(tuner_script, 1)[0].partition(" ")
        assert arguments == "-m felix tuner --with-parent"
        os.kill(int(pid), signal.SIGKILL)
        second = int(starts(tuner_script, 2)[1].partition(" ")[0])
        assert second != int(pid) and psutil.pid_exists(second)
    assert not psutil.pid_exists(second)


def test_a_tuner_leaves_with_its_parent(tmp_path: pathlib.Path) -> None:
    child = (
        "import threading; from server import commands; leaving = threading.Event(); "
        "commands.leave_with_parent(leaving, 0.05); print('ready', flush=True); "
        "assert leaving.wait(120); open('left', 'w').close()"
    )
    parent = (
        "import subprocess, sys; "
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "p.stdout.readline()"
    )
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", parent], check=True, cwd=tmp_path, env=environment)
    until((tmp_path / "left").exists)


#: Serves nothing, but does what `felix serve` does before: database, a row, a blob, the key.
START = """
    import os, pathlib, sys
    os.umask(0o022)
    from server import commands, settings
    from server.database import database
    from server.store import blobs, keys
    chosen = settings.Settings(data_dir=pathlib.Path(sys.argv[1]))
    commands.upgrade(chosen)
    commands._announce_key(chosen, commands.first_key(chosen))
    db = database.Database(chosen.database)
    with db.write() as tx:
        keys.create(tx, keys.NewKey(name="second"))
    content = pathlib.Path(sys.argv[2])
    content.write_bytes(b"x")
    blobs.open_store(chosen.blobs).put(content)
    os._exit(0)  # SQLite's -wal and -shm stay
"""


def open_to_others(folder: pathlib.Path) -> list[str]:
    """What in a folder, itself included, others than its user have a right to."""
    paths = [folder, *folder.rglob("*")]
    return [path.name for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


def start(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Use the service's files in a process with the usual umask."""
    command = [sys.executable, "-c", textwrap.dedent(START), str(folder), f"{folder}-content"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def test_new_files_are_their_users_alone(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "deep" / "data"
    start(folder)
    names = {path.name for path in folder.rglob("*")}
    assert {"felix.db", "felix.db-wal", "felix.db-shm", "admin-key", "blobs"} <= names
    assert open_to_others(folder) == []


@pytest.mark.slow("starts the service twice, in processes that import all anew")
def test_wider_files_are_tightened_with_a_log_line(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "data"
    start(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    log = start(folder).stderr
    assert open_to_others(folder) == []
    for name in ("data", "felix.db", "felix.db-wal", "felix.db-shm", "blobs", "admin-key"):
        assert f"{name} was open to other users" in log


def test_a_shared_folder_is_not_taken_from_the_others(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    with caplog.at_level(logging.WARNING, "server"):
        folders.tighten(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
    assert "other users can read" in caplog.text


def test_the_folder_of_a_database_elsewhere_stays_as_it_is(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o755)
    database.Database(f"sqlite:///{tmp_path / 'own.db'}").close()
    assert open_to_others(tmp_path) == [tmp_path.name]
