"""API keys, dashboard logins, audit.

A key reads `felix_PUBLIC_SECRET`: the public part finds the row, the secret's sha256 is
compared in constant time. The secret has 256 random bits, so a plain hash cannot be searched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import columns, models
from server.store import projects, rows, statements

PREFIX = "felix"
_KIND = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")

#: A key's last use is recorded at most this often, in seconds: reading must not mean writing.
USE_NOTED_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """What a key may do; quotas of None are the service's."""

    name: str
    project: str = projects.DEFAULT
    can_read: bool = True
    can_submit: bool = False
    can_admin: bool = False
    can_priority: bool = False
    can_worker: bool = False
    #: of what a worker may measure on, like "nvidia-h200" or "znver4"
    device_kinds: Sequence[str] = ()
    max_running_jobs: int | None = None
    max_trials: int | None = None
    max_upload_bytes: int | None = None
    #: seconds from now; None: never
    expires_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key; `text` is shown once and stored nowhere."""

    key: rows.Key
    text: str = dataclasses.field(repr=False)


def create(tx: orm.Session, new: NewKey) -> CreatedKey:
    """Make a key.

    Raises:
        NotFound: there is no such project.
        InvalidRequest: a worker's key without kinds of devices, or kinds without a worker.
    """
    projects.get(tx, new.project)
    _check_kinds(new)
    public, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    fields = dataclasses.asdict(new)
    expires_s = fields.pop("expires_s")
    fields["device_kinds"] = sorted(set(new.device_kinds))
    row = models.Key(
        public=public,
        secret_sha256=_hash(secret),
        created_at=columns.db_now(),
        expires_at=None if expires_s is None else columns.db_now(expires_s),
        **fields,
    )
    return CreatedKey(rows.Key.of(statements.add(tx, row)), f"{PREFIX}_{public}_{secret}")


def find(tx: orm.Session, text: str) -> rows.Key:
    """The key that is presented.

    Raises:
        Unauthenticated: there is no such key, or it is revoked or expired.
    """
    prefix, _, rest = text.partition("_")
    public, _, secret = rest.partition("_")
    query = sa.select(models.Key).where(models.Key.public == public, *_is_valid())
    row = tx.scalar(query) if prefix == PREFIX and secret else None
    secret_sha256 = "" if row is None else row.secret_sha256
    if not hmac.compare_digest(_hash(secret), secret_sha256) or row is None:
        raise errors.Unauthenticated()
    return rows.Key.of(row)


def note_use(tx: orm.Session, key_id: int) -> None:
    """Record that a key was used, if that was not recorded lately."""
    key = models.Key
    lately = columns.db_now(-USE_NOTED_S)
    is_old = sa.or_(key.last_used_at.is_(None), key.last_used_at < lately)
    statements.update(tx, key, key.id == key_id, is_old, last_used_at=columns.db_now())


def every(tx: orm.Session) -> list[rows.Key]:
    """All keys, oldest first."""
    return [rows.Key.of(row) for row in tx.scalars(sa.select(models.Key).order_by(models.Key.id))]


def names(tx: orm.Session, key_ids: Iterable[int | None]) -> dict[int, str]:
    """The names of keys, by number."""
    ids = {key_id for key_id in key_ids if key_id is not None}
    return statements.by_number(tx, models.Key.id, models.Key.name, ids)


def get(tx: orm.Session, key_id: int) -> rows.Key:
    """One key.

    Raises:
        NotFound
    """
    return rows.Key.of(statements.get(tx, models.Key, key_id, f"there is no key {key_id}"))


def revoke(tx: orm.Session, key_id: int) -> rows.Key:
    """End a key and its logins; it stays listed.

    Raises:
        NotFound
    """
    get(tx, key_id)
    where = (models.Key.id == key_id, models.Key.revoked_at.is_(None))
    statements.update(tx, models.Key, *where, revoked_at=columns.db_now())
    tx.execute(sa.delete(models.Login).where(models.Login.key_id == key_id))
    return get(tx, key_id)


def log_in(tx: orm.Session, key_id: int, valid_s: float) -> tuple[str, rows.Login]:
    """Begin a dashboard login: the cookie's value, stored nowhere, and the row."""
    tx.execute(sa.delete(models.Login).where(models.Login.expires_at < columns.db_now()))
    token = secrets.token_urlsafe(32)
    row = models.Login(
        token_sha256=_hash(token),
        key_id=key_id,
        csrf=secrets.token_urlsafe(32),
        created_at=columns.db_now(),
        expires_at=columns.db_now(valid_s),
    )
    return token, rows.Login.of(statements.add(tx, row))


def login(tx: orm.Session, token: str) -> tuple[rows.Login, rows.Key]:
    """The login of a cookie, and its key.

    Raises:
        Unauthenticated: it is unknown or expired, or its key is.
    """
    login_and_key = tx.execute(
        sa.select(models.Login, models.Key)
        .join(models.Key, models.Key.id == models.Login.key_id)
        .where(
            models.Login.token_sha256 == _hash(token),
            models.Login.expires_at > columns.db_now(),
            *_is_valid(),
        )
    ).one_or_none()
    if login_and_key is None:
        raise errors.Unauthenticated()
    return rows.Login.of(login_and_key[0]), rows.Key.of(login_and_key[1])


def log_out(tx: orm.Session, token: str) -> None:
    """End a login."""
    tx.execute(sa.delete(models.Login).where(models.Login.token_sha256 == _hash(token)))


def audit(
    tx: orm.Session,
    key: rows.Key | None,
    action: str,
    subject: str,
    detail: Mapping[str, Any] | None = None,
    remote: str = "",
) -> None:
    """Record what a key did, in the transaction that does it."""
    tx.add(
        models.Audit(
            at=columns.db_now(),
            project=projects.DEFAULT if key is None else key.project,
            key_id=None if key is None else key.id,
            key_name="" if key is None else key.name,
            action=action,
            subject=subject,
            detail=dict(detail or {}),
            remote=remote,
        )
    )


def audited(
    tx: orm.Session, limit: int = 100, before: int | None = None, key_id: int | None = None
) -> list[rows.Audit]:
    """Audit entries, newest first; `before` is the last number of the page before."""
    row = models.Audit
    query = sa.select(row)
    if before is not None:
        query = query.where(row.id < before)
    if key_id is not None:
        query = query.where(row.key_id == key_id)
    entries = tx.scalars(query.order_by(row.id.desc()).limit(limit))
    return [rows.Audit.of(entry) for entry in entries]


def _check_kinds(new: NewKey) -> None:
    if new.can_worker and not new.device_kinds:
        raise errors.InvalidRequest(
            "a key with the scope worker is for certain devices: name their kinds, as `felix "
            "worker` says them (--device-kind h200)"
        )
    if new.device_kinds and not new.can_worker:
        raise errors.InvalidRequest(
            "kinds of devices are for keys with the scope worker: add it (--scope worker), or "
            "leave the kinds out"
        )
    for kind in new.device_kinds:
        if not _KIND.fullmatch(kind):
            raise errors.InvalidRequest(
                f"{kind!r} is no kind of device: write it as `felix worker` says it, "
                "in small letters, digits, dots and dashes (h200, znver4)"
            )


def _is_valid() -> tuple[sa.ColumnElement[bool], ...]:
    """Selects keys that are neither revoked nor expired."""
    key = models.Key
    not_expired = sa.or_(key.expires_at.is_(None), key.expires_at > columns.db_now())
    return key.revoked_at.is_(None), not_expired


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
