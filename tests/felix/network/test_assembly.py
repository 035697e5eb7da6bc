"""Programs put back into a network, what it prepares when loaded, what the same output is."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import tirx

import felix
from benchmarks.networks import catalogue
from felix import frontend, target
from felix.builder.cuda import tvm_module
from felix.database import store
from felix.network import agreement, assembly, executable, group_costs, groups, imported
from felix.network.passes import prepacking
from felix.runner.cuda import nvrtc
from felix.templates.generated import GeneratedProgram
from tests.support import networks, run_py, share
from tests.support.cuda import generated_programs


def _network() -> tuple[imported.Network, groups.Group]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    return networks.of_one_group(model, torch.randn(2, 8))


def test_scheduled_programs_replace_prim_funcs() -> None:
    network, group = _network()
    assert group.calls == 2
    sketch = felix.sketches(group.task)[0]
    (row,) = sketch.sample(1, seed=2)
    before = network.lowered.script()
    mod = assembly.assemble(network.lowered, [(group, sketch.program(row))])
    assert network.lowered.script() == before
    for symbol in group.symbols:
        body = sketch.program(row)["main"].body
        assert tvm_ffi.structural_equal(mod[symbol].body, body, map_free_vars=True)
    torch.testing.assert_close(networks.outputs(network, mod), list(network.expected))


def test_generated_kernels_are_called_as_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's module is linked in, and no call of the PrimFunc is left."""
    network, group = _network()
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

    monkeypatch.setattr("felix.builder.cuda.tvm_module.module", compiled)
    kernels: list[str] = []
    program = generated_programs.plain()  # what it does is `compiled`'s
    mod = assembly.assemble(network.lowered, [(group, program)])
    assert not frontend.calls(mod) and names[0].startswith("felix_")
    # a library finds kernels by name, whatever module they are of
    assert kernels == [f"{names[0]}_squares", f"{names[0]}_sums"]
    assert set(assembly.cubins([(group, program)])) == set(kernels)
    torch.testing.assert_close(networks.outputs(network, mod), list(network.expected))


# The groups of networks and their tasks.


@pytest.mark.parametrize("name", share.of(sorted(catalogue.NETWORKS, key="dcgan".__ne__), 1))
def test_tasks_are_read_back_from_json(name: str, tmp_path: pathlib.Path) -> None:
    """Other processes and machines tune them."""
    model, inputs = catalogue.make(name, small=True)
    full = target.parse("cuda -arch sm_90")
    grouping = group_costs.known_grouping(full, store.Store(tmp_path / "known.sqlite"))
    network = imported.read(model, inputs, {}, full, grouping=grouping)
    tasks = groups.tasks(groups.of(network.lowered, full))
    assert tasks
    for task in tasks:
        again = felix.Task.from_json(task.to_json(), trusted=True)
        assert again.key == task.key and tvm_ffi.structural_equal(again.func, task.func)


# ----------------------------------- what a network computes and allocates once, when it is loaded


LLVM = target.parse("llvm")


def _packed(model: nn.Module, x: torch.Tensor) -> tuple[imported.Network, tvm.IRModule]:
    """A network of one product, scheduled with its weight in panels."""
    network, group = networks.of_one_group(model, x, target="llvm")
    every = felix.sketches(group.task)
    sketch = next(each for each in every if str(each.variant).startswith("packed_operand"))
    (row,) = sketch.sample(1, seed=1)
    return network, assembly.assemble(network.lowered, [(group, sketch.program(row))])


def test_a_packed_weight_is_packed_when_the_network_is_loaded() -> None:
    model = nn.Linear(1024, 512, bias=False).requires_grad_(False)
    network, mod = _packed(model, torch.randn(64, 1024))
    prepacked = prepacking.prepack(mod)
    called = set(frontend.calls(prepacked))
    assert [name.endswith("_rest") for name in called] == [True]
    built, as_it_was = (networks.built(network, each) for each in (prepacked, mod))
    (panels,) = built.parameters  # the weight itself is read by nothing
    expected = model.weight.reshape(512 // panels.shape[2], -1, 1024).permute(0, 2, 1)
    assert torch.equal(torch.from_dlpack(panels), expected)
    for _ in range(2):
        (y,), (same,) = built(list(network.examples)), as_it_was(list(network.examples))
        assert torch.equal(y, same)
        torch.testing.assert_close(y, model(network.examples[0]), rtol=1e-4, atol=1e-4)


def test_an_operand_that_is_an_input_is_packed_in_each_call() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 1024))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight @ x.T

    _, mod = _packed(Product(), torch.randn(512, 1024))
    called = set(frontend.calls(prepacking.prepack(mod)))
    assert not any(name.endswith("_rest") for name in called)


def test_calls_of_parameters_alone_are_lifted(everything_known: pathlib.Path) -> None:
    fast = networks.optimize(networks.Placed(), (torch.randn(2, 8, 16),), everything_known)
    assert (8, 16) in [tuple(each.shape) for each in fast.executable.parameters]
    folder = fast.export(everything_known / "net")
    done = run_py.run(folder, "--json", "--repeats", "1", check=True)
    assert json.loads(done.stdout)["max_error"] < 1e-3


def test_a_network_without_parameters(everything_known: pathlib.Path) -> None:
    model, x = nn.Softmax(-1), torch.randn(4, 8)
    fast = networks.optimize(model, (x,), everything_known)
    networks.assert_same(fast, model, x)
    assert fast.executable.parameters == []


def test_intermediate_values_have_memory_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1), nn.Linear(16, 16))
    x = torch.randn(4, 16)
    network = imported.read(model, (x,), {}, LLVM)
    compiled = executable.compile_network(network.lowered, LLVM)
    parts = compiled.as_text().split("@")
    allocations = {part.split(":")[0]: part.count("alloc_storage") for part in parts[1:]}
    assert allocations["main"] == 1  # the output
    assert allocations["workspace"] == 2
    first, second = (
        executable.Executable(compiled, network.imported.parameters, executable.device(LLVM))
        for _ in range(2)
    )
    outputs = [built([each]) for each in (x, x + 1) for built in (first, second)]
    with torch.no_grad():
        for (output,), each in zip(outputs, (x, x, x + 1, x + 1), strict=True):
            torch.testing.assert_close(output, model(each))


def test_a_parameter_that_is_an_output_is_copied(everything_known: pathlib.Path) -> None:
    class WithWeight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weight = torch.softmax(self.weight, dim=-1)
            return torch.relu(x @ weight), weight

    model, x = WithWeight().eval(), torch.randn(3, 8)
    fast = networks.optimize(model, (x,), everything_known)
    fast(x)[1].add_(1.0)
    networks.assert_same(fast, model, x)


# ---------------------------------------------------------------- what counts as the same output


INTEGERS = torch.arange(1000, dtype=torch.int32)


@pytest.mark.parametrize(
    ("n_off", "by", "is_exact", "is_right"),
    [
        (10, 1, False, True),
        (11, 1, False, False),
        (10, 2, False, False),
        (1, 1, True, False),
        (0, 0, True, True),
    ],
)
def test_few_integers_beside_floats_may_be_off_by_one(
    n_off: int, by: int, is_exact: bool, is_right: bool
) -> None:
    output = INTEGERS.clone()
    output[:n_off] += by
    assert (agreement.difference(output, INTEGERS, is_exact) == 0.0) == is_right


def test_bools_and_far_integers_are_exact() -> None:
    bools = torch.zeros(1000, dtype=torch.bool)
    other = bools.clone()
    other[3] = True
    assert agreement.difference(other, bools, is_exact=False) == float("inf")
    assert agreement.difference(torch.tensor(2.0), torch.tensor(2.0)) == 0.0  # one number
    far = torch.zeros(1000, dtype=torch.int64)
    far[3] = torch.iinfo(torch.int64).min
    assert agreement.difference(far, torch.zeros_like(far), is_exact=False) == float("inf")


def test_a_kernel_is_compiled_once_for_all_networks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Its name is the same in each; several are compiled side by side."""
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    compiled: list[str] = []
    before = nvrtc.compile_cubin

    def compile_cubin(source: str, arch: str, **options: Any) -> bytes:
        compiled.append(source)
        return before(source, arch, **options)

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    _, group = _network()
    plain = generated_programs.plain()
    other = dataclasses.replace(plain, source=plain.source + "\n// another one\n")
    for shipped in ([(group, plain), (group, other)], [(group, other)], [(group, plain)]):
        assembly.compile_kernels(shipped)
        assert len(assembly.cubins(shipped)) == 2 * len(shipped)
    assert len(compiled) == len(set(compiled)) == 2
