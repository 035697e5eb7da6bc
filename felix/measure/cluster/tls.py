"""TLS between the machines of a cluster, and the key that they have of a service.

Ray itself tries again for minutes where one side uses TLS and the other one does not, so both are
looked at before it begins.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import os
import pathlib
import socket
import ssl
from collections.abc import Mapping, MutableMapping
from typing import Self

from felix import errors

SWITCH = "RAY_USE_TLS"
#: Seconds that a head may take to say what it speaks.
_ANSWER_S = 5.0
_GUIDE = "docs/guide/cluster.md#tls says how to make them"


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """Files of this machine: its certificate and key, and the certificate of the CA."""

    certificate: str
    key: str
    ca: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """The files that Ray's variables name; None: Ray uses no TLS.

        Raises:
            MeasureError: it does, and a variable or its file is missing.
        """
        if environment.get(SWITCH, "").lower() not in ("1", "true"):
            return None
        names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
        paths = [environment.get(name, "") for name in names]
        faults = [
            f"{name} {f'names {path}, which cannot be read' if path else 'is not set'}"
            for name, path in zip(names, paths, strict=True)
            if not (path and pathlib.Path(path).is_file() and os.access(path, os.R_OK))
        ]
        if faults:
            raise errors.MeasureError(
                f"{SWITCH} asks for TLS, but {' and '.join(faults)}: set {', '.join(names)} to "
                f"the files of this machine ({_GUIDE}), or unset {SWITCH}"
            )
        return cls(*paths)


def check(address: str) -> None:
    """See that this process and a cluster's head agree about TLS; nobody there is no fault.

    Args:
        address: of the head, "HOST:PORT".

    Raises:
        MeasureError: only one of them uses TLS, or does not accept the other one's certificate.
    """
    ours = Certificates.of(os.environ)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = _context(ours, host)
    try:
        connection = socket.create_connection((host, int(port)), _ANSWER_S)
    except (OSError, ValueError):
        return  # Ray says what is wrong with an address
    with connection:
        fault = _fault(connection, context, host, ours)
    if fault is not None:
        raise errors.MeasureError(f"the head of the cluster at {address} {fault} ({_GUIDE})")


def _context(ours: Certificates | None, host: str) -> ssl.SSLContext:
    """How the head is talked to; without certificates only to see whether it uses TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])  # gRPC's
    context.check_hostname = ours is not None and not _is_loopback(host)  # Ray replaces those
    if ours is None:
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(ours.ca)
    except ssl.SSLError:
        raise errors.MeasureError(f"{ours.ca} holds no certificate of a CA ({_GUIDE})") from None
    try:
        context.load_cert_chain(ours.certificate, ours.key)
    except ssl.SSLError as error:
        raise errors.MeasureError(
            f"{ours.key} is not the key of the certificate {ours.certificate}: "
            f"{error.reason or error} ({_GUIDE})"
        ) from None
    return context


def _fault(
    connection: socket.socket, context: ssl.SSLContext, host: str, ours: Certificates | None
) -> str | None:
    """What is wrong between us and a head that listens; None: nothing, or it is too busy."""
    try:
        speaking = context.wrap_socket(connection, server_hostname=host)
    except TimeoutError:
        return None
    except ssl.SSLCertVerificationError as error:
        said = error.verify_message.rstrip(".")
        return f"has a certificate that is not of our CA or not for this address: {said}"
    except OSError:
        if ours is None:
            return None
        return f"uses no TLS: start it with {SWITCH}=1 and certificates, or unset {SWITCH} here"
    with speaking:
        if ours is None:
            return (
                f"uses TLS and this process does not: set {SWITCH}=1, RAY_TLS_SERVER_CERT, "
                "RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT"
            )
        if _is_accepted(speaking):
            return None
        return f"does not accept {ours.certificate}, which has to be of its CA"


def _is_accepted(speaking: ssl.SSLSocket) -> bool:
    """Whether the head says something; where it refuses our certificate, it ends."""
    try:
        return speaking.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# The key of a service that a machine of a cluster has, of which its nodes state a digest.

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
