"""Keys, logins, and what was done with them."""

from __future__ import annotations

from typing import Any

import pydantic

from server.web.response_bodies import common


class Key(common.ResponseBody):
    """An API key; its secret is shown once, when it is made."""

    id: int
    project: str = pydantic.Field(description="whose jobs it sees")
    name: str
    public: str = pydantic.Field(description="the part that is no secret")
    can_read: bool
    can_submit: bool
    can_admin: bool
    can_priority: bool
    can_worker: bool
    device_kinds: list[str] = pydantic.Field(description="that a worker with it measures on")
    max_running_jobs: int | None
    max_trials: int | None
    max_upload_bytes: int | None
    created_at: common.Time
    last_used_at: common.Time | None
    expires_at: common.Time | None
    revoked_at: common.Time | None


class MadeKey(common.ResponseBody):
    """A new key, with the text to keep."""

    key: Key
    text: str = pydantic.Field(description="shown only now", examples=["felix_0a1b2c3d4e5f_..."])


class Quota(common.ResponseBody):
    """What a key may have."""

    max_running_jobs: int
    max_trials: int
    max_upload_bytes: int


class Me(common.ResponseBody):
    """The key behind the request."""

    key: Key
    quota: Quota
    csrf_token: str | None = pydantic.Field(description="of the login, if a cookie was sent")


class Login(common.ResponseBody):
    """A dashboard login; the cookie comes in a header."""

    csrf_token: str
    expires_at: common.Time


class Audit(common.ResponseBody):
    """What a key did."""

    id: int
    at: common.Time
    project: str
    key_id: int | None
    key_name: str
    action: str
    subject: str
    detail: dict[str, Any]
    remote: str
