"""Small models of five kinds, as PyTorch modules with their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Patches(nn.Module):
    """A vision transformer: patches, a class token, positions, two encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) / 4)
        self.position = nn.Parameter(torch.randn(1, 10, 16) / 4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.head(self.encoder(tokens)[:, 0])


class Text(nn.Module):
    """A BERT: embeddings of tokens, types and positions, a masked encoder, a pooled classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.kind, self.position = nn.Embedding(50, 16), nn.Embedding(2, 16), nn.Embedding(12, 16)
        self.norm = nn.LayerNorm(16)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.up, self.down, self.last = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
        self.pool, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        words = self.word(input_ids)
        h = self.norm(words + self.kind(token_type_ids) + self.position.weight[: input_ids.shape[1]])
        q, k, v = (f(h).view(*h.shape[:2], 2, 8).transpose(1, 2) for f in (self.query, self.key, self.value))
        bias = (1.0 - attention_mask[:, None, None].float()) * -1e4
        scores = (q @ k.transpose(-1, -2) / 8**0.5 + bias).softmax(-1)
        h = h + (scores @ v).transpose(1, 2).reshape(h.shape)
        h = self.last(h + self.down(nn.functional.gelu(self.up(h))))
        return self.head(torch.tanh(self.pool(h[:, 0])))


class Series(nn.Module):
    """An LSTM of two layers whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 12, 2, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3, stride=2),
        nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


def _tabular() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1), nn.Flatten(0))


def _text_inputs() -> tuple[Tensor, ...]:
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    types = torch.zeros(3, 7, dtype=torch.int64)
    return torch.randint(1, 50, (3, 7)), mask, types


@dataclass(frozen=True)
class Case:
    """classes: of the scores; None: one score for each example. window: of an occlusion."""

    net: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    classes: int | None
    window: tuple[int, ...]

    def make(self) -> tuple[Any, tuple[Tensor, ...], list[int] | None]:
        """The module, inputs of three examples, and a class for each of them."""
        torch.manual_seed(0)
        net = self.net().eval()
        return net, self.inputs(), None if self.classes is None else [self.classes - 1, 0, 1]


CASES = {
    "cnn": Case(_cnn, lambda: (torch.randn(3, 3, 13, 11),), 5, (3, 4, 5)),
    "vit": Case(Patches, lambda: (torch.randn(3, 3, 12, 12),), 5, (3, 4, 4)),
    "bert": Case(Text, _text_inputs, 3, (2,)),
    "lstm": Case(Series, lambda: (torch.randn(3, 6, 5),), 4, (2, 5)),
    "tabular": Case(_tabular, lambda: (torch.randn(3, 9),), None, (2,)),
}
