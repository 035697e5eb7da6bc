"""Pools over simulated devices: who is busy, what runs, how many rounds are on their way."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import pathlib
import threading
from typing import Any

import pytest

import felix
from benchmarks import cluster_scaling, multi_gpu
from benchmarks.support.searches import baselines
from benchmarks.support.simulated import nodes, throughput
from felix import events, target, workloads
from felix.builder import payload
from felix.measure.cluster import pool
from felix.tuning import options

ON = target.parse(nodes.TARGET)
GEMM = workloads.gemm(64, 64, 64, target=nodes.TARGET)
#: Candidates take a time, which a test's own `sleep` makes of it.
TIMED = nodes.Times(run_s=1.0)


def _digests(first: int, count: int) -> list[str]:
    texts = [payload.of(each, ON) for each in throughput.programs(first, count)]
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


class Meeting:
    """A `sleep` that returns once so many devices run a candidate; calibrations do not count."""

    def __init__(self, n_devices: int) -> None:
        self._barrier = threading.Barrier(n_devices)
        self._calls: collections.Counter[int] = collections.Counter()
        self.is_on = False

    def __call__(self, seconds: float) -> None:
        thread = threading.get_ident()
        self._calls[thread] += 1
        if self.is_on and self._calls[thread] == 2:  # the first compared devices
            self._barrier.wait(30)


@pytest.mark.parametrize("n_devices", [1, 2, 4])
def test_all_devices_run_at_the_same_time_and_every_candidate_once(n_devices: int) -> None:
    sleep = Meeting(n_devices)
    cluster = nodes.Cluster(n_devices, 2, TIMED, sleep)
    with pool.ClusterPool(GEMM, cluster, nodes.OPTIONS) as over:
        assert over.measure(throughput.programs(0, 1))[0].ok
        sleep.is_on = True
        measured = over.measure(throughput.programs(1, 6 * n_devices))
        assert over.n_devices == n_devices
    expected = [nodes.latency_us(digest) for digest in _digests(1, 6 * n_devices)]
    assert [each.latency_us for each in measured] == pytest.approx(expected)
    assert cluster.most_busy == n_devices
    (compared,) = _digests(0, 1)
    again = collections.Counter({compared: n_devices})
    times = collections.Counter(_digests(1, 6 * n_devices)) + again
    assert collections.Counter(cluster.ran) == times


@pytest.mark.parametrize("n_devices", [1, 2, 3])  # the allocator waits after 3 without result
def test_one_round_less_than_devices_is_on_its_way_when_the_next_begins(n_devices: int) -> None:
    may_run = threading.Event()
    cluster = nodes.Cluster(n_devices, 4, TIMED, lambda seconds: _held(may_run))
    begun: list[tuple[int, int]] = []
    n_trials = 0

    def listen(event: events.Event) -> None:
        nonlocal n_trials
        n_trials += isinstance(event, events.Trial)
        if isinstance(event, events.RoundStarted):
            begun.append((event.n_candidates, n_trials))
            if len(begun) == n_devices:
                may_run.set()

    chosen = options.TuneOptions(
        pool=lambda task: pool.ClusterPool(task, cluster, nodes.OPTIONS),
        round_size=4,
        first_round_size=4,
        n_remeasured=0,
        baseline=False,
        make_search=baselines.RandomSearch,
        learn=False,
    )
    felix.tune(GEMM, trials=24, options=chosen, on_event=listen)
    assert n_trials == 24 and len(begun) == 6
    assert [n for n, _ in begun] == [4] * 6
    on_the_way = [4 * number - done for number, (_, done) in enumerate(begun)]
    assert on_the_way[:n_devices] == [4 * number for number in range(n_devices)]
    assert max(on_the_way) <= (n_devices - 1 + 0.5) * 4


def _held(may_run: threading.Event) -> None:
    assert may_run.wait(60), "the next round waits for this one"


def test_throughput_counts_what_it_offers() -> None:
    row = throughput.measure(2, nodes.Times(build_s=0.001, run_s=0.005), 8)
    assert (row["candidates"], row["busy"]) == (16, 2)
    assert row["rate"] == pytest.approx(16 / row["seconds"])


# ------------------------------------------------------------ what is made of the numbers

DATA: dict[str, Any] = {
    "costs": dict(tuner_ms=50.0, search_ms=30.0, schedule_ms=5.0, build_ms=400.0, device_ms=4.0),
    "throughput": [{"devices": 64, "rate": 500.0}],
    "stores": [{"store": "sqlite", "rate": 1.0}, {"store": "postgresql", "rate": 100.0}],
}


def test_the_least_capacity_bounds() -> None:
    one = cluster_scaling.capacities(DATA, 1, 1)
    assert list(one.values()) == [250.0, 40.0, 20.0, 500.0, 100.0]
    assert cluster_scaling.bound(one) == "search"
    assert cluster_scaling.bound(cluster_scaling.capacities(DATA, 1, 3)).startswith("builders")
    assert cluster_scaling.bound(cluster_scaling.capacities(DATA, 8, 8)).startswith("store")
    n_rows = cluster_scaling._capacity_table(DATA).count("\n| ")
    assert n_rows == 2 * len(cluster_scaling.GPUS)


def test_costs_are_those_of_searches_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    breakdown = {
        "total_s": 10.0,
        "build_wait_s": 3.0,
        "measure_s": 1.0,
        "search_s": 4.0,
        "schedule_s": 1.0,
        "build_work_s": 50.0,
        "run_work_s": 0.5,
    }
    runs = [
        {"strategy": "felix", "n_measured": 100, "breakdown": breakdown},
        {"strategy": "random", "n_measured": 1, "breakdown": breakdown},
    ]
    path = tmp_path / "searches.json"
    path.write_text(json.dumps({"runs": runs}))
    monkeypatch.setattr(cluster_scaling, "SEARCHES", path)
    assert cluster_scaling.costs() == pytest.approx(
        {"tuner_ms": 60, "search_ms": 40, "schedule_ms": 10, "build_ms": 500, "device_ms": 5}
    )


def test_throughput_is_compared_with_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(n: int, times: nodes.Times, n_each: int) -> dict[str, Any]:
        return {"rate": 25.0 if n == 1 else 20.0 * n, "cpu_ms": 1.0, "busy": n}

    monkeypatch.setattr(throughput, "measure", measured)
    rows = cluster_scaling._throughput(2, quick=True)
    assert [row["devices"] for row in rows] == list(cluster_scaling.DEVICES)
    assert rows[0]["linear"] == 1.0
    assert [row["linear"] for row in rows[1:]] == pytest.approx([0.8] * (len(rows) - 1))


def test_the_speed_up_is_of_medians_over_turns() -> None:
    def run(devices: int, seconds: float, **place: Any) -> dict[str, Any]:
        figures = {"seconds": seconds, "rate": 100 / seconds, "cpu_ms": 1.0}
        ms = dict.fromkeys(multi_gpu.PARTS, 200.0)
        chosen = dataclasses.asdict(multi_gpu.Place(devices, **place))
        return chosen | figures | {"ms": ms, "best_us": [4.0, 9.0, None]}

    turns = ((1, 10), (1, 30), (1, 20), (2, 8), (2, 10), (2, 50))
    runs = [*(run(*turn) for turn in turns), run(2, 40, cluster=True)]
    runs += [run(1, 50, search_processes=0), run(2, 40, search_processes=0)]
    lost = run(2, 16, loses_after_s=5)
    one, two, over_ray, _, without, loses = multi_gpu.summary([*runs, lost])
    assert loses["speed_up"] == 1.25  # of one device with as many processes
    assert multi_gpu.summary([*runs[-2:], lost])[-1]["speed_up"] == 3.125  # of one device
    assert over_ray["cluster"] and over_ray["speed_up"] == 0.5
    assert (one["speed_up"], two["speed_up"], two["turns"]) == (1.0, 2.0, 3)
    assert without["speed_up"] == 1.25  # of the job without processes on one device
    assert two["latency_us"] == pytest.approx(6.0)
    job = {"device": "G", "workloads": ["a", "b"], "builders": 4}
    text = multi_gpu.render(job | {"summary": [one, two]}, job | {"summary": [without, over_ray]})
    assert len(text.splitlines()) == 2 + 4 and "| 2, over Ray " in text
    assert "| 2, 0 search processes |" in text
    busy = text.splitlines()[3].split("|")[-3:-1]
    assert [float(each) for each in busy] == [0.5, 1.0]  # 10 a second, 200 ms to build and to run
