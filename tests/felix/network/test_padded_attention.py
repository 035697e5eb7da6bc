"""Attentions with rows that no key is left for, as the padding before a sentence has: zeros."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch import nn
from torch.nn import functional

from felix import frontend
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support import backend, networks
from tests.support.modules import Called

_HEADS, _EXTENT, _VOCABULARY = 2, 8, 20


class Decoder(nn.Module):
    """Attends to earlier tokens that are no padding, by scores of one token behind the last."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(_VOCABULARY, _EXTENT)
        self.places = nn.Embedding(16, _EXTENT)
        self.heads = nn.Linear(_EXTENT, 3 * _EXTENT)
        self.norm = nn.LayerNorm(_EXTENT)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n_sentences, n_rows = tokens.shape
        x = self.table(tokens) + self.places((mask.cumsum(-1) - 1).clamp(min=0))
        split = self.heads(x).view(n_sentences, n_rows, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        batch, rows = torch.arange(n_sentences), torch.arange(n_rows)
        is_there = mask.bool()[batch[:, None, None, None], rows[None, None, None, :]]
        allowed = is_there & (rows[:, None] >= rows[None, :])
        y = functional.scaled_dot_product_attention(*split.unbind(), attn_mask=allowed)
        y = y.transpose(1, 2).reshape(n_sentences, n_rows, _EXTENT)
        return self.norm(x + y) @ self.table.weight.T


def _prompts() -> tuple[torch.Tensor, torch.Tensor]:
    tokens, mask = torch.randint(1, _VOCABULARY, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    tokens[1, :3], mask[1, :3] = 0, 0
    return tokens, mask


@pytest.mark.slow("builds a decoder for two lengths")
@torch.no_grad()
def test_a_decoder_padded_on_the_left_chooses_the_tokens_of_pytorch(
    everything_known: pathlib.Path,
) -> None:
    torch.manual_seed(0)
    model, (tokens, mask) = Decoder().eval(), _prompts()
    fast = backend.compiled(model, everything_known)
    for given in (mask, mask.flip(0)):
        networks.assert_same(fast, model, tokens, given)
        assert torch.equal(fast(tokens, given).argmax(-1), model(tokens, given).argmax(-1))
    (only,) = backend.parts()
    assert only.is_tuned
    assert backend.tuned_operators() >= {"scaled_dot_product_attention", "index"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_keys_are_as_in_pytorch(dtype: torch.dtype) -> None:
    """Masks are of booleans, of minus infinity, and of the least number, which leaves means."""
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    allowed[1, :, :, :2] = False
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype)
    masks = [
        allowed,
        torch.zeros((), dtype=dtype).where(allowed, -torch.inf),
        torch.zeros((), dtype=dtype).where(allowed, least),
    ]
    torch.manual_seed(0)
    operands = [torch.randn(2, 2, 5, 8).to(dtype) for _ in range(3)]
    model = Called(
        lambda *tensors: [
            functional.scaled_dot_product_attention(*tensors[:3], attn_mask=mask)
            for mask in tensors[3:]
        ]
    )
    expected = model(*operands, *masks)
    assert not expected[0][1, :, :2].any() and expected[2][1, :, :2].any()
    imported = frontend.import_torch(model, (*operands, *masks))
    results = run(imported, frontend.lowered(imported), (*operands, *masks))
    assert_agrees(results, expected, 2e-5 if dtype is torch.float32 else 4e-2)
