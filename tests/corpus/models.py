"""PyTorch models of many kinds with random weights and small extents, and their inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.networks import catalogue

#: Makes a model and the inputs it is traced with.
Maker = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


class Lambda(nn.Module):
    """A function as a module; `parts` are the modules that it is given before its inputs."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*self.parts, *inputs)


def models() -> dict[str, Maker]:
    """Name -> maker; those of the benchmarks, small, are among them."""
    make = functools.partial(functools.partial, catalogue.make, small=True)
    small = {name: make(name) for name in catalogue.NETWORKS}
    return small | _image_models() | _generators() | _transformers() | _recurrent() | _others()


def _image(channels: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(1, channels, size, size)


def _conv(
    inputs: int, outputs: int, stride: int = 1, norm: type[nn.Module] = nn.BatchNorm2d, **more: Any
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False, **more), norm(outputs), nn.ReLU()
    )


def _image_models() -> dict[str, Maker]:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    squeeze = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.SiLU(), nn.Conv2d(2, 8, 1), nn.Sigmoid()
    )
    fire = [nn.Sequential(nn.Conv2d(4, 6, k, padding=k // 2), nn.ReLU()) for k in (1, 3)]
    next_block = nn.Sequential(
        nn.Conv2d(8, 8, 7, padding=3, groups=8),
        _ChannelNorm(8),
        nn.Conv2d(8, 16, 1),
        nn.GELU(),
        nn.Conv2d(16, 8, 1),
    )
    layers = {
        "lenet": (nn.Sequential(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
                                nn.Linear(6 * 36, 10)), _image(1)),
        "vgg": (nn.Sequential(_conv(3, 8), _conv(8, 8), nn.MaxPool2d(2), _conv(8, 16), *head,
                              nn.Linear(16, 10)), _image()),
        "alexnet": (nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
                                  nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(),
                                  nn.Linear(32, 10)), _image()),
        "squeeze_excite": (Lambda(lambda gate, x: x * gate(x), squeeze), _image(8)),
        "fire": (Lambda(lambda a, b, x: torch.cat([a(x), b(x)], 1), *fire), _image(4)),
        "densenet": (Lambda(lambda a, b, x: torch.cat([y := torch.cat([x, a(x)], 1), b(y)], 1),
                            _conv(4, 4), _conv(8, 4)), _image(4)),
        "convnext": (Lambda(lambda body, x: x + body(x), next_block), _image(8, 12)),
        "shuffle": (nn.Sequential(nn.Conv2d(8, 8, 1, groups=2), nn.ChannelShuffle(2)), _image(8)),
        "group_norm_net": (nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8),
                                         nn.SiLU()), _image()),
        "instance_norm_net": (nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3),
                                            nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
                              _image()),
        "conv3d_net": (nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2)),
                       torch.randn(1, 2, 6, 6, 6)),
        "segmenter": (Lambda(lambda body, x: torch.argmax(functional.interpolate(
            body(x), scale_factor=2, mode="bilinear"), dim=1), _conv(3, 5, 2)), _image()),
        "uneven_pool": (nn.Sequential(_conv(3, 4), nn.AdaptiveAvgPool2d(5), nn.Flatten()),
                        _image()),
    }  # fmt: skip
    return {name: lambda pair=pair: (pair[0], (pair[1],)) for name, pair in layers.items()}


class _ChannelNorm(nn.Module):
    """Layer normalisation of the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normalised


def _generators() -> dict[str, Maker]:
    critic = nn.Sequential(nn.Conv2d(3, 6, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 4))
    upscale = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2))
    style = nn.Sequential(
        nn.Upsample(scale_factor=2),
        nn.ReflectionPad2d(1),
        nn.Conv2d(6, 4, 3),
        nn.InstanceNorm2d(4),
    )
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ELU())
    code = (nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(4, 64))

    def unet(down: Any, middle: Any, up: Any, last: Any, x: torch.Tensor) -> torch.Tensor:
        first = down(x)
        below = up(middle(functional.max_pool2d(first, 2)))
        result: torch.Tensor = last(torch.cat([first, below], 1))
        return result

    def vae(body: Any, mean: Any, scale: Any, back: Any, x: torch.Tensor) -> torch.Tensor:
        h = body(x)
        return torch.sigmoid(back(mean(h) + torch.exp(0.5 * scale(h))))

    parts = (_conv(3, 6), _conv(6, 8), nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, 2, 1))
    return {
        "dcgan_critic": lambda: (critic, (_image(),)),
        "super_resolution": lambda: (upscale, (_image(3, 12),)),
        "style_decoder": lambda: (style, (_image(6, 8),)),
        "unet": lambda: (Lambda(unet, *parts), (_image(),)),
        "vae": lambda: (Lambda(vae, encoder, *code), (torch.randn(1, 1, 8, 8),)),
    }


def _transformers() -> dict[str, Maker]:
    rows = torch.randn(1, 9, 16)
    return {
        "mixer": lambda: (Lambda(
            lambda n, a, b, x: (y := x + a(n(x).transpose(1, 2)).transpose(1, 2)) + b(y),
            nn.LayerNorm(16), nn.Linear(9, 9), nn.Linear(16, 16)), (rows,)),
        "sdpa": lambda: (Lambda(
            lambda q, k, x: functional.scaled_dot_product_attention(q(x), k(x), x),
            nn.Linear(16, 16), nn.Linear(16, 16)), (rows,)),
    }  # fmt: skip


def _recurrent() -> dict[str, Maker]:
    sequence = torch.randn(1, 3, 8)

    def cell(step: Any, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(1, 6)
        for t in range(x.shape[1]):
            h = step(x[:, t], h)
        return h

    return {
        "lstm": lambda: (
            Lambda(lambda net, x: net(x)[0], nn.LSTM(8, 6, batch_first=True)),
            (sequence,),
        ),
        "gru": lambda: (
            Lambda(lambda net, x: net(x)[0], nn.GRU(8, 6, batch_first=True)),
            (sequence,),
        ),
        "rnn_cell": lambda: (Lambda(cell, nn.RNNCell(8, 6)), (sequence,)),
        "gru_cell": lambda: (Lambda(cell, nn.GRUCell(8, 6)), (sequence,)),
        "conv1d_net": lambda: (
            nn.Sequential(nn.Conv1d(8, 12, 3, padding=2, dilation=2), nn.ReLU(), nn.MaxPool1d(2)),
            (torch.randn(1, 8, 31),),
        ),
    }


def _others() -> dict[str, Maker]:
    features = torch.randn(4, 20)
    return {
        "mlp": lambda: (nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5),
                                      nn.LogSoftmax(-1)), (features,)),
        "mlp_norms": lambda: (nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Mish(),
                                            nn.Linear(30, 5), nn.Softmax(-1)), (features,)),
        "recommender": lambda: (Lambda(
            lambda users, items, u, i: torch.sigmoid((users(u) * items(i)).sum(-1)),
            nn.Embedding(30, 8), nn.Embedding(40, 8)),
            (torch.randint(0, 30, (6,)), torch.randint(0, 40, (6,)))),
        "autoencoder": lambda: (nn.Sequential(nn.Linear(20, 6), nn.PReLU(), nn.Linear(6, 20),
                                              nn.Hardtanh()), (features,)),
        "gate_of_experts": lambda: (Lambda(
            lambda gate, a, b, x: (w := torch.softmax(gate(x), -1))[:, :1] * a(x)
            + w[:, 1:] * b(x), nn.Linear(20, 2), nn.Linear(20, 7), nn.Linear(20, 7)),
            (features,)),
    }  # fmt: skip
