"""`--cluster HOST:PORT`: candidates are measured by the workers of a cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from felix import errors
from felix.measure.cluster import tls

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
    from felix.measure.cluster import pool as cluster_pool
    from felix.measure.cluster import ray_cluster

    cluster = ray_cluster.connect(address)
    return lambda task: cluster_pool.ClusterPool(task, cluster)


def require(address: str) -> None:
    """See early that Ray is installed, and that we and the cluster's head agree about TLS.

    Raises:
        MeasureError
    """
    if importlib.util.find_spec("ray") is None:
        raise errors.MeasureError(
            "a cluster needs Ray: pip install 'felix-tuner[cluster]', the same version everywhere"
        )
    tls.check(address)
