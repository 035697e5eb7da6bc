"""Waiting for events: one query for all streams that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from server import cache


def test_waiting_streams_share_a_query() -> None:
    newest = {1: 5, 2: 3}
    queried: list[set[int]] = []

    def last_seqs(job_ids: Collection[int]) -> Mapping[int, int]:
        queried.append(set(job_ids))
        return newest

    async def play() -> None:
        made = cache.Notifier(last_seqs, every_s=0.01)
        running = asyncio.create_task(made.run())
        waiting = [asyncio.create_task(made.newer(1, 5, 5.0)) for _ in range(20)]
        waiting.append(asyncio.create_task(made.newer(2, 2, 5.0)))
        assert await waiting[-1]
        assert await made.newer(9, 0, 5.0)  # a job that is gone is news
        assert not any(task.done() for task in waiting[:-1])
        newest[1] = 6
        assert all(await asyncio.gather(*waiting))
        assert all(job_ids <= {1, 2, 9} for job_ids in queried)
        n_queries = len(queried)
        await asyncio.sleep(0.05)
        assert len(queried) == n_queries  # nobody waits: no query
        assert not await made.newer(1, 6, 0.03)  # the time is over
        last = asyncio.create_task(made.newer(1, 6, 5.0))
        await asyncio.sleep(0)
        made.close()
        assert not await last and made.is_closed
        running.cancel()

    asyncio.run(play())
