"""TLS between the machines of a cluster, with certificates by the commands of the guide; the key
of a service."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator

import pytest

from felix import errors
from felix.measure.cluster import node, tls
from tests.support import cluster_machines, deployment
from tests.support import pool_programs as programs

AUTHORITY, MACHINE, VARIABLES = (deployment.block("cluster.md", "TLS", i) for i in range(3))
NAMES = re.findall(r"RAY_\w+", VARIABLES)


def _address() -> str:
    """This machine's own, by which Ray reaches it; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("8.8.8.8", 1))
        return str(probe.getsockname()[0])


def _made(home: pathlib.Path, *addresses: str) -> list[dict[str, str]]:
    """A CA, and Ray's variables for a machine of each address."""
    home.mkdir()
    subprocess.run(["bash", "-ec", AUTHORITY], cwd=home, check=True, capture_output=True)
    return [_machine(home, address) for address in addresses]


def _machine(home: pathlib.Path, address: str) -> dict[str, str]:
    assert "ADDRESS=192.0.2.7\n" in MACHINE
    script = MACHINE.replace("192.0.2.7", address)
    subprocess.run(["bash", "-ec", script], cwd=home, check=True, capture_output=True)
    folder = home / address / "felix-tls"
    folder.mkdir(parents=True)
    for made, copied in (
        ("ca.crt", "ca.crt"),
        (f"{address}.crt", "node.crt"),
        (f"{address}.key", "node.key"),
    ):
        (folder / copied).write_bytes((home / made).read_bytes())
    say = VARIABLES + "\n".join(f'echo "{name}=${name}"' for name in NAMES)
    said = subprocess.run(
        ["bash", "-ec", say],
        env={"HOME": str(folder.parent)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return dict(line.split("=", 1) for line in said.splitlines())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a machine at 127.0.0.1."""
    return _made(tmp_path_factory.mktemp("tls") / "home", "127.0.0.1")[0]


@contextlib.contextmanager
def _head(files: dict[str, str] | None) -> Iterator[str]:
    """The address of a port that speaks TLS with these files as a head does, or none."""
    context = None
    if files is not None:
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=files["RAY_TLS_CA_CERT"]
        )
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(files["RAY_TLS_SERVER_CERT"], files["RAY_TLS_SERVER_KEY"])

    def answer() -> None:
        with contextlib.suppress(OSError), server.accept()[0] as client:
            if context is None:
                client.send(b"\x00\x00\x18\x04" * 8)
            else:
                with context.wrap_socket(client, server_side=True) as speaking:
                    speaking.send(b"\x00\x00\x18\x04")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"localhost:{server.getsockname()[1]}"
        server.close()
        thread.join(10)


def _set(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in files.items():
        monkeypatch.setenv(name, value)


def test_two_that_use_tls_with_one_ca_agree(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(monkeypatch, machine)
    with _head(machine) as address:
        tls.check(address)
    with _head(machine) as address:  # by the address in the certificate
        monkeypatch.setattr(tls, "_is_loopback", lambda host: False)
        tls.check(address.replace("localhost", "127.0.0.1"))


def test_two_without_tls_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, {})
    with _head(None) as address:
        tls.check(address)
    tls.check(address)  # nobody is there, which is for Ray to say
    tls.check("nowhere")


def test_one_that_uses_tls_alone_is_told_what_to_set(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(monkeypatch, {})
    message = "uses TLS and this process does not: set RAY_USE_TLS=1, RAY_TLS_SERVER_CERT, RAY_TLS"
    with _head(machine) as address, pytest.raises(errors.MeasureError, match=message):
        tls.check(address)
    _set(monkeypatch, machine)
    message = "uses no TLS: start it with RAY_USE_TLS=1 and certificates, or unset RAY_USE_TLS"
    with _head(None) as address, pytest.raises(errors.MeasureError, match=message):
        tls.check(address)


def test_a_certificate_of_another_ca_or_address_is_refused(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (other,) = _made(tmp_path / "other", "127.0.0.1")
    _set(monkeypatch, other)
    with _head(machine) as address, pytest.raises(errors.MeasureError, match="not of our CA"):
        tls.check(address)
    _set(monkeypatch, other | {"RAY_TLS_CA_CERT": machine["RAY_TLS_CA_CERT"]})
    with _head(machine) as address, pytest.raises(errors.MeasureError, match=r"not accept .*node"):
        tls.check(address)
    _set(monkeypatch, machine)
    monkeypatch.setattr(tls, "_is_loopback", lambda host: False)
    with _head(machine) as address, pytest.raises(errors.MeasureError, match="for 'localhost'"):
        tls.check(address)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RAY_TLS_SERVER_KEY": ""}, "TLS, but RAY_TLS_SERVER_KEY is not set: set .* or unset"),
        ({"RAY_TLS_CA_CERT": "/no/ca"}, "RAY_TLS_CA_CERT names /no/ca, which cannot be read"),
        ({"RAY_TLS_CA_CERT": __file__}, "holds no certificate of a CA"),
        ({"RAY_TLS_SERVER_KEY": __file__}, "is not the key of the certificate"),
    ],
)
def test_files_that_are_missing_or_wrong_are_named(
    change: dict[str, str], message: str, machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(monkeypatch, machine | change)
    with pytest.raises(errors.MeasureError, match=message):
        tls.check("localhost:1")


@pytest.mark.slow("starts a Ray cluster, whose processes encrypt what they say")
def test_a_cluster_with_tls(tmp_path: pathlib.Path) -> None:
    """A worker and a tuner with certificates take part, those without end at once."""
    pytest.importorskip("ray", reason="needs the extra [cluster]")
    (files,) = _made(tmp_path / "home", here := _address())
    machines = cluster_machines.Machines(tmp_path, here)
    plain, machines.environment = machines.environment, machines.environment | files
    try:
        machines.head()
        worker = machines.worker()
        machines.until(worker, lambda text: "felix worker: measures on" in text, 240)
        tuner = machines.tune("out", "--trials=4", "--round=4")
        assert tuner.wait(300) == 0, machines.log(tuner)
        records = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
        trials = [json.loads(line)["measurement"]["error"] for line in records]
        assert len(trials) >= 4 and "infrastructure" not in trials

        assert _shown(machines.address, files, with_certificate=True) != b""
        assert _shown(machines.address, files, with_certificate=False) == b""

        machines.environment = plain
        for process in (machines.worker(), machines.tune("none", "--trials=4")):
            assert "uses TLS and this process does not: set RAY_USE_TLS=1" in _ended(
                machines, process
            )
        machines.environment = plain | files | {"RAY_TLS_SERVER_CERT": str(tmp_path / "gone")}
        for process in (machines.worker(), machines.tune("none", "--trials=4")):
            assert "RAY_TLS_SERVER_CERT names" in _ended(machines, process)
        assert not (tmp_path / "none" / "records.jsonl").exists()
    finally:
        machines.close()


def _ended(machines: cluster_machines.Machines, process: subprocess.Popen[bytes]) -> str:
    """What a process that fails soon has written."""
    try:
        assert process.wait(60) == 1
    except subprocess.TimeoutExpired:
        pytest.fail(f"it goes on: {machines.log(process)}")
    return machines.log(process)


def _shown(address: str, files: dict[str, str], *, with_certificate: bool) -> bytes:
    """What the head's port says over TLS, whose certificate is verified with the CA alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the address, too
    context.load_verify_locations(files["RAY_TLS_CA_CERT"])
    context.set_alpn_protocols(["h2"])
    if with_certificate:
        context.load_cert_chain(files["RAY_TLS_SERVER_CERT"], files["RAY_TLS_SERVER_KEY"])
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), 10) as connection,
        context.wrap_socket(connection, server_hostname=host) as speaking,
    ):
        return speaking.recv(1)


# The key of a machine that measures for a service: read once, never shown.

KEY = "felix_0a1b2c3d4e5f_secret_with_underscores"


def test_a_key_is_taken_out_of_the_environment() -> None:
    environment = {"FELIX_WORKER_KEY": f"{KEY}\n", "HOME": "/"}
    digest = tls.take(environment)
    assert environment == {"HOME": "/"} and len(digest) == 64
    assert digest == tls.digest(KEY) != tls.digest(KEY + "x")
    assert tls.take({}) == tls.take({"FELIX_WORKER_KEY": ""}) == ""


@pytest.mark.parametrize("text", ["secret", "felix_0a1b", "felix_0a1b_", "other_0a1b_secret"])
def test_what_is_no_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(errors.MeasureError, match="no key of a service: set it to") as raised:
        tls.take({"FELIX_WORKER_KEY": text})
    assert text not in str(raised.value)


def test_a_node_states_the_digest_alone() -> None:
    made = node.Node(node.Settings(builders=1, key=tls.digest(KEY)), programs.OPTIONS)
    try:
        facts = made.facts()
    finally:
        made.close()
    assert json.loads(facts)["key"] == tls.digest(KEY)
    assert "secret" not in facts
