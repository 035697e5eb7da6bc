"""Transformers: ViT, BERT and blocks of LLaMA."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, rows, heads * width] as [batch, heads, rows, width]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class _Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (_heads(t, self.heads) for t in self.project_in(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.project_out(y.transpose(1, 2).flatten(2))


def _mlp(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class _PreNormBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attention, self.mlp = _Attention(width, heads), _mlp(width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2021); the defaults are ViT-B/32."""

    def __init__(
        self,
        image: int = 224,
        patch: int = 32,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        hidden: int = 3072,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        rows = (image // patch) ** 2 + 1
        self.positions = nn.Parameter(torch.randn(1, rows, width) * 0.02)
        self.blocks = nn.Sequential(*(_PreNormBlock(width, heads, hidden) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores [batch, classes] of images [batch, 3, image, image]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class _PostNormBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.attention, self.mlp = _Attention(width, heads), _mlp(width, hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](x + self.attention(x, mask))
        return self.norms[1](x + self.mlp(x))


class Bert(nn.Module):
    """An encoder of text (Devlin et al., 2019); the defaults are BERT-base."""

    def __init__(
        self,
        vocabulary: int = 30522,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        hidden: int = 3072,
        positions: int = 512,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(_PostNormBlock(width, heads, hidden) for _ in range(depth))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Hidden states and the pooled one of tokens [batch, rows] and a mask of that shape."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens))
        x = self.norm(x)
        for block in self.blocks:
            x = block(x, mask[:, None, None, :])
        return {"hidden": x, "pooled": torch.tanh(self.pooler(x[:, 0]))}


class _LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (_heads(layer(y), self.heads) for layer in (self.q, self.k, self.v))
        q, k = (t * cos + _rotated(t) * sin for t in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotated(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


class Llama(nn.Module):
    """Decoder blocks (Touvron et al., 2023) without the embedding; the widths are LLaMA-7B's."""

    def __init__(
        self,
        width: int = 4096,
        hidden: int = 11008,
        heads: int = 32,
        depth: int = 4,
        rows: int = 100,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_LlamaBlock(width, heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        half = torch.arange(0, width // heads, 2) / (width // heads)
        angles = torch.arange(rows)[:, None] / 10000**half
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states of embedded tokens, both [batch, rows, width]."""
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.norm(x)
