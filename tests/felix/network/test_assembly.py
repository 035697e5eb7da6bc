"""Putting programs back into a network."""

from __future__ import annotations

import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import tirx

import felix
from benchmarks.networks import catalogue
from felix import frontend, target
from felix.measure.cuda.building import tvm_module
from felix.network import assembly, groups, imported, judging
from felix.templates.generated import GeneratedProgram
from tests.support import networks, share
from tests.support.cuda import generated_programs


def _network() -> imported.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    return imported.read(model, (torch.randn(2, 8),), {}, target.parse(networks.TARGET))


def test_scheduled_programs_replace_prim_funcs() -> None:
    network = _network()
    (group,) = groups.of(network.lowered, network.target)
    assert group.calls == 2 and group.task is not None
    sketch = felix.sketches(group.task)[0]
    (row,) = sketch.sample(1, seed=2)
    before = network.lowered.script()
    mod = assembly.assemble(network.lowered, [(group, sketch.program(row))])
    assert network.lowered.script() == before
    for symbol in group.symbols:
        body = sketch.program(row)["main"].body
        assert tvm_ffi.structural_equal(mod[symbol].body, body, map_free_vars=True)
    assert network.expected is not None
    torch.testing.assert_close(networks.outputs(network, mod), list(network.expected))


def test_generated_kernels_are_called_as_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's module is linked in, and no call of the PrimFunc is left."""
    network = _network()
    (group,) = groups.of(network.lowered, network.target)
    names: list[str] = []

    def compiled(
        program: GeneratedProgram,
        mod: tvm.IRModule,
        full: tvm.target.Target,
        runs_here: bool,
        takes_workspace: bool,
    ) -> tvm.runtime.Module:
        assert runs_here and takes_workspace
        kernels.extend(launch.kernel for launch in program.plan.launches)
        func, size_bytes = mod["main"], tvm_module.workspace_bytes(program.plan)
        names.append(str(func.attrs["global_symbol"]))
        workspace = tirx.decl_buffer((size_bytes,), "uint8", "workspace")
        taking = tirx.PrimFunc([*func.params, workspace], func.body, attrs=func.attrs)
        return tvm.tirx.build(tvm.IRModule({names[-1]: taking}), full)

    monkeypatch.setattr("felix.measure.cuda.building.tvm_module.module", compiled)
    kernels: list[str] = []
    program = generated_programs.plain()  # what it does is `compiled`'s
    mod = assembly.assemble(network.lowered, [(group, program)])
    assert not frontend.calls(mod) and names == ["felix_group0"]
    # a library finds kernels by name, whatever module they are of
    assert kernels == ["felix_group0_squares", "felix_group0_sums"]
    assert set(assembly.cubins([(group, program)])) == set(kernels)
    assert network.expected is not None
    torch.testing.assert_close(networks.outputs(network, mod), list(network.expected))


# The groups of networks and their tasks.


@pytest.mark.parametrize("name", share.of(catalogue.NETWORKS, 2))
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
