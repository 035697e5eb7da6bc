"""Settings of API servers and tuners: the only module of the service that reads the environment.

A setting's variable is `FELIX_` and its name in capitals: `Settings.lease_s` is `FELIX_LEASE_S`.
Credentials of an S3-compatible store are boto3's (`AWS_ACCESS_KEY_ID`, ...), so they never pass
through here.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, Self

import pydantic
import pydantic_settings
from pydantic_settings import sources

from felix.processes import policy
from server import errors

_PREFIX = "FELIX_"

#: Every number is positive and finite.
_Integer = Annotated[int, pydantic.Field(gt=0, lt=10**15)]
_Seconds = Annotated[float, pydantic.Field(gt=0, lt=1e15, allow_inf_nan=False)]


def _networks(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


_Networks = Annotated[
    tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...],
    pydantic_settings.NoDecode,
    pydantic.BeforeValidator(_networks),
]


class Settings(pydantic_settings.BaseSettings):
    """How a process of the service works; durations in seconds, sizes in bytes.

    The constructor takes what it is given; only `from_environment` reads the environment.
    """

    model_config = pydantic_settings.SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    #: SQLite file, blobs and scratch files live here unless another setting says otherwise.
    data_dir: pathlib.Path = pathlib.Path("felix-data")
    #: SQLAlchemy URL; None: an SQLite file in `data_dir`.
    database_url: str | None = None
    #: A folder, `file:///...` or `s3://bucket/prefix`; None: a folder in `data_dir`.
    blob_url: str | None = None
    #: Endpoint of an S3-compatible store; None: Amazon's.
    s3_endpoint: str | None = None
    host: str = "127.0.0.1"
    port: _Integer = 8000
    #: Where users reach the service, for cookies and links; None: http on host and port.
    public_url: str | None = None
    #: Open connections, and those of one address. What comes from a proxy counts as one address
    #: unless `trusted_proxies` has it.
    max_connections: _Integer = 800
    max_connections_per_address: _Integer = 200
    #: Addresses or networks of proxies, with commas, whose X-Forwarded-For and -Proto count.
    trusted_proxies: _Networks = ()
    #: How long a tuner that stops renewing keeps its job.
    lease_s: _Seconds = 30.0
    #: Between two renewals.
    beat_s: _Seconds = 2.0
    #: Between two claims, and between two searches for expired leases.
    poll_s: _Seconds = 1.0
    reap_s: _Seconds = 5.0
    #: Claims of a job without a new trial before it counts as failed.
    max_attempts: _Integer = 5
    #: How long a job keeps its tuner while another key's job, which had less of it, waits.
    slice_s: _Seconds = 15.0
    #: How long a tuner may take to put its job down when it has to, before it is killed.
    stop_s: _Seconds = 2.0
    #: Limits of making one task's formulas, and of any other step of a job.
    task_open_s: _Seconds = 60.0
    step_s: _Seconds = 120.0
    #: Memory of the process that tunes a job.
    engine_bytes: _Integer = 8 << 30
    #: How old a response about a job may be that several clients share. Deployments may still set
    #: it by its earlier name, `FELIX_LOOK_S`.
    cache_ttl_s: _Seconds = pydantic.Field(
        default=0.5, validation_alias=pydantic.AliasChoices("FELIX_CACHE_TTL_S", "FELIX_LOOK_S")
    )
    #: Limits of reading one uploaded program.
    parse_s: _Seconds = 60.0
    parse_bytes: _Integer = 8 << 30
    #: Largest body of a request, whatever the key allows.
    max_upload_bytes: _Integer = 256 << 20
    #: Quotas of a key that sets none.
    max_running_jobs: _Integer = 20
    max_trials: _Integer = 20_000
    #: Days that files of ended jobs stay in projects that do not say; None: for ever.
    retention_days: _Integer | None = None
    #: Between two searches for files that are kept no longer.
    clean_s: _Seconds = 600.0
    #: Webhooks may have http addresses, and machines that are not public.
    webhook_allow_private: bool = False
    #: Between two searches for notifications that are due.
    webhook_poll_s: _Seconds = 1.0
    #: Refuse to start where the system cannot confine the processes that clients' programs reach.
    require_confinement: bool = False
    #: Whether engines and run workers are confined on machines with an NVIDIA GPU.
    confine_gpu: policy.ConfineGpu = policy.ConfineGpu.AUTO
    #: Head of a Ray cluster, HOST:PORT, whose nodes measure the tuner's jobs; None: its machine.
    cluster: Annotated[str, pydantic.Field(pattern=r"^[\w.\-\[\]:]+:\d+$")] | None = None
    #: Nodes of the cluster measure only with a key that has the scope worker for their devices.
    require_worker_keys: bool = False
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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.public_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def gpu_confinement(self) -> policy.ConfineGpu:
        """What holds beside a GPU: `confine_gpu`, unless all confinement is required."""
        return policy.ConfineGpu.ON if self.require_confinement else self.confine_gpu

    @property
    def stale_s(self) -> float:
        """A tuner without a heartbeat for so long counts as gone; its job's lease is over."""
        return self.lease_s

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Settings of this process; an empty variable counts as absent.

        Args:
            environment: None: `os.environ`.

        Raises:
            SettingsError: a value is no number, no size, or out of range.
        """
        source = sources.EnvSettingsSource(cls)
        source.env_vars = sources.utils.parse_env_vars(
            os.environ if environment is None else environment, ignore_empty=True
        )
        try:
            return cls(**source())
        except pydantic.ValidationError as error:
            raise errors.SettingsError(_message(error)) from None

    @classmethod
    def settings_customise_sources(
        cls, *_: Any, **named: Any
    ) -> tuple[pydantic_settings.PydanticBaseSettingsSource, ...]:
        """Only the arguments: see `from_environment`."""
        return (named["init_settings"],)


def _message(error: pydantic.ValidationError) -> str:
    """The first variable that makes no sense, its value and what it must be."""
    first: Any = error.errors()[0]
    name = str(first["loc"][0]).upper().removeprefix(_PREFIX)
    return f"{_PREFIX}{name} is {first['input']!r}: {first['msg'].lower()}"
