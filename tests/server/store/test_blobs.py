"""Blob stores: a folder, and S3's protocol against a small server in this process."""

from __future__ import annotations

import hashlib
import http.server
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from server import errors
from server.store import blobs

CONTENT = b"content" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Bucket(http.server.BaseHTTPRequestHandler):
    """PUT, GET and DELETE of objects in memory; `objects` belongs to the server's subclass."""

    objects: dict[str, bytes]
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            body = _unchunk(body)
        self.objects[self.path.partition("?")[0]] = body
        self.respond(200)

    def do_GET(self) -> None:
        content = self.objects.get(self.path.partition("?")[0])
        missing = b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>"
        self.respond(404 if content is None else 200, missing if content is None else content)

    def do_DELETE(self) -> None:
        self.objects.pop(self.path.partition("?")[0], None)
        self.respond(204)

    def respond(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _unchunk(body: bytes) -> bytes:
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            break
        content, body = content + body[:length], body[length + 2 :]
    return content


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, bytes]]]:
    """An S3 endpoint and its objects by path."""
    pytest.importorskip("boto3")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    objects: dict[str, bytes] = {}
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Own", (Bucket,), {"objects": objects})
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", objects
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> blobs.BlobStore:
    if request.param == "folder":
        return blobs.open_store((tmp_path / "a folder").as_uri())
    url, _ = request.getfixturevalue("endpoint")
    return blobs.open_store("s3://bucket/some/prefix", url)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def test_what_is_put_can_be_read(store: blobs.BlobStore, file: pathlib.Path) -> None:
    for _ in range(2):  # again changes nothing
        assert store.put(file) == blobs.Stored(SHA256, len(CONTENT))
        assert b"".join(store.read(SHA256)) == CONTENT
    store.delete(SHA256)
    with pytest.raises(errors.NotFound):
        store.read(SHA256)
    store.delete(SHA256)


@pytest.mark.parametrize("name", ["../secret", "", "A" * 64, "0" * 63, "0" * 64 + "/.."])
def test_only_hashes_are_names(store: blobs.BlobStore, name: str) -> None:
    with pytest.raises(errors.NotFound):
        store.read(name)


def test_objects_lie_under_the_prefix(
    endpoint: tuple[str, dict[str, bytes]], file: pathlib.Path
) -> None:
    blobs.open_store("s3://bucket/some/prefix", endpoint[0]).put(file)
    assert endpoint[1] == {f"/bucket/some/prefix/{SHA256}": CONTENT}


def test_a_folder_that_cannot_be_written(tmp_path: pathlib.Path, file: pathlib.Path) -> None:
    in_the_way = tmp_path / "file in the way"
    in_the_way.write_text("")
    with pytest.raises(errors.BlobError):
        blobs.LocalStore(in_the_way).put(file)


def test_a_failed_put_leaves_nothing(
    tmp_path: pathlib.Path, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(errors.BlobError, match="No space left"):
        blobs.LocalStore(tmp_path / "blobs").put(file)
    assert list((tmp_path / "blobs").iterdir()) == []


def test_an_endpoint_that_is_not_there(
    endpoint: tuple[str, dict[str, bytes]], file: pathlib.Path
) -> None:
    from botocore import config

    store = blobs.S3Store("bucket", "", "http://127.0.0.1:9")
    quick = config.Config(retries={"total_max_attempts": 1}, connect_timeout=1)
    store._client = __import__("boto3").client(
        "s3", endpoint_url="http://127.0.0.1:9", config=quick
    )
    with pytest.raises(errors.BlobError):
        store.put(file)


def test_other_urls_are_refused() -> None:
    with pytest.raises(errors.SettingsError):
        blobs.open_store("ftp://host/x")
