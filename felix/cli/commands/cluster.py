"""`--cluster HOST:PORT`: candidates are measured by the workers of a cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from felix import errors

if TYPE_CHECKING:
    from felix.task import Task
    from felix.tuning import options


def pool(address: str | None) -> Callable[[Task], options.Pool] | None:
    """Makes the pool of a run from its first task; None: this machine measures.

    Raises:
        MeasureError: the cluster cannot be reached.
    """
    if address is None:
        return None
    require_ray()
    from felix.measure.cluster import pool as cluster_pool
    from felix.measure.cluster import ray_cluster

    cluster = ray_cluster.connect(address)
    return lambda task: cluster_pool.ClusterPool(task, cluster)


def require_ray() -> None:
    """Raise `MeasureError` if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise errors.MeasureError(
            "a cluster needs Ray: pip install 'felix-tuner[cluster]', the same version everywhere"
        )
