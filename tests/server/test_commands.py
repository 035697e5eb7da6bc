"""The commands of the service, as a user types them, and the tuner that `felix serve` keeps."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from felix.cli import main
from server import commands, settings
from server.database import database, schema
from server.store import keys
from server.tuner import tuner_process


def felix(
    folder: pathlib.Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "felix", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
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
    monkeypatch.setattr(tuner_process, "AGAIN_S", 0.05)
    return tmp_path / "starts"


def starts(path: pathlib.Path, n: int) -> list[str]:
    """The first n starts, once they were."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if path.exists() and len(lines := path.read_text().splitlines()) >= n:
            return lines
        time.sleep(0.02)
    raise AssertionError(f"the tuner was not started {n} times")


def test_a_tuner_that_dies_is_started_again(tuner_script: pathlib.Path) -> None:
    with tuner_process.TunerProcess():
        pid, _, arguments = starts(tuner_script, 1)[0].partition(" ")
        assert arguments == "-m felix tuner --with-parent"
        os.kill(int(pid), signal.SIGKILL)
        second = int(starts(tuner_script, 2)[1].partition(" ")[0])
        assert second != int(pid) and psutil.pid_exists(second)
    assert not psutil.pid_exists(second)


def test_a_tuner_leaves_with_its_parent(tmp_path: pathlib.Path) -> None:
    child = (
        "import threading; from server.tuner import tuner_process; leaving = threading.Event(); "
        "tuner_process.leave_with_parent(leaving, 0.05); print('ready', flush=True); "
        "assert leaving.wait(30); open('left', 'w').close()"
    )
    parent = (
        "import subprocess, sys; "
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "p.stdout.readline()"
    )
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", parent], check=True, cwd=tmp_path, env=environment)
    deadline_s = time.monotonic() + 30
    while not (tmp_path / "left").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
