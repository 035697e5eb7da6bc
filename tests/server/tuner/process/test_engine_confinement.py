"""Attacks from inside an engine's process, and what an engine leaves to its tuner."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from felix import files
from felix.measure import rights as pool_rights
from felix.processes import confine, policy
from felix.runner.cuda import devices
from server import commands, errors, settings
from server.database import database
from server.store import blobs, events
from server.tuner import tuner
from server.tuner.process import engine_process, messages, rights
from tests.support import engine_fakes, service_fakes
from tests.support.hostile import besieged

FAST = settings.Settings(lease_s=20.0, beat_s=0.02, poll_s=0.02, reap_s=0.05, max_attempts=1)


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the same user."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    """The home of the service's user, with a key for other machines."""
    folder = tmp_path / "home" / ".ssh"
    folder.mkdir(parents=True)
    (folder / "id_ed25519").write_text("a private key")
    return tmp_path / "home"


def taken_engine() -> engine_process.EngineProcess:
    return engine_process.EngineProcess(FAST, factory=engine_fakes.TAKEN_FACTORY)


def outcomes(
    db: database.Database, tmp_path: pathlib.Path, code: str, working: tuner.Tuner
) -> list[str]:
    """What code in an engine found out."""
    job_id = service_fakes.create(db, options={"code": code}).id
    assert working.work_once()
    (started,) = service_fakes.read(db, events.after, job_id, kinds=[events.Type.STARTED])
    return list(started.payload["outcomes"])


@pytest.mark.fresh_processes
def test_an_engine_that_is_taken_over_gets_nothing(
    db: database.Database,
    tmp_path: pathlib.Path,
    home: pathlib.Path,
    bystander: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("FELIX_DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "SOME_TOKEN"):
        monkeypatch.setenv(name, besieged.SECRET)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path / "cache"))
    place = besieged.Besieged.make(tmp_path)
    engine = taken_engine()
    working = tuner.Tuner(db, blobs.LocalStore(tmp_path / "blobs"), engine, FAST)
    with contextlib.closing(place), contextlib.closing(working):
        forks = engine._server._process
        assert forks is not None
        place.facts["files"] += [str(home / ".ssh" / "id_ed25519"), str(tmp_path / "felix.db")]
        place.facts["folders"] += [str(home), str(tmp_path / "blobs"), str(tmp_path / "cache")]
        pids = [os.getpid(), forks.pid, bystander]
        code = place.code(pids=pids, programs=True, leads=True)
        code = code.replace("os.write(2, ", "outcomes.append(").replace(".encode())\n", ")\n")
        (log,) = outcomes(db, tmp_path, code, working)
        assert place.harm(log) == {}
        # what it starts has no more
        code = _in_a_program(place.code(pids=pids, programs=True, leads=True))
        (log,) = outcomes(db, tmp_path, code, working)
    assert place.harm(log) == {}


@pytest.fixture
def gpu(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The device of `engine_fakes.EngineOnGpu`, which confined engines may write."""
    device = tmp_path / "cache" / "formulas" / "nvidia0"
    device.parent.mkdir(parents=True)
    device.touch()
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(engine_fakes.GPU_VARIABLE, str(device))
    monkeypatch.setattr(rights.rights, "nvidia_devices", lambda: ["/dev/nvidia0"])
    return device


@contextlib.contextmanager
def beside_a_gpu(chosen: policy.ConfineGpu) -> Iterator[engine_process.EngineProcess]:
    made = engine_process.EngineProcess(
        FAST.model_copy(update={"confine_gpu": chosen}), factory=engine_fakes.FACTORY_ON_GPU
    )
    with contextlib.closing(made):
        yield made


def test_beside_a_gpu_whose_driver_works_confined_engines_are(
    gpu: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with beside_a_gpu(policy.ConfineGpu.AUTO) as engine:
        (device,) = engine.devices()
        assert engine._start == rights.Start(True, policy.ConfineGpu.AUTO)
        assert device["kind"] == "cuda" and device["unconfined"] is None
    assert not caplog.records


def test_a_driver_that_needs_more_is_served_unconfined_and_that_is_said(
    gpu: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(engine_fakes.GPU_VARIABLE, str(gpu.rename(tmp_path / "nvidia0")))
    with beside_a_gpu(policy.ConfineGpu.AUTO) as engine:
        (device,) = engine.devices()
        assert device["fault"] is None and "304: Permission denied" in device["unconfined"]
        assert engine._start.is_confined is False
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("engines are not confined") and "304: Permission denied" in line
    with pytest.raises(errors.SettingsError, match="304: Permission denied"):
        with beside_a_gpu(policy.ConfineGpu.ON):
            pass


def test_a_gpu_that_does_not_work_leaves_engines_confined(
    gpu: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.unlink()
    with beside_a_gpu(policy.ConfineGpu.ON) as engine:
        (device,) = engine.devices()
        assert device["kind"] == "llvm"
        assert engine._start == rights.Start(True, policy.ConfineGpu.ON)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "cannot be used, confined or not: its driver finds no GPU" in line


def test_confinement_beside_a_gpu_can_be_off_unless_it_is_required(
    gpu: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with beside_a_gpu(policy.ConfineGpu.OFF) as engine:
        assert engine.devices()[0]["unconfined"] == "FELIX_CONFINE_GPU is off"
    assert "FELIX_CONFINE_GPU is off" in caplog.text
    required = FAST.model_copy(update={"require_confinement": True})
    assert required.gpu_confinement is policy.ConfineGpu.ON
    commands._check_confinement(required)
    with pytest.raises(errors.SettingsError, match="FELIX_CONFINE_GPU is off"):
        commands._check_confinement(
            required.model_copy(update={"confine_gpu": policy.ConfineGpu.OFF})
        )


def _in_a_program(code: str) -> str:
    run = f"subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True)"
    return f"import subprocess, sys\noutcomes.append({run}.stderr)"


def test_an_engine_writes_scratch_and_the_formula_cache(
    db: database.Database, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path / "cache"))
    code = """
import os, pathlib, tempfile
from felix.space import formula_cache
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, 'a').write_text('a')
    os.replace(pathlib.Path(folder, 'a'), pathlib.Path(tempfile.gettempdir(), 'b'))
pathlib.Path(formula_cache.folder(), 'entry').write_text('a')
outcomes += [os.getcwd(), tempfile.gettempdir(), str(pathlib.Path.home())]
"""
    engine = taken_engine()
    working = tuner.Tuner(db, blobs.LocalStore(tmp_path / "blobs"), engine, FAST)
    with contextlib.closing(working):
        (folder,) = set(outcomes(db, tmp_path, code, working))
        assert (pathlib.Path(folder) / "b").read_text() == "a"
    assert (tmp_path / "cache" / "formulas" / "entry").read_text() == "a"
    assert not pathlib.Path(folder).exists()


def make_link(path: pathlib.Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("data")
    path.symlink_to(victim)


@pytest.mark.parametrize(
    "make",
    [make_link, os.mkfifo, os.mkdir, lambda path: None],
    ids=["link", "pipe", "folder", "-"],
)
def test_only_a_plain_file_is_taken_from_an_engine(tmp_path: pathlib.Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "made")
    with pytest.raises(messages.EngineFailure, match="artifact"):
        messages.copy_untrusted(tmp_path / "made", tmp_path / "artifact")


def test_an_artifact_is_no_larger_than_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.write_bytes(b"artifact")
    messages.copy_untrusted(made, tmp_path / "artifact")
    assert (tmp_path / "artifact").read_bytes() == b"artifact" and not made.exists()
    made.write_bytes(b"artifact")
    monkeypatch.setattr(messages, "MAX_FILE_BYTES", 7)
    with pytest.raises(messages.EngineFailure, match="no artifact"):
        messages.copy_untrusted(made, tmp_path / "artifact")


def test_on_a_gpu_an_engine_keeps_what_its_pools_need(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks of the devices are made where all tuners of the machine have them."""
    monkeypatch.setattr(rights.rights, "nvidia_devices", lambda: ["/dev/nvidia0"])
    monkeypatch.setattr(devices, "count", lambda: 2)
    monkeypatch.setattr(devices, "bus_id", lambda index: f"0000:0{index}:00.0")
    monkeypatch.setenv(files.LOCKS_VARIABLE, str(tmp_path))
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path / "cache"))
    rights.prepare()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    may = rights.engine(tmp_path / "scratch")
    locks = [str(tmp_path / f"felix-device-0000:0{index}:00.0.lock") for index in range(2)]
    assert {"/dev/nvidia0", *locks} <= set(may.devices)
    assert may.local_sockets and may.memory_files
    assert "/proc" in may.devices  # where run workers name their threads
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "/proc" not in rights.engine(tmp_path / "scratch").devices  # with the kernel's settings
    monkeypatch.setattr(rights.rights, "nvidia_devices", lambda: [])
    may = rights.engine(tmp_path / "scratch")
    assert not may.local_sockets and not may.memory_files and "/proc" not in may.devices
    assert rights.variables()[files.LOCKS_VARIABLE] == str(tmp_path)


def test_a_run_worker_in_a_confined_engine_has_what_a_driver_needs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices and names for its threads, without which NVIDIA's does not begin.

    Rules of both processes have to allow it, and the engine has to see what there is.
    """
    monkeypatch.setattr(pool_rights, "_NVIDIA_DEVICES", ("/dev/zer*",))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    folders = pool_rights.Folders.make(tmp_path, None)

    def run_worker(may: policy.Policy) -> None:
        confine.confine(may)
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "r+") as name:
            name.write("cuda")
        with open("/dev/zero", "r+b", buffering=0) as device:
            device.write(b"0")

    def engine() -> None:
        confine.confine(rights.engine(tmp_path))
        may = pool_rights.cuda_runner(folders)  # as a pool of the engine makes it
        in_a_process(functools.partial(run_worker, may))

    in_a_process(engine)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(AssertionError):
        in_a_process(engine)


def in_a_process(work: Callable[[], None]) -> None:
    """Do something in a fork of this process; it must not raise."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_landlock_that_cannot_confine_engines_counts_as_missing() -> None:
    (lack,) = confine.Confinement(1, True).missing
    assert "engines" in lack and "5.19" in lack
    assert confine.Confinement(2, True).missing == ()
    old, engine = confine.Confinement(1, True), policy.Policy(folder="/", leads=True)
    assert confine._usable(old, engine).landlock_abi is None
    assert confine._usable(old, policy.Policy(folder="/")) == old
