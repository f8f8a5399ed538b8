"""Tiny networks of the families that Ingot promises, in plain PyTorch: the real structure with few parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.forecasters import CHANNELS, TCN, DLinear, PatchTST


def conv_bn(cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout))


class Bottleneck(nn.Module):
    def __init__(self, cin: int, mid: int, cout: int, stride: int = 1):
        super().__init__()
        self.a, self.b, self.c = conv_bn(cin, mid, 1), conv_bn(mid, mid, 3, stride), conv_bn(mid, cout, 1)
        self.shortcut = conv_bn(cin, cout, 1, stride) if stride > 1 or cin != cout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.b(F.relu(self.a(x))))
        return F.relu(self.c(y) + self.shortcut(x))


def resnet() -> nn.Module:
    stem = nn.Sequential(conv_bn(3, 16, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = nn.Sequential(Bottleneck(16, 8, 32), Bottleneck(32, 8, 32), Bottleneck(32, 16, 48, 2))
    return nn.Sequential(stem, blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    def __init__(self, cin: int, wide: int, cout: int, kernel: int, stride: int = 1):
        super().__init__()
        self.expand, self.depth = conv_bn(cin, wide, 1), conv_bn(wide, wide, kernel, stride, wide)
        self.scale, self.project = SqueezeExcite(wide), conv_bn(wide, cout, 1)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.scale(F.hardswish(self.depth(F.hardswish(self.expand(x))))))
        return x + y if self.residual else y


def mobilenet() -> nn.Module:
    blocks = nn.Sequential(Inverted(16, 24, 16, 3), Inverted(16, 40, 24, 5, 2), Inverted(24, 56, 24, 5))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    return nn.Sequential(conv_bn(3, 16, 3, 2), nn.Hardswish(), blocks, head)


class DenseLayer(nn.Module):
    def __init__(self, cin: int, growth: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, 2 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return torch.cat([x, y], 1)


def densenet() -> nn.Module:
    block = nn.Sequential(*(DenseLayer(16 + 8 * i, 8) for i in range(4)))
    downsample = nn.Sequential(nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 24, 1, bias=False), nn.AvgPool2d(2))
    layers = nn.Sequential(*(DenseLayer(24 + 8 * i, 8) for i in range(3)))
    head = nn.Sequential(nn.BatchNorm2d(48), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    return nn.Sequential(conv_bn(3, 16, 3, 2), nn.ReLU(), block, downsample, layers, head)


class ConvNextBlock(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.depth, self.norm = nn.Conv2d(channels, channels, 7, 1, 3, groups=channels), nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 16, 4, 4), ChannelNorm(16))
    downsample = nn.Sequential(ChannelNorm(16), nn.Conv2d(16, 24, 2, 2))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 10))
    return nn.Sequential(stem, ConvNextBlock(16), downsample, ConvNextBlock(24), head)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (self._pair(i, o) for i, o in ((3, 8), (8, 16), (16, 24)))
        self.up1, self.up2 = nn.ConvTranspose2d(24, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.d, self.e, self.out = self._pair(32, 16), self._pair(16, 8), nn.Conv2d(8, 2, 1)

    @staticmethod
    def _pair(cin: int, cout: int) -> nn.Sequential:
        return nn.Sequential(conv_bn(cin, cout), nn.ReLU(), conv_bn(cout, cout), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        d = self.d(torch.cat([b, self.up1(c)], 1))
        return self.out(self.e(torch.cat([a, self.up2(d)], 1)))


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer layer that normalizes first (pre) or last (post)."""

    def __init__(self, width: int, heads: int, causal: bool = False, pre: bool = True, gelu: str = "none"):
        super().__init__()
        self.attention = SelfAttention(width, heads, causal)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.pre, self.gelu = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), pre, gelu

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.gelu))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.pre:
            x = x + self.attention(self.norm1(x), mask)
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mlp(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, 32, 8, 8), nn.LayerNorm(32), nn.Linear(32, 10)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32))
        self.blocks = nn.ModuleList(Block(32, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.kinds = nn.Embedding(50, 32), nn.Embedding(64, 32), nn.Embedding(2, 32)
        self.norm, self.blocks = nn.LayerNorm(32), nn.ModuleList(Block(32, 2, pre=False) for _ in range(2))

    def forward(self, ids: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1])
        x = self.norm(self.words(ids) + self.positions(at) + self.kinds(kinds))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, hidden)
        return x


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.norm = nn.Embedding(50, 32), nn.Embedding(64, 32), nn.LayerNorm(32)
        self.blocks = nn.ModuleList(Block(32, 2, causal=True, gelu="tanh") for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.T


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, keys: int):
        super().__init__()
        self.heads, self.keys, self.depth = heads, keys, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, keys * self.depth, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        q = rotate(self.q(y).view(batch, length, self.heads, self.depth).transpose(1, 2), cos, sin)
        k = rotate(self.k(y).view(batch, length, self.keys, self.depth).transpose(1, 2), cos, sin)
        v = self.v(y).view(batch, length, self.keys, self.depth).transpose(1, 2)
        k, v = (self._repeat(t, batch, length) for t in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.depth) + mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(y)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _repeat(self, x: Tensor, batch: int, length: int) -> Tensor:
        groups = self.heads // self.keys
        wide = x[:, :, None].expand(batch, self.keys, groups, length, self.depth)
        return wide.reshape(batch, self.heads, length, self.depth)


class Llama(nn.Module):
    rates: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(50, 32), RMSNorm(32), nn.Linear(32, 50, bias=False)
        self.layers = nn.ModuleList(LlamaLayer(32, 4, 2) for _ in range(2))
        self.register_buffer("rates", 10000.0 ** (-torch.arange(0, 8, 2) / 8))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        at = torch.arange(ids.shape[1])
        angles = torch.cat([at[:, None] * self.rates] * 2, -1)
        mask = torch.where(at[None, :] <= at[:, None], 0.0, -math.inf)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        return self.head(self.norm(x))


class Whisper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(20, 32, 3, 1, 1), nn.Conv1d(32, 32, 3, 2, 1)
        self.positions, self.norm = nn.Parameter(torch.randn(60, 32)), nn.LayerNorm(32)
        self.blocks = nn.ModuleList(Block(32, 2) for _ in range(2))

    def forward(self, mel: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(12, 20, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


Axes = tuple[dict[int, str], ...]
IMAGE: Axes = ({0: "batch"},)
TEXT = {0: "batch", 1: "length"}


@dataclass(frozen=True)
class Family:
    """A network, its inputs for (batch, length), and their dynamic axes; `lengths`: of the two runs."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[Tensor, ...]]
    axes: Axes
    lengths: Sequence[int] = (0, 0)


def _images(size: int) -> Callable[[int, int], tuple[Tensor, ...]]:
    return lambda batch, _: (torch.randn(batch, 3, size, size),)


def _ids(batch: int, length: int) -> Tensor:
    return torch.randint(50, (batch, length))


def _bert_inputs(batch: int, length: int) -> tuple[Tensor, ...]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return _ids(batch, length), mask, torch.randint(2, (batch, length))


def _series(batch: int, length: int) -> tuple[Tensor]:
    return (torch.randn(batch, CHANNELS, length).cumsum(2),)


FAMILIES: dict[str, Family] = {
    "resnet": Family(resnet, _images(40), IMAGE),
    "mobilenet": Family(mobilenet, _images(33), IMAGE),
    "densenet": Family(densenet, _images(32), IMAGE),
    "convnext": Family(convnext, _images(32), IMAGE),
    "unet": Family(UNet, _images(24), IMAGE),
    "vit": Family(ViT, _images(32), IMAGE),
    "bert": Family(Bert, _bert_inputs, (TEXT, TEXT, TEXT), (16, 21)),
    "gpt2": Family(GPT2, lambda b, n: (_ids(b, n),), (TEXT,), (16, 21)),
    "llama": Family(Llama, lambda b, n: (_ids(b, n),), (TEXT,), (16, 21)),
    "whisper": Family(Whisper, lambda b, n: (torch.randn(b, 20, 2 * n),), IMAGE, (25, 25)),
    "lstm": Family(Recurrent, lambda b, n: (torch.randn(b, n, 12),), IMAGE, (9, 9)),
    "tcn": Family(TCN, _series, ({0: "batch", 2: "time"},), (36, 45)),
    "dlinear": Family(DLinear, _series, IMAGE, (36, 36)),
    "patchtst": Family(PatchTST, _series, IMAGE, (36, 36)),
}


def build_net(name: str) -> nn.Module:
    """A seeded network in eval mode whose norms are far from the identity, so that a wrong fold shows."""
    torch.manual_seed(0)
    net = FAMILIES[name].build().eval()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
            if isinstance(module, nn.BatchNorm2d):
                module.get_buffer("running_mean").normal_(0, 0.1)
                module.get_buffer("running_var").uniform_(0.5, 1.5)
    return net
