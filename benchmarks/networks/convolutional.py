"""Convolution networks: ResNet-50, MobileNet-v2, R3D-18 and the generator of DCGAN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class _Residual(nn.Module):
    """relu(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _conv2d(i: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(o)]


def _bottleneck(i: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        *_conv2d(i, width, 1),
        nn.ReLU(),
        *_conv2d(width, width, 3, stride),
        nn.ReLU(),
        *_conv2d(width, 4 * width, 1),
    )
    is_same = stride == 1 and i == 4 * width
    shortcut = nn.Identity() if is_same else nn.Sequential(*_conv2d(i, 4 * width, 1, stride))
    return _Residual(body, shortcut)


def resnet(
    depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
) -> nn.Module:
    """A residual network of bottlenecks (He et al., 2016); the defaults are ResNet-50."""
    layers = [*_conv2d(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(_bottleneck(channels, width << stage, stride))
            channels = 4 * (width << stage)
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pool, nn.Linear(channels, classes))


class _InvertedResidual(nn.Module):
    def __init__(self, i: int, o: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = i * expansion
        expand = [*_conv2d(i, hidden, 1), nn.ReLU6()] if expansion > 1 else []
        depthwise = [*_conv2d(hidden, hidden, 3, stride, hidden), nn.ReLU6()]
        self.body = nn.Sequential(*expand, *depthwise, *_conv2d(hidden, o, 1))
        self.is_residual = stride == 1 and i == o

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


#: (expansion, channels, blocks, stride of the first) of the stages of MobileNet-v2.
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet(
    stages: Sequence[tuple[int, int, int, int]] = MOBILENET_STAGES,
    first: int = 32,
    last: int = 1280,
    classes: int = 1000,
) -> nn.Module:
    """A network of inverted residuals (Sandler et al., 2018); the defaults are MobileNet-v2."""
    layers: list[nn.Module] = [*_conv2d(3, first, 3, 2), nn.ReLU6()]
    channels = first
    for expansion, width, blocks, stride in stages:
        for block in range(blocks):
            step = stride if block == 0 else 1
            layers.append(_InvertedResidual(channels, width, step, expansion))
            channels = width
    layers += [*_conv2d(channels, last, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(last, classes))


def _conv3d(i: int, o: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv3d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm3d(o)]


def r3d(depths: Sequence[int] = (2, 2, 2, 2), width: int = 64, classes: int = 400) -> nn.Module:
    """A residual network of 3-D convolutions (Tran et al., 2018); the defaults are R3D-18."""
    stem = nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm3d(width), nn.ReLU()]
    channels = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            o, stride = width << stage, 2 if stage > 0 and block == 0 else 1
            body = [*_conv3d(channels, o, 3, stride), nn.ReLU(), *_conv3d(o, o, 3)]
            is_same = stride == 1 and channels == o
            shortcut = [] if is_same else _conv3d(channels, o, 1, stride)
            layers.append(_Residual(nn.Sequential(*body), nn.Sequential(*shortcut)))
            channels = o
    pool = [nn.AdaptiveAvgPool3d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pool, nn.Linear(channels, classes))


def dcgan(noise: int = 100, width: int = 64, doublings: int = 3) -> nn.Module:
    """The generator of DCGAN (Radford et al., 2016): the defaults make images of 64 x 64."""
    channels = width << doublings
    conv = nn.ConvTranspose2d(noise, channels, 4, 1, 0, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(channels), nn.ReLU()]
    for _ in range(doublings):
        conv = nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False)
        layers += [conv, nn.BatchNorm2d(channels // 2), nn.ReLU()]
        channels //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh())
