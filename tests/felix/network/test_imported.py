"""Where models and inputs are, what is built for them, and changes of a model afterwards."""

from __future__ import annotations

import pathlib
import types

import pytest
import torch
from torch import nn

import felix
from felix import errors, target
from felix.network import assembly, executable, imported
from tests.support import networks, run_py
from tests.support.modules import Called


def test_the_target_follows_the_tensors() -> None:
    x = torch.zeros(2, 4)
    assert imported.default_target([]) == imported.default_target([x]) == "llvm"
    with pytest.raises(errors.TargetError, match="no target for the device meta"):
        felix.optimize(nn.Linear(4, 4).to("meta"), x)


def test_tensors_are_those_of_the_model_and_of_the_call() -> None:
    model, x, y = nn.BatchNorm1d(4), torch.zeros(2, 4), torch.ones(2)
    own = [model.weight, model.bias, model.running_mean, model.running_var]
    found = imported.tensors(model, (x, 3), {"y": [y]})
    assert all(any(each is one for one in found) for each in (*own, x, y))
    program = torch.export.export(model.eval(), (x,))
    assert len(imported.tensors(program, (), {})) >= 4


def test_a_module_elsewhere_is_refused() -> None:
    model, x = nn.Linear(4, 4), torch.zeros(2, 4)
    with pytest.raises(errors.WorkloadError, match="are on cpu, and the target's programs run on"):
        felix.optimize(model, x, target="cuda -arch sm_80")
    with pytest.raises(errors.WorkloadError, match="are on meta"):
        felix.optimize(model, x.to("meta"), target="llvm")


def test_what_comes_from_files_is_moved() -> None:
    x = torch.zeros(2, 4)
    program = torch.export.export(nn.Linear(4, 4).eval(), (x,), {})
    moved, args, kwargs = imported.placed(program, (), {}, "meta")
    assert {each.device.type for each in imported.tensors(moved, args, kwargs)} == {"meta"}
    assert [tuple(each.shape) for each in args] == [(2, 4)] and kwargs == {}
    _, args, _ = imported.placed(b"an ONNX file", (x,), {}, "meta")
    assert args[0].device.type == "meta"


@pytest.mark.gpu
def test_models_on_a_gpu_are_built_for_it(tmp_path: pathlib.Path) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval(), torch.randn(8, 64)
    program = torch.export.export(model, (x,))
    with torch.no_grad():
        expected = model(x)
    known = tmp_path / "known.sqlite"
    fast = felix.optimize(model.cuda(), (x.cuda(),), trials=8, known_results=known)
    again = felix.optimize(program, trials=8, target="cuda", known_results=known)
    for each in (fast, again):
        torch.testing.assert_close(each(x.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)
        assert each.report.target == "cuda"


def test_inputs_without_elements() -> None:
    """TVM wants other strides than PyTorch gives them, and never begins a sum of no terms."""

    def products(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ones = torch.ones(3)
        return x @ y, nn.functional.linear(x, y.mT, ones), (x @ y) @ ones

    inputs = torch.randn(5, 0), torch.randn(0, 3)
    network = imported.read(Called(products), inputs, {}, target.parse("llvm"))
    product, layer, chain = assembly.untuned_outputs(network)
    assert torch.equal(product, torch.zeros(5, 3)) and torch.equal(layer, torch.ones(5, 3))
    assert torch.equal(chain, torch.zeros(5))
    assert not any("matmul" in each.name_hint for each in network.lowered.get_global_vars())


def test_other_gpus_than_the_first_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = types.SimpleNamespace(device=torch.device("cuda:1"))
    monkeypatch.setattr(imported, "tensors", lambda *call: [elsewhere])
    with pytest.raises(errors.WorkloadError, match="cuda:1: move both to cuda:0"):
        imported.placed(nn.ReLU(), (), {}, "cuda")


@pytest.mark.slow("builds a transformer")
def test_a_padding_mask_of_a_transformer(everything_known: pathlib.Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    x, mask = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    keywords = {"src_key_padding_mask": mask}
    fast = networks.optimize(model, (x,), everything_known, kwargs=keywords)
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        expected = model(x, **keywords)
    torch.testing.assert_close(fast(x, **keywords)[~mask], expected[~mask], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- a network is the model as it was


class _Stored(nn.Module):
    """Parameters that are folded, passed on and returned, and a buffer that is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 4)
        self.register_buffer("scale", torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.convolution(x)).mean((2, 3))
        return self.linear(y) * self.scale, self.linear.weight


def test_later_changes_are_not_seen(everything_known: pathlib.Path) -> None:
    model, x = _Stored().eval(), torch.randn(1, 3, 5, 5)
    given = x.clone()
    fast = networks.optimize(model, (x,), everything_known)
    before = [each.clone() for each in fast(given)]
    with torch.no_grad():
        other = {name: value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(other)
    x.zero_()
    assert all(map(torch.equal, fast(given), before))
    folder = fast.export(everything_known / "net")
    done = run_py.run(folder, "--repeats", "1")
    assert done.returncode == 0, done.stderr


def test_large_parameters_are_shared_and_their_changes_are_told(
    everything_known: pathlib.Path,
) -> None:
    """A copy would take a network's memory twice."""
    model, x = nn.Linear(512, 600).eval(), torch.randn(1, 512)
    assert model.weight.nbytes >= executable.SHARED_BYTES > model.bias.nbytes
    fast = networks.optimize(model, (x,), everything_known)
    addresses = {torch.from_dlpack(each).data_ptr() for each in fast.executable.parameters}
    assert model.weight.data_ptr() in addresses and model.bias.data_ptr() not in addresses
    before = fast(x)
    with torch.no_grad():
        model.bias.add_(1)
    assert torch.equal(fast(x), before)
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    for action in (lambda: fast(x), lambda: fast.export(everything_known / "net")):
        with pytest.raises(errors.WorkloadError, match="were changed after"):
            action()


def test_the_memory_of_parameters_may_go(everything_known: pathlib.Path) -> None:
    model = nn.Linear(8, 8)
    fast = networks.optimize(model, torch.randn(2, 8), everything_known)
    tolerance = fast._network.tolerance
    assert tolerance == 1e-3 and not any(map(torch.numel, fast._network.imported.parameters))
