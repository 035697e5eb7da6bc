"""Public networks of torchvision, timm and transformers, small, with random weights.

They have the operators of the whole ones and few layers. Weights that are all equal (factors of
norms, biases, scales of layers) are made random ones, too: what they hide would not be compared.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import library, nn

#: Tensors of a call by name.
Inputs: TypeAlias = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class PublicNetwork:
    """How a network is made.

    Attributes:
        model: makes it; weights are PyTorch's random numbers.
        inputs: draws the tensors of a call.
        options: arguments of every call that are no tensors.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def make(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A network in inference mode, and the keyword arguments of two calls.

    Raises:
        KeyError: no network has the name.
        ImportError: its package is not installed.
    """
    network = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = network.model().eval()
        spread(model)
        calls = [{**network.inputs(), **network.options} for _ in range(2)]
    return model, calls


class Positional(nn.Module):
    """A network that is called with its tensors by position.

    Args:
        model: the network.
        names: of the tensors.
        options: arguments of every call that are no tensors.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.options = model, tuple(names), dict(options)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)), **self.options)


def positional(name: str) -> tuple[Positional, tuple[torch.Tensor, ...]]:
    """A network and the inputs of a call, both by position; raises as `make` does."""
    model, (call, _) = make(name)
    options = NETWORKS[name].options
    tensors = {key: value for key, value in call.items() if key not in options}
    return Positional(model, list(tensors), options).eval(), tuple(tensors.values())


def spread(model: nn.Module) -> None:
    """Make weights and statistics random that are all equal."""
    statistics = [n for n, _ in model.named_buffers() if n.endswith(("_mean", "_var"))]
    tensors = [*model.parameters(), *map(model.get_buffer, statistics)]
    with torch.no_grad():
        for each in tensors:
            if each.numel() > 1 and bool((each == each.flatten()[0]).all()):
                each += torch.empty_like(each).uniform_(-0.2, 0.2)


def load_packages() -> None:
    """Import torchvision, which timm and transformers import, too.

    PyPI's build has some operators in a library that loads beside PyTorch's CUDA build alone, and
    is not imported without them. No network here calls them: it is enough to declare them.

    Raises:
        ImportError: it is not installed.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(f"torchvision::{name}", arguments)
        importlib.import_module("torchvision")


def _of_torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: made("torchvision.models", name, num_classes=10, **options)


def _convnext() -> nn.Module:
    block = functools.partial(made, "torchvision.models.convnext", "CNBlockConfig")
    blocks: list[Any] = [block(16, 24, 1), block(24, None, 2)]
    return made("torchvision.models", "ConvNeXt", blocks, num_classes=10)


def _of_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: made("timm", "create_model", name, num_classes=10, **options)


def made(module: str, function: str, *args: Any, **options: Any) -> nn.Module:
    """What a function of a package gives, by the names of both."""
    load_packages()
    model: nn.Module = getattr(importlib.import_module(module), function)(*args, **options)
    return model


def of_transformers(name: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A network of transformers by the names of its class and of its configuration's."""

    def made() -> nn.Module:
        load_packages()
        transformers: Any = importlib.import_module("transformers")
        model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options))
        return model

    return made


def _images(extent: int, name: str) -> Callable[[], Inputs]:
    return lambda: {name: torch.randn(1, 3, extent, extent)}


#: Tokens that there are, in a sentence, and left out of the second one; the first is for padding.
VOCABULARY, _ROWS, _PADDED = 100, 10, 3


def _tokens(padded: str | None = None) -> Callable[[], Inputs]:
    """Two sentences, the second one padded on the "left" or the "right"."""

    def drawn() -> Inputs:
        mask = torch.ones(2, _ROWS, dtype=torch.int64)
        if padded is not None:
            mask[1, :_PADDED] = 0
        if padded == "right":
            mask = mask.flip(1)
        return {"input_ids": torch.randint(3, VOCABULARY, (2, _ROWS)), "attention_mask": mask}

    return drawn


def _sequences() -> Inputs:
    return {**_tokens("right")(), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5))}


def _speech() -> Inputs:
    tokens = torch.randint(3, VOCABULARY, (1, 5))
    return {"input_features": torch.randn(1, 8, 40), "decoder_input_ids": tokens}


def _captions() -> Inputs:
    return {**_tokens("right")(), "pixel_values": torch.randn(1, 3, 32, 32)}


def _prompted() -> Inputs:
    points = torch.rand(1, 1, 2, 2) * 64
    labels = torch.ones(1, 1, 2, dtype=torch.int64)
    image = torch.randn(1, 3, 64, 64)
    return {"pixel_values": image, "input_points": points, "input_labels": labels}


#: With the usual spread of .02 an attention of random weights is nearly a mean.
_SPREAD = {"initializer_range": 0.2}
_NAMED_BY_MOST = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    **_SPREAD,
}
_ENCODER = {**_NAMED_BY_MOST, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
DECODER = {**_ENCODER, "num_key_value_heads": 2, "pad_token_id": 0}
_LAYERS_OF_BOTH = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "init_std": 0.2,
}
GPT2 = of_transformers(
    "GPT2LMHeadModel", "GPT2Config",
    n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCABULARY, **_SPREAD,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
OPT = of_transformers(
    "OPTForCausalLM", "OPTConfig",
    hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, init_std=0.2,
    vocab_size=VOCABULARY, max_position_embeddings=64, word_embed_proj_dim=32,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
_UNCACHED = {"use_cache": False}
NETWORKS = {
    "resnet18": PublicNetwork(_of_torchvision("resnet18"), _images(64, "x")),
    "densenet": PublicNetwork(
        _of_torchvision(
            "DenseNet", growth_rate=8, block_config=(2, 2, 3), num_init_features=16
        ),
        _images(64, "x"),
    ),
    "mobilenet_v3_small": PublicNetwork(_of_torchvision("mobilenet_v3_small"), _images(64, "x")),
    "convnext": PublicNetwork(_convnext, _images(32, "x")),
    "swin": PublicNetwork(
        _of_torchvision(
            "SwinTransformer", patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4],
            window_size=[4, 4],
        ),
        _images(32, "x"),
    ),
    "efficientnet": PublicNetwork(_of_timm("test_efficientnet"), _images(64, "x")),
    "efficientformerv2": PublicNetwork(
        _of_timm(
            "efficientformerv2_s0", img_size=64, depths=(1, 1, 2, 2), embed_dims=(8, 16, 24, 32),
            num_vit=1, mlp_ratios=4,
        ),
        _images(64, "x"),
    ),
    "gpt2": PublicNetwork(GPT2, _tokens("left"), _UNCACHED),
    "opt": PublicNetwork(OPT, _tokens("left"), _UNCACHED),
    "llama": PublicNetwork(
        of_transformers("LlamaForCausalLM", "LlamaConfig", **DECODER), _tokens("left"), _UNCACHED
    ),
    "qwen2": PublicNetwork(
        of_transformers("Qwen2ForCausalLM", "Qwen2Config", **DECODER), _tokens("left"), _UNCACHED
    ),
    "mixtral": PublicNetwork(
        of_transformers(
            "MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **DECODER
        ),
        _tokens("left"),
        _UNCACHED,
    ),
    "bert": PublicNetwork(
        of_transformers("BertModel", "BertConfig", **_ENCODER), _tokens("right")
    ),
    "t5": PublicNetwork(
        of_transformers(
            "T5ForConditionalGeneration", "T5Config",
            d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=VOCABULARY,
            pad_token_id=0, decoder_start_token_id=0,
        ),
        _sequences,
        _UNCACHED,
    ),
    "whisper": PublicNetwork(
        of_transformers(
            "WhisperForConditionalGeneration", "WhisperConfig",
            num_mel_bins=8, max_source_positions=20, max_target_positions=16,
            vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
            **_LAYERS_OF_BOTH,
        ),
        _speech,
        _UNCACHED,
    ),
    "vit": PublicNetwork(
        of_transformers(
            "ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8,
            **_NAMED_BY_MOST,
        ),
        _images(32, "pixel_values"),
    ),
    "clip": PublicNetwork(
        of_transformers(
            "CLIPModel", "CLIPConfig",
            text_config={**_ENCODER, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
            vision_config={**_NAMED_BY_MOST, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        ),
        _captions,
    ),
    "sam": PublicNetwork(
        of_transformers(
            "SamModel", "SamConfig",
            vision_config={
                **_SPREAD, "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2,
                "num_attention_heads": 4, "image_size": 64, "patch_size": 8, "mlp_dim": 64,
                "window_size": 3, "global_attn_indexes": [1], "num_pos_feats": 8,
            },
            prompt_encoder_config={
                "hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4,
            },
            mask_decoder_config={
                "hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2,
                "num_hidden_layers": 2, "iou_head_hidden_dim": 16,
            },
        ),
        _prompted,
    ),
    "detr": PublicNetwork(
        of_transformers(
            "DetrForObjectDetection", "DetrConfig",
            use_timm_backbone=False, use_pretrained_backbone=False, num_queries=6, num_labels=3,
            backbone_config={
                "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32],
                "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": ["stage4"],
            },
            **_LAYERS_OF_BOTH,
        ),
        _images(64, "pixel_values"),
    ),
    "segformer": PublicNetwork(
        of_transformers(
            "SegformerForSemanticSegmentation", "SegformerConfig",
            depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32], decoder_hidden_size=16,
            num_attention_heads=[1, 2, 2, 4], num_labels=5, **_SPREAD,
        ),
        _images(64, "pixel_values"),
    ),
}  # fmt: skip
