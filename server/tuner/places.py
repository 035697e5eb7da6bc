"""Where an engine measures: on this machine, or on a cluster through its link."""

from __future__ import annotations

import abc
import functools
import json
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ClassVar

from felix import errors, target
from felix.measure import local, staged, work
from felix.measure.cluster import pool as cluster_pool
from felix.processes import policy
from felix.task import Task
from server.parsing import devices
from server.tuner import warm_pools
from server.tuner.cluster import calls, relayed

#: How long a pool waits for nodes that were there a moment ago, in seconds.
WAIT_S = 15.0


class Places(abc.ABC):
    """The devices of an engine, and warm pools that measure on them.

    Args:
        make_pool: makes the pool of a task's target.
    """

    #: Whether this process can run programs on the devices itself.
    are_here: ClassVar[bool]

    def __init__(self, make_pool: Callable[[Task], staged.StagedPool]) -> None:
        self._pools = warm_pools.Pools(make_pool)
        #: a warm pool for a task; how each device is that pools have; ends all processes
        self.pool, self.conditions = self._pools.take, self._pools.conditions
        self.close = self._pools.close

    @abc.abstractmethod
    def devices(self) -> list[dict[str, Any]]:
        """What jobs can be measured on."""

    @abc.abstractmethod
    def device(self, target_key: str) -> dict[str, Any]:
        """One that measures jobs of this key; raises `MeasureError` if there is none."""

    @abc.abstractmethod
    def resolve(self, spec: str, device: dict[str, Any]) -> Any:
        """The complete target of a client's specification on a device."""

    @property
    def lost(self) -> str | None:
        """Why nothing can be measured for longer than a moment; None if it can."""
        return self._pools.lost


class ThisMachine(Places):
    """The devices of this machine, warm.

    Args:
        confine_gpu: whether run workers of a GPU are confined.
    """

    are_here = True

    def __init__(self, confine_gpu: policy.ConfineGpu) -> None:
        options = work.LocalOptions(confine_gpu=confine_gpu, noise_probe=True)
        super().__init__(functools.partial(local.LocalPool, options=options))
        self._devices = [
            {**device, **self._pools.warm(json.dumps(device["target"]))}
            for device in devices.of_this_machine()
        ]

    def devices(self) -> list[dict[str, Any]]:
        """See `Places`."""
        return self._devices

    def device(self, target_key: str) -> dict[str, Any]:
        """See `Places`."""
        device = _first(self._devices, target_key)
        if device is None:
            raise errors.MeasureError(f"this machine has no {target_key}")
        return device

    def resolve(self, spec: str, device: dict[str, Any]) -> Any:
        """See `Places`."""
        return target.parse(spec)


class OnCluster(Places):
    """The devices of a cluster.

    Args:
        connection: a pipe to the link (`cluster.relay`).
    """

    are_here = False

    def __init__(self, connection: Connection) -> None:
        self._cluster = cluster = relayed.RelayedCluster(calls.Calls(connection))
        options = cluster_pool.ClusterOptions(wait_s=WAIT_S)
        super().__init__(lambda task: cluster_pool.ClusterPool(task, cluster, options))

    def devices(self) -> list[dict[str, Any]]:
        """See `Places`."""
        return self._cluster.devices()

    def device(self, target_key: str) -> dict[str, Any]:
        """See `Places`."""
        there = [device for device in self.devices() if device["fault"] is None]
        device = _first(there, target_key)
        if device is None:
            raise errors.NoDevice(f"the cluster has no {target_key} now")
        return device

    def resolve(self, spec: str, device: dict[str, Any]) -> Any:
        """See `Places`; what the client left out is the device's, not this machine's."""
        return target.parse(device["target"] | target.explicit_attributes(spec))

    @property
    def lost(self) -> str | None:
        """See `Places`."""
        return "the link to the cluster is gone" if self._cluster.ended else super().lost


def _first(listed: list[dict[str, Any]], target_key: str) -> dict[str, Any] | None:
    return next((device for device in listed if target_key in device["target_keys"]), None)
