"""The groups of networks and their tasks."""

from __future__ import annotations

import pytest
import tvm_ffi

import felix
from benchmarks.networks import catalogue
from felix import target
from felix.network import groups, imported, judging


@pytest.mark.parametrize("name", catalogue.NETWORKS)
def test_tasks_are_read_back_from_json(name: str) -> None:
    """Other processes and machines tune them."""
    model, inputs = catalogue.make(name, small=True)
    full = target.parse("cuda -arch sm_90")
    grouping = judging.grouping(None, full, None)
    network = imported.read(model, inputs, {}, full, grouping=grouping)
    tasks = groups.tasks(groups.of(network.lowered, full))
    assert tasks
    for task in tasks:
        again = felix.Task.from_json(task.to_json(), trusted=True)
        assert again.key == task.key and tvm_ffi.structural_equal(again.func, task.func)
