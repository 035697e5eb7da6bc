"""What a network computes and allocates once, when it is loaded."""

from __future__ import annotations

import json
import pathlib

import torch
import tvm
from torch import nn

import felix
from benchmarks.networks import catalogue
from felix import frontend, target
from felix.network import assembly, executable, groups, imported
from felix.network.passes import prepacking
from tests.support import networks, run_py

LLVM = target.parse("llvm")


def _loaded(mod: tvm.IRModule, network: imported.Network) -> executable.Executable:
    return executable.Executable(
        executable.compile_network(mod, LLVM), network.imported.parameters, executable.device(LLVM)
    )


def _packed(model: nn.Module, x: torch.Tensor) -> tuple[imported.Network, tvm.IRModule]:
    """A network of one product, scheduled with its weight in panels."""
    network = imported.read(model, (x,), {}, LLVM)
    (group,) = groups.of(network.lowered, LLVM)
    assert group.task is not None
    every = felix.sketches(group.task)
    sketch = next(each for each in every if str(each.variant).startswith("packed_operand"))
    (row,) = sketch.sample(1, seed=1)
    return network, assembly.assemble(network.lowered, [(group, sketch.program(row))])


def test_a_packed_weight_is_packed_when_the_network_is_loaded() -> None:
    torch.manual_seed(0)
    model = nn.Linear(1024, 512, bias=False).requires_grad_(False)
    network, mod = _packed(model, torch.randn(64, 1024))
    prepacked = prepacking.prepack(mod)
    called = set(frontend.calls(prepacked))
    assert [name.endswith("_rest") for name in called] == [True]
    built, as_it_was = _loaded(prepacked, network), _loaded(mod, network)
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


def test_calls_of_parameters_alone_are_lifted(tmp_path: pathlib.Path) -> None:
    """BERT looks up the embeddings of its places and its kinds: both are constants."""
    model, inputs = catalogue.make("bert_base", small=True)
    fast = networks.optimize(model, inputs, tmp_path, trials=1)
    constant = [
        shape
        for shape in (tuple(p.shape) for p in fast.executable.parameters)
        if shape in ((1, 8, 32), (8, 32))
    ]
    assert constant
    folder = fast.export(tmp_path / "net")
    done = run_py.run(folder, "--json", "--repeats", "1", check=True)
    assert json.loads(done.stdout)["max_error"] < 1e-3


def test_a_network_without_parameters(tmp_path: pathlib.Path) -> None:
    x = torch.randn(4, 8)
    fast = networks.optimize(nn.Softmax(-1), (x,), tmp_path, trials=1)
    torch.testing.assert_close(fast(x), torch.softmax(x, -1))
    assert fast.executable.parameters == []


def test_intermediate_values_have_memory_of_their_own(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
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


def test_a_parameter_that_is_an_output_is_copied(tmp_path: pathlib.Path) -> None:
    class WithWeight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weight = torch.softmax(self.weight, dim=-1)
            return torch.relu(x @ weight), weight

    model, x = WithWeight().eval(), torch.randn(3, 8)
    fast = networks.optimize(model, (x,), tmp_path)
    with torch.no_grad():
        product, weight = model(x)
    fast(x)[1].add_(1.0)
    outputs = fast(x)
    torch.testing.assert_close(outputs[0], product, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs[1], weight, rtol=1e-4, atol=1e-5)
