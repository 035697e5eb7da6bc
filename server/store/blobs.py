"""Contents of artifacts, by their sha256: a local folder, or an S3-compatible store.

A blob is complete or absent: the folder gets it by an atomic rename, S3 by its own rule. Storing
the same content again changes nothing. Rows that name a blob are written after it, so a row never
points to nothing; a blob without a row is waste that a later upload of the same content reuses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterator
from typing import IO, Any, Protocol

from felix import files
from server import errors, folders

#: Bytes read or sent at a time.
CHUNK_BYTES = 1 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """What was stored."""

    sha256: str
    size_bytes: int


class BlobStore(Protocol):
    """Stores contents; used by several threads and processes at once."""

    def put(self, path: pathlib.Path) -> Stored:
        """Store a file's content.

        Raises:
            BlobError: the store cannot be written.
        """
        ...

    def read(self, sha256: str) -> Iterator[bytes]:
        """The content in chunks; a missing one is an error before the iterator is returned.

        Raises:
            NotFound: it is not there.
            BlobError: the store cannot be read.
        """
        ...

    def has(self, sha256: str) -> bool:
        """Whether a content is there.

        Raises:
            BlobError: the store cannot be read.
        """
        ...

    def delete(self, sha256: str) -> None:
        """Remove a content; one that is not there is no error.

        Raises:
            BlobError: the store cannot be written.
        """
        ...


def open_store(url: str, s3_endpoint: str | None = None) -> BlobStore:
    """The store of a URL: `s3://bucket/prefix`, `file:///folder` or a folder.

    Raises:
        SettingsError: another kind of URL, or boto3 is missing.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "s3":
        return S3Store(parts.netloc, parts.path.strip("/"), s3_endpoint)
    if parts.scheme not in ("", "file"):
        raise errors.SettingsError(f"a blob store is a folder or s3://bucket/prefix, not {url}")
    return LocalStore(pathlib.Path(urllib.parse.unquote(parts.path)))


class LocalStore(BlobStore):
    """Files named by their sha256 in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folders.tighten(folder)

    def put(self, path: pathlib.Path) -> Stored:
        """See `BlobStore.put`."""
        try:
            folders.make_folder(self.folder)
            with files.temporary(self.folder, mode=0o600) as (to, part), open(path, "rb") as file:
                stored = copy(file, to)
                to.flush()
                os.fsync(to.fileno())
                place = self._place(stored.sha256)
                folders.make_folder(place.parent)
                part.replace(place)
        except OSError as error:
            raise errors.BlobError(f"cannot store a blob: {error.strerror}") from error
        return stored

    def read(self, sha256: str) -> Iterator[bytes]:
        """See `BlobStore.read`."""
        try:
            file = open(self._place(sha256), "rb")
        except FileNotFoundError:
            raise errors.NotFound("the content is not in the blob store") from None
        except OSError as error:
            raise errors.BlobError(f"cannot read a blob: {error.strerror}") from error
        return _chunks(file)

    def has(self, sha256: str) -> bool:
        """See `BlobStore.has`."""
        return self._place(sha256).is_file()

    def delete(self, sha256: str) -> None:
        """See `BlobStore.delete`."""
        try:
            self._place(sha256).unlink(missing_ok=True)
        except OSError as error:
            raise errors.BlobError(f"cannot delete a blob: {error.strerror}") from error

    def _place(self, sha256: str) -> pathlib.Path:
        _check(sha256)
        return self.folder / sha256[:2] / sha256[2:]


class S3Store(BlobStore):
    """Objects named by their sha256 in a bucket, under a prefix."""

    def __init__(self, bucket: str, prefix: str = "", endpoint: str | None = None) -> None:
        try:
            import boto3
            from botocore import config
        except ImportError as error:
            raise errors.SettingsError(
                "an S3 store needs boto3: pip install 'felix-tuner[s3]'"
            ) from error
        self.bucket, self.prefix = bucket, prefix
        retries = config.Config(retries={"max_attempts": 5, "mode": "standard"})
        self._client: Any = boto3.client("s3", endpoint_url=endpoint, config=retries)

    def put(self, path: pathlib.Path) -> Stored:
        """See `BlobStore.put`."""
        with open(path, "rb") as file, open(os.devnull, "wb") as nowhere:
            stored = copy(file, nowhere)
        with self._errors("store"):
            self._client.upload_file(str(path), self.bucket, self._name(stored.sha256))
        return stored

    def read(self, sha256: str) -> Iterator[bytes]:
        """See `BlobStore.read`."""
        with self._errors("read"):
            response = self._client.get_object(Bucket=self.bucket, Key=self._name(sha256))
        body = response["Body"]
        return iter(lambda: body.read(CHUNK_BYTES), b"")

    def has(self, sha256: str) -> bool:
        """See `BlobStore.has`."""
        try:
            with self._errors("read"):
                self._client.head_object(Bucket=self.bucket, Key=self._name(sha256))
        except errors.NotFound:
            return False
        return True

    def delete(self, sha256: str) -> None:
        """See `BlobStore.delete`."""
        with self._errors("delete"):
            self._client.delete_object(Bucket=self.bucket, Key=self._name(sha256))

    def _name(self, sha256: str) -> str:
        _check(sha256)
        return f"{self.prefix}/{sha256}" if self.prefix else sha256

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        from boto3 import exceptions as boto3_errors
        from botocore import exceptions

        try:
            yield
        except exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404"):
                raise errors.NotFound("the content is not in the blob store") from None
            raise errors.BlobError(f"cannot {verb} a blob: {error}") from error
        except (exceptions.BotoCoreError, boto3_errors.Boto3Error) as error:
            raise errors.BlobError(f"cannot {verb} a blob: {error}") from error


def _check(sha256: str) -> None:
    if not _SHA256.fullmatch(sha256):
        raise errors.NotFound("a blob is named by its sha256")


def _chunks(file: Any) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def copy(file: IO[bytes], to: Any) -> Stored:
    """Write the rest of a file to another one; what it is."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
        to.write(chunk)
    return Stored(digest.hexdigest(), size)
