"""Server-Sent Events: parsed, and followed over lost connections."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator

import httpx

from felix import errors
from felix.client import _http, _rows

#: A service that does not respond for so long is given up.
PATIENCE_S = 120.0
RETRY_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream."""

    event: str
    data: str
    id: str | None


def parse(lines: Iterable[str]) -> Iterator[Message]:
    """The messages of a stream's lines; comments and messages without data are left out."""
    event, last_id = "message", None
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield Message(event, "\n".join(data), last_id)
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            last_id = value


def follow(http: _http.Http, job_id: int, after_seq: int) -> Iterator[_rows.Event]:
    """Events of a job as they come, until it has ended; connections that break are renewed.

    Raises:
        RemoteError: the service refused, or was out of reach for too long.
    """
    path, seq, last_message_s = f"/v1/jobs/{job_id}/events/stream", after_seq, time.monotonic()
    while True:
        try:
            with http.stream(path, after_seq=seq) as response:
                for message in parse(response.iter_lines()):
                    last_message_s = time.monotonic()
                    if message.event == "end":
                        return
                    event = _rows.of(_rows.Event, json.loads(message.data))
                    seq = event.seq
                    yield event
        except httpx.TransportError as error:
            if time.monotonic() - last_message_s > PATIENCE_S:
                raise http.unreachable(error) from error
        except errors.RemoteError as error:
            if error.status != 503 or time.monotonic() - last_message_s > PATIENCE_S:
                raise
        http.sleep(RETRY_S)
