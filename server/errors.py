"""Errors of the service: a branch of the one tree of `felix.errors`.

Each class says what kind of response a client gets; `status` is its HTTP status.
"""

from __future__ import annotations

from felix import errors


class ServiceError(errors.FelixError):
    """The service could not do what the request is for."""

    status = 500


class InvalidRequest(ServiceError):
    """The request is malformed: the message says which part."""

    status = 422


class NotFound(ServiceError):
    """There is no such thing: it was never made, or it is gone."""

    status = 404


class Conflict(ServiceError):
    """The state of the thing does not allow this now."""

    status = 409


class IllegalMove(Conflict):
    """The job's state does not allow this."""


class LeaseLost(Conflict):
    """The lease on the job is gone: another tuner may have it. Drop the results and stop."""


class Cancelled(Conflict):
    """The job is to be cancelled: nobody needs its results."""


class QuotaExceeded(ServiceError):
    """The key's quota is used up: wait for running jobs to end or ask for a larger one."""

    status = 429


class StorageFull(ServiceError):
    """The project's files take all the space it may have: delete jobs or ask for more."""

    status = 507


class TooLarge(ServiceError):
    """The upload is larger than the key allows."""

    status = 413


class Unauthenticated(ServiceError):
    """A valid API key is needed."""

    status = 401


class Forbidden(ServiceError):
    """The API key's scopes do not allow this."""

    status = 403


class SchemaMismatch(ServiceError):
    """The database has another schema than this version: run `felix db upgrade`."""

    status = 503


class SettingsError(ServiceError):
    """An environment variable has a value that makes no sense."""


class BlobError(ServiceError):
    """The blob store cannot be read or written."""

    status = 503


class DiskUnusable(ServiceError):
    """A disk that the service writes to is full, or cannot be written."""

    status = 503
