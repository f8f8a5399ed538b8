"""Llama's decoder with random weights (Touvron et al., 2023; sizes of Llama 3.2 1B): over a whole sequence, and for one
token beside caches that are written in place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, LAYERS, HEADS, SHARED, HIDDEN, WORDS = 2048, 16, 32, 8, 8192, 128256
HEAD = WIDTH // HEADS


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def turned(x: Tensor, at: Tensor) -> Tensor:
    """Rotary positions of [batch, heads, places, HEAD]."""
    rates = 500000.0 ** (-torch.arange(0, HEAD, 2, device=x.device) / HEAD)
    angles = at[:, None] * rates
    cos, sin = (f(angles).repeat(1, 2).to(x.dtype) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):
    """places: of the caches; 0: there are none."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.q, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, SHARED * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        if places:
            self.register_buffer("keys", torch.randn(1, SHARED, places, HEAD))
            self.register_buffer("values", torch.randn(1, SHARED, places, HEAD))
        self.places = places

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.before(x)
        q, k, v = (f(y).view(batch, length, -1, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = turned(q, at), turned(k, at)
        mask = None
        if self.places:
            k = self.get_buffer("keys").index_copy_(2, at, k)
            v = self.get_buffer("values").index_copy_(2, at, v)
            mask = torch.arange(self.places, device=x.device) <= at[:, None]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """ids [1, length], at [length]: their places. Logits of the last one."""

    def __init__(self, places: int = 0, layers: int = LAYERS) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(places) for _ in range(layers))
        self.norm = Norm()

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, at)
        return self.norm(x[:, -1:]) @ self.words.weight.T


def llama(length: int, places: int = 0, layers: int = LAYERS) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network in bfloat16, and inputs: so many tokens, the last of them behind all places of the caches."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        net = Llama(places, layers)
    finally:
        torch.set_default_dtype(torch.float32)
    first = max(places - length, 0)
    return net, (torch.randint(0, WORDS, (1, length)), torch.arange(first, first + length))
