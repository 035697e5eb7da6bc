"""What PyTorch modules may be: inputs, outputs, parameters, and what is refused."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch.fx.experimental import proxy_tensor
from torch.nn import functional

import felix
from felix import errors, frontend
from felix.frontend.pytorch import importer
from tests.felix.frontend.test_networks import TOLERANCE, assert_agrees, run
from tests.support import share
from tests.support.modules import Called


def check(model, args, kwargs=None, tolerance=2e-5):
    """Import, lower, run and compare; the lowered module and the imported model."""
    imported = frontend.import_torch(model, args, kwargs)
    module = frontend.lowered(imported)
    with torch.no_grad():
        reference = model.eval()(*args, **(kwargs or {}))
    assert_agrees(run(imported, module, args, kwargs), reference, tolerance)
    return imported, module


def programs(module):
    """Names of the functions that `main` calls, without numbers."""
    table = frontend.model_tasks(module)
    return sorted(name for item in table.tasks for name in item.functions)


class Mixed(nn.Module):
    """Integer inputs, tied weights, keywords, constants, several results and None."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("places", torch.randn(1, 1, 8))

    def forward(self, tokens, mask=None, *, scale=2.0, flag=True):
        x = self.table(tokens) + self.places
        y = functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return {"scores": self.head(y) * scale, "rest": (y, None), "tokens": tokens}


def test_arguments_results_and_tied_weights():
    torch.manual_seed(0)
    tokens, mask = torch.arange(6).reshape(1, 6), torch.ones(6, 6).tril().bool()
    imported, _ = check(Mixed(), (tokens,), {"mask": mask, "scale": 3.0})
    assert imported.parameter_names == ("head.weight",)
    assert [spec.dtype for spec in imported.inputs] == ["int64", "bool"]
    flattened = imported.calling.flatten((tokens, mask), {"flag": True, "scale": 3.0})
    assert flattened == [tokens, mask]


class Configured(nn.Module):
    """Takes what is left out from elsewhere, as decorated functions of libraries do."""

    def __init__(self):
        super().__init__()
        plain = self.scaled

        @functools.wraps(plain)
        def forward(*args, **kwargs):
            if len(args) < 2 or args[1] is None:
                kwargs["scale"] = kwargs.get("scale") or 2.0
            return plain(*args, **kwargs)

        self.forward = forward

    def scaled(self, x, scale=None, bias=None):
        return x * scale if bias is None else x * scale + bias


def test_a_module_is_exported_as_it_is_called():
    x = torch.randn(3)
    imported, _ = check(Configured(), (x,), {"bias": x + 1})
    assert imported.calling.flatten((), {"bias": x, "x": x + 1, "scale": None})[1] is x
    check(Configured(), (), {"bias": x + 1, "scale": 3.0, "x": x})


@pytest.fixture(scope="module")
def mixed():
    return frontend.import_torch(Mixed(), (torch.arange(6).reshape(1, 6),))


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((torch.zeros(1, 5, dtype=torch.int64),), {}, r"\(1, 5\).*\(1, 6\)"),
        ((torch.zeros(1, 6),), {}, "float32"),
        ((torch.zeros(1, 6, dtype=torch.int64),), {"scale": 4.0}, "argument 2.0.*not 4.0"),
        ((torch.zeros(1, 6, dtype=torch.int64),), {"mask": torch.ones(6, 6)}, "argument None"),
    ],
)
def test_other_calls_are_refused(args, kwargs, message, mixed):
    with pytest.raises(errors.WorkloadError, match=message):
        mixed.calling.flatten(args, kwargs)


def test_parameters_are_shared_with_the_module():
    model = nn.Linear(4, 6)
    imported = frontend.import_torch(model, (torch.zeros(2, 4),))
    assert {p.data_ptr() for p in imported.parameters} == {
        p.data_ptr() for p in model.parameters()
    }


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, padding=1, groups=2), nn.BatchNorm1d(6), (2, 4, 9)),
    (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), (1, 4, 7, 7)),
    (nn.Conv3d(2, 4, 3, stride=2), nn.BatchNorm3d(4), (1, 2, 6, 6, 6)),
    (nn.ConvTranspose1d(4, 6, 4, 2, 1), nn.BatchNorm1d(6), (1, 4, 8)),
    (nn.ConvTranspose2d(4, 6, 4, 2, 1, groups=2), nn.BatchNorm2d(6), (1, 4, 5, 5)),
    (nn.ConvTranspose3d(2, 3, 4, 2, 1, bias=False), nn.BatchNorm3d(3), (1, 2, 3, 3, 3)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_is_folded_into_one_program(dtype):
    torch.manual_seed(0)
    for _, norm, _ in CONVOLUTIONS:
        for tensor in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
            tensor.uniform_(0.5, 1.5)
    parts = [nn.Sequential(conv, norm, nn.ReLU()).to(dtype) for conv, norm, _ in CONVOLUTIONS]
    inputs = tuple(torch.randn(shape).to(dtype) for *_, shape in CONVOLUTIONS)
    model = Called(lambda *xs: [p(x) for p, x in zip(parts, xs, strict=True)], *parts)
    imported, module = check(model, inputs, tolerance=TOLERANCE[dtype])
    assert len(imported.parameters) == 2 * len(parts)
    assert len(programs(module)) == len(parts)


def test_only_a_number_of_each_channel_is_a_bias():
    """As many numbers along another axis are none."""
    torch.manual_seed(0)

    class Shifted(nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
            self.shift = nn.Parameter(torch.randn(shape))

        def forward(self, x):
            return self.norm(self.conv(x) + self.shift)

    parts = [Shifted(shape) for shape in ((8, 1, 1), (1, 8, 1, 1), (8,), (8, 1))]
    model = Called(lambda x: [part(x) for part in parts], *parts)
    imported, _ = check(model, (torch.randn(1, 4, 8, 8),))
    names = imported.parameter_names
    folded = [name.partition(".conv")[0] for name in names if name.endswith(".bias")]
    assert folded == ["parts.0", "parts.1"] and len(names) == 2 * 2 + 2 * 4


def test_batch_norm_elsewhere_is_one_elementwise_program():
    _, module = check(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)), (torch.randn(1, 4, 5, 5),))
    assert len(programs(module)) == 1


class Block(nn.Module):
    """A transformer's block: layer norm, attention, GELU."""

    def __init__(self):
        super().__init__()
        self.norm, self.into = nn.LayerNorm(16), nn.Linear(16, 48)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        q, k, v = self.into(self.norm(x)).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        return x + self.down(functional.gelu(self.up(x)))


@pytest.mark.slow("builds a block of a transformer")
@pytest.mark.parametrize("dtype", share.of(TOLERANCE, 2))
def test_products_end_their_groups(dtype):
    torch.manual_seed(0)
    _, module = check(
        Block().to(dtype), (torch.randn(2, 5, 16).to(dtype),), tolerance=TOLERANCE[dtype]
    )
    names = programs(module)
    assert sum("matmul" in name for name in names) == 5
    for name in names:
        assert not ("matmul" in name and ("softmax" in name or "layer_norm" in name)), name
    assert any("gelu" in name and "matmul" in name for name in names)


def test_tasks_have_sketches():
    imported = frontend.import_torch(Block(), (torch.randn(2, 5, 16),))
    module = frontend.lowered(imported)
    table = frontend.model_tasks(module)
    assert not table.refused
    by_kind = {item.functions[0]: item.task for item in table.tasks}
    for kind in ("matmul", "softmax", "layer_norm"):
        (name, *_) = [name for name in by_kind if kind in name]
        assert felix.sketches(by_kind[name])


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 3))

    def forward(self, x):
        self.cache.copy_(x)
        return self.cache + 1


class TrainingNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        norm = self.norm
        return functional.batch_norm(x, norm.running_mean, norm.running_var, training=True)


def _aligned(x):
    lengths = torch.full((2,), 2)
    return functional.ctc_loss(x[:, :, None].expand(2, 3, 4), lengths, lengths, lengths)


def _branching(x):
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


@pytest.mark.parametrize(
    "model, message",
    [
        (Cache(), "changes the buffer 'cache'; return the new value"),
        (TrainingNorm(), "changes the buffer 'norm.running_mean'.*inference mode"),
        (Called(_branching), "depends on values of tensors; use torch.where"),
        (Called(_aligned), "what the operator 'aten._ctc_loss.* depends on values of tensors"),
        (
            Called(lambda x: functional.dropout(x, 0.5) + 1),
            "dropout.default' may draw random numbers; pass training=False",
        ),
        (
            Called(lambda x: (x + 1, types.SimpleNamespace(cache=x))),
            "it returns the object 'types.SimpleNamespace', .* use_cache=False",
        ),
    ],
)
def test_what_is_refused_says_what_to_do(model, message):
    with pytest.raises(errors.WorkloadError, match=message) as caught:
        frontend.import_torch(model, (torch.ones(2, 3),))
    assert "\n" not in str(caught.value)


def test_a_dropout_that_is_off_is_nothing():
    def off(x):
        natives = [torch.native_dropout(x, p, on)[0] + 1 for p, on in ((0.5, False), (0.0, True))]
        return [functional.dropout(x, 0.5, training=False) + 1, *natives]

    check(Called(off), (torch.randn(2, 3),))


def test_clips_that_torch_writes_by_position():
    check(nn.Sequential(nn.ReLU6(), nn.Hardtanh(-0.5, 0.25)), (torch.randn(3, 8) * 9,))


def test_reshapes_are_views():
    model = Called(lambda x: torch.relu(x.reshape(4, 6)).unsqueeze(0))
    assert len(programs(check(model, (torch.randn(2, 12),))[1])) == 1


def test_modules_run_as_ever_while_a_graph_is_imported() -> None:
    """Other threads run them. `make_fx` would change all their calls, and refuse compiled ones."""
    graph = proxy_tensor.make_fx(lambda x: torch.softmax(x, -1) + 1.0)(torch.randn(4))
    calls, forward = nn.Module.__call__, graph.forward
    seen: list[bool] = []

    def noted(x: torch.Tensor) -> Any:
        seen.append(nn.Module.__call__ is calls and not torch.fx._symbolic_trace.is_fx_tracing())
        return forward(x)

    (x,) = graph.graph.find_nodes(op="placeholder")
    x.meta["val"] = fake_tensor.FakeTensorMode().from_tensor(torch.randn(4))
    graph.forward = noted
    imported_graph = importer.read_graph(graph, {})
    assert seen == [True]
    assert [spec.shape for spec in imported_graph.outputs] == [(4,)]
