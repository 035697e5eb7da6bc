"""Numbers for Prometheus: requests of this process, jobs and tuners of the database."""

from __future__ import annotations

from collections.abc import Iterator

import prometheus_client as prometheus
from prometheus_client import core, registry

from server.database import database, visibility
from server.store import job_lists
from server.store import tuners as store_tuners

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics of one application."""

    def __init__(self, db: database.Database, stale_s: float) -> None:
        self._db, self._stale_s = db, stale_s
        self._registry = prometheus.CollectorRegistry()
        self._requests = prometheus.Counter(
            "felix_http_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = prometheus.Histogram(
            "felix_http_request_seconds",
            "Time to answer, streams until they end",
            ("method", "route"),
            registry=self._registry,
            buckets=_BUCKETS_S,
        )

    def note(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count a request; `route` is a template, so there are few of them."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(duration_s)

    def text(self, sees: visibility.Visibility) -> bytes:
        """Everything, in Prometheus' text format; of jobs those that are visible."""
        store = prometheus.CollectorRegistry()
        store.register(_Store(self._db, self._stale_s, sees))
        return prometheus.generate_latest(self._registry) + prometheus.generate_latest(store)


class _Store(registry.Collector):
    """Reads the store when Prometheus scrapes."""

    def __init__(self, db: database.Database, stale_s: float, sees: visibility.Visibility) -> None:
        self._db, self._stale_s, self._sees = db, stale_s, sees

    def describe(self) -> list[core.Metric]:
        """Nothing in advance: registering reads no database."""
        return []

    def collect(self) -> Iterator[core.Metric]:
        """Jobs by state; tuners alive, and what they measured."""
        with self._db.read(self._sees) as tx:
            counts = job_lists.counts(tx)
            tuners = store_tuners.every(tx, self._stale_s)
        by_state = core.GaugeMetricFamily("felix_jobs", "Jobs by state", labels=["state"])
        for state, count in counts.items():
            by_state.add_metric([str(state)], count)
        yield by_state
        alive = sum(tuner.is_alive for tuner in tuners)
        yield core.GaugeMetricFamily("felix_tuners_alive", "Tuners that beat lately", value=alive)
        yield core.CounterMetricFamily(
            "felix_trials",
            "Trials that the listed tuners measured",
            value=sum(tuner.n_trials for tuner in tuners),
        )
        yield core.CounterMetricFamily(
            "felix_infrastructure_failures",
            "Trials that failed for the machine's sake",
            value=sum(tuner.n_infrastructure for tuner in tuners),
        )
