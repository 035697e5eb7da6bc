"""Every service of the compose file that no other test starts, by its own command."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.server.conftest import own_database
from tests.support import deployment as deployments

#: What the two sides of TVM's protocol begin with.
TRACKER_MAGIC = struct.pack("<i", 0x2F271)


@pytest.fixture
def deployment(tmp_path: pathlib.Path) -> Iterator[deployments.Deployment]:
    """A deployment without processes, on a database without tables."""
    with own_database() as url:
        made = deployments.Deployment(tmp_path, url.replace("+psycopg", ""))
        with contextlib.closing(made):
            yield made


def has_gpu() -> bool:
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    return False


@pytest.mark.parametrize("package", deployments.LEFT_OUT)
def test_the_slim_image_is_imitated_without_what_it_leaves_out(
    package: str, deployment: deployments.Deployment
) -> None:
    statement = [sys.executable, "-c", f"import {package}"]
    done = subprocess.run(statement, env=deployment.environment("api"), capture_output=True)
    assert done.returncode == 1 and b"ModuleNotFoundError" in done.stderr


def test_a_cluster_with_a_builder_a_gpu_runner_and_a_tuner(
    deployment: deployments.Deployment,
) -> None:
    deployment.migrate()
    head = deployment.start("ray-head")
    deployment.until_said(head, "Ray runtime started")
    builder, runner = deployment.start("builder"), deployment.start("gpu-runner")
    tuner = deployment.start("cluster-tuner")
    if has_gpu():
        deployment.until_said(runner, "felix worker: measures on")
    else:  # it refuses by itself, and compose starts it again
        assert runner.wait(deployments.LIMIT_S) == 1
        assert "no CUDA driver here" in deployment.log(runner)
    deployment.until_said(builder, "felix worker: builds programs for")
    deployment.until_said(tuner, "is ready for")
    assert "Ray runtime started" in deployment.log(tuner)


def test_a_cluster_without_a_token_does_not_start(
    deployment: deployments.Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "TOKEN", "")
    monkeypatch.setenv("HOME", str(deployment.folder))  # may have a token
    builder = deployment.start("builder")
    assert builder.wait(deployments.LIMIT_S) == 1
    assert "with a token only" in deployment.log(builder)


def test_the_tracker_answers_as_one(deployment: deployments.Deployment) -> None:
    tracker = deployment.start("tracker")

    def answers() -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", deployment.tracker_port), 5.0) as connection,
        ):
            connection.sendall(TRACKER_MAGIC)
            return connection.recv(4) == TRACKER_MAGIC
        return False

    deployment.until(tracker, answers)


def test_the_database_s_check_is_one_that_postgres_answers(
    deployment: deployments.Deployment,
) -> None:
    assert deployment.is_healthy("postgres")
