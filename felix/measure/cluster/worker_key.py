"""The key of a service that a machine of a cluster has, of which its nodes state a digest."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping

from felix import errors

VARIABLE = "FELIX_WORKER_KEY"


def take(environment: MutableMapping[str, str]) -> str:
    """Take the key out of an environment, so that no child inherits it; its digest.

    Returns:
        The digest, empty without a key.

    Raises:
        MeasureError: it is no key.
    """
    text = environment.pop(VARIABLE, "").strip()
    return digest(text) if text else ""


def digest(text: str) -> str:
    """What the service stores of a key `felix_PUBLIC_SECRET`: the SHA-256 of its secret, in hex.

    Raises:
        MeasureError: it is no key.
    """
    prefix, _, rest = text.partition("_")
    _, _, secret = rest.partition("_")
    if prefix != "felix" or not secret:
        raise errors.MeasureError(
            f"{VARIABLE} is no key of a service: set it to what `felix keys create NAME --scope "
            "worker --device-kind KIND` prints, felix_..., or unset it"
        )
    return hashlib.sha256(secret.encode()).hexdigest()
