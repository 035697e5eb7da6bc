"""Modules of torch.nn run right through the backend; known programs are really used."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config

from felix.network import agreement
from felix.network.backend import entry
from tests.support import backend, networks, share

_image, _line, _volume = (2, 4, 6, 6), (2, 4, 9), (1, 2, 4, 4, 4)


def _tensor(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(shape),)


def _rows() -> tuple[torch.Tensor, ...]:
    return (torch.tensor([[1, 4, 2], [0, 3, 9]]),)


#: Module, its inputs, operators that Felix runs; none where PyTorch runs all.
_MODULES: Sequence[tuple[Callable[[], nn.Module], Callable[[], Any], set[str]]] = [
    (lambda: nn.Linear(8, 5), _tensor(3, 8), {"linear"}),
    (lambda: nn.Bilinear(4, 3, 5), lambda: (torch.randn(2, 4), torch.randn(2, 3)), {"add"}),
    (lambda: nn.Conv1d(4, 6, 3), _tensor(*_line), {"convolution"}),
    (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), _tensor(*_image), {"convolution"}),
    (lambda: nn.Conv3d(2, 3, 3), _tensor(*_volume), {"convolution"}),
    (lambda: nn.ConvTranspose1d(4, 3, 3, stride=2), _tensor(*_line), {"convolution"}),
    (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), _tensor(*_image), {"convolution"}),
    (lambda: nn.BatchNorm1d(4), _tensor(*_line), {"_native_batch_norm_legit_no_training"}),
    (lambda: nn.BatchNorm2d(4), _tensor(*_image), {"_native_batch_norm_legit_no_training"}),
    (lambda: nn.LayerNorm([4, 9]), _tensor(*_line), {"layer_norm"}),
    (lambda: nn.RMSNorm(9), _tensor(*_line), {"rms_norm"}),
    (lambda: nn.GroupNorm(2, 4), _tensor(*_image), {"native_group_norm"}),
    (lambda: nn.GroupNorm(4, 4, affine=False), _tensor(*_image), {"native_group_norm"}),
    (lambda: nn.InstanceNorm2d(4), _tensor(*_image), {"_native_batch_norm_legit"}),
    (lambda: nn.LocalResponseNorm(2), _tensor(*_image), {"avg_pool3d"}),
    (lambda: nn.Embedding(10, 6), _rows, {"embedding"}),
    (lambda: nn.EmbeddingBag(10, 6), _rows, set()),
    (lambda: nn.ReLU(), _tensor(*_line), {"relu"}),
    (lambda: nn.ReLU6(), _tensor(*_line), {"hardtanh"}),
    (lambda: nn.PReLU(4), _tensor(*_line), {"_prelu_kernel"}),
    (lambda: nn.ELU(), _tensor(*_line), {"elu"}),
    (lambda: nn.SELU(), _tensor(*_line), {"elu"}),
    (lambda: nn.CELU(0.5), _tensor(*_line), {"celu"}),
    (lambda: nn.GELU(), _tensor(*_line), {"gelu"}),
    (lambda: nn.SiLU(), _tensor(*_line), {"silu"}),
    (lambda: nn.Mish(), _tensor(*_line), {"mish"}),
    (lambda: nn.Hardswish(), _tensor(*_line), {"hardswish"}),
    (lambda: nn.LeakyReLU(0.2), _tensor(*_line), {"leaky_relu"}),
    (lambda: nn.Sigmoid(), _tensor(*_line), {"sigmoid"}),
    (lambda: nn.Tanh(), _tensor(*_line), {"tanh"}),
    (lambda: nn.Softplus(), _tensor(*_line), {"softplus"}),
    (lambda: nn.Softmax(-1), _tensor(*_line), {"_softmax"}),
    (lambda: nn.LogSoftmax(1), _tensor(*_line), {"_log_softmax"}),
    (lambda: nn.GLU(1), _tensor(*_line), {"glu"}),
    (lambda: nn.MaxPool1d(3), _tensor(*_line), {"max_pool2d_with_indices"}),
    (lambda: nn.MaxPool2d(2, ceil_mode=True), _tensor(2, 4, 7, 7), {"max_pool2d_with_indices"}),
    (lambda: nn.MaxPool2d(2, return_indices=True), _tensor(*_image), set()),
    (lambda: nn.AvgPool2d(3, padding=1), _tensor(*_image), {"avg_pool2d"}),
    (lambda: nn.AvgPool2d(3, divisor_override=5), _tensor(*_image), set()),
    (lambda: nn.AdaptiveAvgPool2d(2), _tensor(*_image), {"_adaptive_avg_pool2d"}),
    (lambda: nn.PixelShuffle(2), _tensor(*_image), {"pixel_shuffle"}),
    (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _tensor(*_image), {"_unsafe_index"}),
    (lambda: nn.ReflectionPad2d(1), _tensor(*_image), {"reflection_pad2d"}),
    (lambda: nn.Unfold(3), _tensor(*_image), set()),
    (lambda: nn.Dropout(0.5), _tensor(*_line), set()),
    (lambda: nn.Flatten(), _tensor(*_image), set()),
    (
        lambda: nn.CosineSimilarity(),
        lambda: (torch.randn(3, 8), torch.randn(3, 8)),
        {"linalg_vector_norm"},
    ),
    (lambda: nn.LSTM(4, 5), _tensor(3, 2, 4), set()),
    (lambda: nn.GRU(4, 5), _tensor(3, 2, 4), set()),
    (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda: (torch.randn(2, 3, 8),) * 3,
        {"linear", "bmm", "_softmax"},
    ),
    (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True),
        _tensor(2, 3, 8),
        set(),
    ),
]
_IDS = [type(make()).__name__ for make, _, _ in _MODULES]
#: Modules that run in bfloat16 as well.
_AUTOCAST = (
    "Linear Conv2d BatchNorm2d GroupNorm LayerNorm SELU GELU Softmax AvgPool2d MultiheadAttention"
)


def _same(actual: Any, expected: Any, limit: float) -> None:
    flat = [torch.utils._pytree.tree_leaves(each) for each in (actual, expected)]
    for output, reference in zip(*flat, strict=True):
        if reference is None:
            assert output is None
        else:
            assert agreement.difference(output, reference) <= limit
            assert output.stride() == reference.stride()


@pytest.mark.parametrize(
    ("make", "inputs", "operators"), share.of(_MODULES, 4), ids=share.of(_IDS, 4)
)
def test_module(
    make: Callable[[], nn.Module],
    inputs: Callable[[], Any],
    operators: set[str],
    everything_known: pathlib.Path,
) -> None:
    model = make().eval()
    fast = backend.compiled(model, everything_known)
    with torch.no_grad():
        for arguments in (inputs(), inputs()):
            _same(fast(*arguments), model(*arguments), 1e-4)
    assert operators <= backend.tuned_operators()
    assert all(
        part.is_tuned or "no program that could be tuned" in part.reason
        for part in backend.parts()
    )


@pytest.mark.parametrize("name", share.of(_AUTOCAST.split(), 2))
def test_module_under_autocast(name: str, everything_known: pathlib.Path) -> None:
    make, inputs, operators = _MODULES[_IDS.index(name)]
    model = make().eval()
    fast = backend.compiled(model, everything_known)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        arguments = inputs()
        expected = model(*arguments)
        _same(fast(*arguments), expected, agreement.TOLERANCES[torch.bfloat16])
    assert operators <= backend.tuned_operators()


# Recurrent modules: Dynamo leaves them to PyTorch, or traces them where it is told to.

_RECURRENT: list[tuple[Callable[[], nn.Module], set[str], set[str]]] = [
    (lambda: nn.GRU(4, 5, batch_first=True), {"linear", "sigmoid", "tanh"}, set()),
    (
        lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
        {"cat"},
        {"aten.mkldnn_rnn_layer.default"},
    ),
    (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LSTM(4, 3)),
        {"linear", "relu"},
        {"aten.mkldnn_rnn_layer.default"},
    ),
]


@pytest.mark.parametrize("allow_rnn", [False, True])
@pytest.mark.parametrize(("make", "tuned", "left"), _RECURRENT, ids=["GRU", "LSTM", "Sequential"])
def test_recurrent_modules(
    make: Callable[[], nn.Module],
    tuned: set[str],
    left: set[str],
    allow_rnn: bool,
    everything_known: pathlib.Path,
) -> None:
    model, x = make().eval(), torch.randn(3, 2, 4)
    fast = backend.compiled(model, everything_known)
    with config.patch(allow_rnn=allow_rnn):
        networks.assert_same(fast, model, x)
    graphs = entry.backend_report().graphs
    if not allow_rnn:
        assert not graphs
        return
    assert tuned <= backend.tuned_operators()
    # where PyTorch has the layer as one operator, TVM does not import it
    operators = {name for graph in graphs for size in graph.sizes for name in size.pytorch}
    assert left <= operators or not torch.backends.mkldnn.is_available()


def test_a_cell_is_compiled(everything_known: pathlib.Path) -> None:
    model, x = nn.LSTMCell(4, 5), torch.randn(2, 4)
    networks.assert_same(backend.compiled(model, everything_known), model, x)
    assert backend.tuned_operators() >= {"linear", "sigmoid", "tanh"}
