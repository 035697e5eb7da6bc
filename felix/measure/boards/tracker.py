"""What TVM's RPC tracker knows: which servers there are, and under which keys."""

from __future__ import annotations

import dataclasses
import re
import socket
import struct
from typing import Any

from tvm.rpc import base

from felix import errors

#: Seconds to reach a tracker, and for its reply.
_ANSWER_S = 5.0
#: TVM's protocol separates what follows a key by blanks, and its kind by a colon.
_KEY = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Tracker:
    """The address of a tracker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Tracker:
        """Read "HOST:PORT"; raises `MeasureError` if it is none."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise errors.MeasureError(f"a tracker is HOST:PORT, got {text[:100]!r}")
        return cls(host.strip("[]"), int(port))

    def keys(self) -> list[str]:
        """The key of each server that is there, free or not.

        Raises:
            MeasureError: the tracker cannot be reached, or is none.
        """
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
                magic = struct.pack("<i", base.RPC_TRACKER_MAGIC)
                connection.sendall(magic)
                if base.recvall(connection, len(magic)) != magic:
                    raise ValueError
                base.sendjson(connection, [base.TrackerCode.SUMMARY])
                return _keys(base.recvjson(connection))
        except OSError as error:
            raise errors.MeasureError(
                f"the tracker at {self} does not answer ({error}): start it by "
                f"python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {self.port}"
            ) from error
        except (ValueError, KeyError, TypeError, IndexError, struct.error):
            raise errors.MeasureError(f"what answers at {self} is no tracker of TVM") from None


def check_key(key: str) -> str:
    """A key that boards may have; raises `MeasureError` for others."""
    if not _KEY.fullmatch(key):
        raise errors.MeasureError(
            f"a board's key has letters, digits, '.', '_' and '-', at most 64, got {key[:80]!r}"
        )
    return key


def _keys(reply: Any) -> list[str]:
    if reply[0] != base.TrackerCode.SUCCESS:
        raise ValueError
    return [str(server["key"]).removeprefix("server:") for server in reply[1]["server_info"]]
