"""Settings of API servers and tuners: the only module of the service that reads the environment.

Every variable begins with `FELIX_`; `Settings.from_environment` names them. Credentials of an
S3-compatible store are boto3's own (`AWS_ACCESS_KEY_ID`, ...), so they never pass through here.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Self

from server import errors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a process of the service works; durations in seconds, sizes in bytes."""

    #: SQLite file, blobs and scratch files live here unless told otherwise.
    data_dir: pathlib.Path = pathlib.Path("felix-data")
    #: SQLAlchemy URL; None: an SQLite file in `data_dir`.
    database_url: str | None = None
    #: A folder, `file:///...` or `s3://bucket/prefix`; None: a folder in `data_dir`.
    blob_url: str | None = None
    #: Endpoint of an S3-compatible store; None: Amazon's.
    s3_endpoint: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    #: Where users reach the service, for cookies and links; None: http on host and port.
    public_url: str | None = None
    #: How long a tuner that stops renewing keeps its job.
    lease_s: float = 30.0
    #: Between two renewals.
    beat_s: float = 2.0
    #: Between two looks for work, and between two looks for expired leases.
    poll_s: float = 1.0
    reap_s: float = 5.0
    #: Claims of a job without a new trial before it counts as failed.
    max_attempts: int = 5
    #: How old an answer about a job may be that several clients share.
    look_s: float = 0.5
    #: Limits of reading one uploaded program.
    parse_s: float = 60.0
    parse_bytes: int = 8 << 30
    #: Largest body of a request, whatever the key allows.
    max_upload_bytes: int = 256 << 20
    #: Quotas of a key that sets none of its own.
    max_running_jobs: int = 20
    max_trials: int = 20_000
    #: Log lines as JSON.
    log_json: bool = False

    @property
    def database(self) -> str:
        """The database's URL, with the driver that is used."""
        url = self.database_url
        if url is None:
            return f"sqlite:///{(self.data_dir / 'felix.db').absolute()}"
        scheme, separator, rest = url.partition("://")
        drivers = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
        return f"{drivers.get(scheme, scheme)}{separator}{rest}"

    @property
    def blobs(self) -> str:
        """The blob store's URL."""
        return self.blob_url or (self.data_dir / "blobs").absolute().as_uri()

    @property
    def address(self) -> str:
        """Where users reach the service, without a slash at the end."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Settings of this process: `FELIX_` and the field's name in capitals.

        Raises:
            SettingsError: a value is no number, no size, or out of range.
        """
        found = os.environ if environment is None else environment
        given: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = f"FELIX_{field.name.upper()}"
            if found.get(name):
                given[field.name] = _read(name, found[name], str(field.type))
        return cls(**given)


def _boolean(text: str) -> bool:
    return {"1": True, "true": True, "0": False, "false": False}[text.lower()]


_READERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": _boolean,
    "pathlib.Path": pathlib.Path,
}


def _read(name: str, text: str, kind: str) -> Any:
    try:
        value = _READERS.get(kind, str)(text)
    except (ValueError, KeyError):
        raise errors.SettingsError(f"{name} must be of type {kind}, got {text!r}") from None
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < 1e15:
        raise errors.SettingsError(f"{name} must be positive, got {text!r}")
    return value
