"""Fifty clients that watch one job, in a process that imports nothing heavy.

Started by `service_polling` before the job: what Python needs to start is none of the clients'
cost. It says `ready`, reads a line of JSON (port, headers, job, clients, seconds between two
requests), watches until the job has ended and prints a line with `requests` and `clients_cpu_s`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any


def main() -> None:
    """Watch the job that standard input names."""
    print("ready", flush=True)
    request = json.loads(sys.stdin.readline())
    began_s = time.process_time()
    requests = sum(asyncio.run(_watch_all(request)))
    print(json.dumps({"requests": requests, "clients_cpu_s": time.process_time() - began_s}))


async def _watch_all(request: dict[str, Any]) -> Sequence[int]:
    apart_s = request["every_s"] / request["clients"]
    return await asyncio.gather(*(_watch(request, n * apart_s) for n in range(request["clients"])))


async def _watch(request: dict[str, Any], offset_s: float) -> int:
    """One client; how many requests it made."""
    await asyncio.sleep(offset_s)
    job = f"/v1/jobs/{request['job_id']}"
    headers = "".join(f"{name}: {value}\r\n" for name, value in request["headers"].items())
    reader, writer = await asyncio.open_connection("127.0.0.1", request["port"])
    n_requests, seq, is_over = 0, 0, False

    async def get(path: str) -> Any:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: felix\r\n{headers}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(head.decode())
        _, _, length = head.lower().partition(b"content-length:")
        return json.loads(await reader.readexactly(int(length.partition(b"\r\n")[0])))

    while not is_over:
        is_over = (await get(job))["finished_at"] is not None
        seq = (await get(f"{job}/events?after_seq={seq}"))["last_seq"]
        n_requests += 2
        await asyncio.sleep(0 if is_over else request["every_s"])
    writer.close()
    return n_requests


if __name__ == "__main__":
    main()
