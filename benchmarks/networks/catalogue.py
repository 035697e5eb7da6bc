"""Networks by name, whole or small, with their inputs; weights and inputs follow from a seed.

`NETWORKS` are written out here. Those of `OF_PACKAGES` are made by torchvision, timm and
transformers (the extra `networks`), with random weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.networks import convolutional, public, transformers

#: Element types with which networks are compared.
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """How a network and its inputs are made.

    Attributes:
        whole: makes the network of the papers.
        small: makes one of the same operators for a CPU.
        inputs: a batch, and whether the network is small -> its inputs.
        batch: with which it is compared.
    """

    whole: Callable[[], nn.Module]
    small: Callable[[], nn.Module]
    inputs: Callable[[int, bool], tuple[torch.Tensor, ...]]
    batch: int = 1


def _images(batch: int, small: bool) -> tuple[torch.Tensor, ...]:
    extent = 32 if small else 224
    return (torch.randn(batch, 3, extent, extent),)


def _videos(batch: int, small: bool) -> tuple[torch.Tensor, ...]:
    frames, extent = (4, 16) if small else (16, 112)
    return (torch.randn(batch, 3, frames, extent, extent),)


def _noise(batch: int, small: bool) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 8 if small else 100, 1, 1),)


def _tokens(batch: int, small: bool) -> tuple[torch.Tensor, ...]:
    rows, vocabulary = (8, 50) if small else (128, 30522)
    mask = torch.ones(batch, rows, dtype=torch.bool)
    mask[:, -2:] = False
    return torch.randint(0, vocabulary, (batch, rows)), mask


def _embedded(batch: int, small: bool) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, *((10, 32) if small else (100, 4096))),)


def _text(batch: int, small: bool) -> tuple[torch.Tensor, ...]:
    rows, vocabulary = (8, public.VOCABULARY) if small else (256, 50257)
    return (torch.randint(0, vocabulary, (batch, rows)),)


NETWORKS = {
    "resnet50": Network(
        convolutional.resnet, lambda: convolutional.resnet((2, 1), 8, 10), _images
    ),
    "mobilenet_v2": Network(
        convolutional.mobilenet,
        lambda: convolutional.mobilenet(((1, 8, 1, 1), (6, 8, 2, 2)), 8, 32, 10),
        _images,
    ),
    "r3d18": Network(convolutional.r3d, lambda: convolutional.r3d((1, 1), 8, 10), _videos),
    "dcgan": Network(convolutional.dcgan, lambda: convolutional.dcgan(8, 8, 2), _noise),
    "vit_b32": Network(
        transformers.ViT, lambda: transformers.ViT(32, 8, 32, 2, 4, 64, 10), _images
    ),
    "bert_base": Network(
        transformers.Bert, lambda: transformers.Bert(50, 32, 2, 4, 64, 16), _tokens
    ),
    "llama": Network(transformers.Llama, lambda: transformers.Llama(32, 88, 4, 2, 10), _embedded),
}


def _of_torchvision(name: str) -> Callable[[], nn.Module]:
    return _spread(lambda: public.made("torchvision.models", name))


def _of_public(name: str) -> Callable[[], nn.Module]:
    return _spread(public.NETWORKS[name].model)


def _of_text(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return _spread(lambda: public.Positional(make(), ["input_ids"], {"use_cache": False}))


def _spread(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A maker of a model without weights that are all equal."""

    def made() -> nn.Module:
        model = make()
        public.spread(model)
        return model

    return made


OF_PACKAGES = {
    "convnext_tiny": Network(_of_torchvision("convnext_tiny"), _of_public("convnext"), _images),
    "swin_t": Network(_of_torchvision("swin_t"), _of_public("swin"), _images),
    "efficientnet_b0": Network(
        _of_torchvision("efficientnet_b0"), _of_public("efficientnet"), _images, batch=8
    ),
    "gpt2": Network(
        _of_text(public.of_transformers("GPT2Model", "GPT2Config")), _of_text(public.GPT2), _text
    ),
}
EVERY = NETWORKS | OF_PACKAGES


def make(
    name: str,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    small: bool = False,
    seed: int = 0,
) -> tuple[nn.Module, tuple[Any, ...]]:
    """A network in inference mode and inputs for it; batch norms have statistics of their own.

    Raises:
        KeyError: no network has the name.
        ImportError: its package is not installed.
    """
    network = EVERY[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network.small() if small else network.whole()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                nn.init.uniform_(module.running_mean, -0.2, 0.2)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.2, 0.2)
        inputs = network.inputs(batch, small)
    cast = tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)
    return model.to(dtype).eval(), cast
