"""Tiny networks of the families that forecast series: batch x channels x time -> batch x channels x horizon."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

HORIZON = 7
CHANNELS = 3


class CausalBlock(nn.Module):
    """Of a temporal convolution network (Bai et al., 2018)."""

    def __init__(self, cin: int, cout: int, dilation: int):
        super().__init__()
        self.past = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.first = weight_norm(nn.Conv1d(cin, cout, 3, dilation=dilation))
        self.second = weight_norm(nn.Conv1d(cout, cout, 3, dilation=dilation))
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(self.past(x)))
        y = torch.relu(self.second(self.past(y)))
        return torch.relu(y + self.skip(x))


class TCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (CHANNELS, 12, 12, 16)
        pairs = pairwise(widths)
        self.blocks = nn.Sequential(*(CausalBlock(a, b, 2**i) for i, (a, b) in enumerate(pairs)))
        self.head = nn.Linear(widths[-1], CHANNELS * HORIZON)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)[:, :, -1]).unflatten(1, (CHANNELS, HORIZON))


class DLinear(nn.Module):
    """A trend and what is left of it, each with a linear layer (Zeng et al., 2022)."""

    def __init__(self, length: int = 36, window: int = 5):
        super().__init__()
        self.ends = nn.ReplicationPad1d((window // 2, window // 2))
        self.mean = nn.AvgPool1d(window, 1)
        self.trend, self.season = nn.Linear(length, HORIZON), nn.Linear(length, HORIZON)

    def forward(self, x: Tensor) -> Tensor:
        trend = self.mean(self.ends(x))
        return self.trend(trend) + self.season(x - trend)


class PatchTST(nn.Module):
    """Patches of each channel as tokens, values normalized by the series' own moments (Nie et al., 2022)."""

    def __init__(self, length: int = 36, patch: int = 8, stride: int = 4, width: int = 16):
        super().__init__()
        self.patch, self.stride = patch, stride
        count = (length - patch) // stride + 1
        self.embed, self.places = nn.Linear(patch, width), nn.Parameter(torch.randn(count, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 2, 32, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(count * width, HORIZON)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = x.mean(2, keepdim=True), (x.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt()
        tokens = self.embed(((x - mean) / scale).unfold(2, self.patch, self.stride)) + self.places
        encoded = self.encoder(tokens.flatten(0, 1)).flatten(1)
        return self.head(encoded).unflatten(0, (-1, CHANNELS)) * scale + mean
