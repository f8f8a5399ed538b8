"""The U-Net of Stable Diffusion 1.5, at its full width, in plain PyTorch.

Rombach et al. 2022. Four levels of residual blocks, three of them with transformers that look at the text.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS, HEADS, TEXT, EMBEDDING = (320, 640, 1280, 1280), 8, 768, 1280
LAYERS = 2  # residual blocks of a level on the way down, one less than on the way up


class _Residual(nn.Module):
    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, ins), nn.Conv2d(ins, outs, 3, padding=1)
        self.time = nn.Linear(EMBEDDING, outs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outs), nn.Conv2d(outs, outs, 3, padding=1)
        self.skip = nn.Identity() if ins == outs else nn.Conv2d(ins, outs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class _Attention(nn.Module):
    def __init__(self, width: int, other: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(n, width, bias=False) for n in (width, other, other))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        q, k, v = (f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f, y in
                   ((self.q, x), (self.k, other), (self.v, other)))  # fmt: skip
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.into = nn.GroupNorm(32, width, eps=1e-6), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = _Attention(width, width), _Attention(width, TEXT)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        own, about, gated = self.norms
        y = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        z = own(y)
        y = y + self.own(z, z)
        y = y + self.text(about(y), text)
        value, gate = self.up(gated(y)).chunk(2, -1)
        y = y + self.down(value * F.gelu(gate))
        return x + self.out(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class _Level(nn.Module):
    """Residual blocks, each with a transformer behind it or none."""

    def __init__(self, ins: list[int], outs: int, looks: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Residual(n, outs) for n in ins)
        self.transformers = nn.ModuleList(_Transformer(outs) if looks else nn.Identity() for _ in ins)
        self.looks = looks

    def forward(self, number: int, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.blocks[number](x, time)
        return self.transformers[number](x, text) if self.looks else x


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        first, last = widths[0], len(widths) - 1
        self.first = first
        self.embed = nn.Sequential(nn.Linear(first, EMBEDDING), nn.SiLU(), nn.Linear(EMBEDDING, EMBEDDING))
        self.into = nn.Conv2d(4, first, 3, padding=1)
        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        skips, before = [first], first
        for level, width in enumerate(widths):
            self.down.append(_Level([before, *[width] * (LAYERS - 1)], width, level < last))
            skips += [width] * LAYERS
            if level < last:
                self.smaller.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
            before = width
        self.middle = _Level([before, before], before, False)
        self.look = _Transformer(before)
        for level, width in reversed([*enumerate(widths)]):
            ins = []
            for _ in range(LAYERS + 1):
                ins.append(before + skips.pop())
                before = width
            self.up.append(_Level(ins, width, level < last))
            if level:
                self.larger.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.out = nn.GroupNorm(32, first), nn.Conv2d(first, 4, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """x: [batch, 4, height, width]. time: [batch], of 1000 steps. text: [batch, tokens, 768]."""
        rates = torch.exp(torch.arange(self.first // 2, device=x.device) * (-math.log(10000) / (self.first // 2)))
        angles = time.float()[:, None] * rates
        t = self.embed(torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype))
        x = self.into(x)
        skips = [x]
        for level, part in enumerate(self.down):
            for number in range(LAYERS):
                x = part(number, x, t, text)
                skips.append(x)
            if level < len(self.smaller):
                x = self.smaller[level](x)
                skips.append(x)
        x = self.middle(1, self.look(self.middle(0, x, t, text), text), t, text)
        for level, part in enumerate(self.up):
            for number in range(LAYERS + 1):
                x = part(number, torch.cat([x, skips.pop()], 1), t, text)
            if level < len(self.larger):
                x = self.larger[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.norm(x)))


def unet(batch: int, size: int = 64, tokens: int = 77) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """For images of 8 * size pixels a side."""
    text = torch.randn(batch, tokens, TEXT)
    return UNet(), (torch.randn(batch, 4, size, size), torch.randint(0, 1000, (batch,)), text)


__all__ = ["UNet", "unet"]
