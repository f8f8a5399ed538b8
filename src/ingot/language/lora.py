"""Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685), merged into weights as these are read.

weight  ->  weight + scale * b @ a
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, deferred_const
from ingot.ir.types import TensorType, f32
from ingot.language.weights import Weights
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError


@dataclass(frozen=True, eq=False)
class LowRank:
    """a: f32[rank, inputs], b: f32[outputs, rank]. transposed: whether the weight is stored [inputs, outputs]."""

    a: np.ndarray
    b: np.ndarray
    scale: float
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight."""
        shape = self.b.shape[0], self.a.shape[1]
        return (shape[1], shape[0]) if self.transposed else shape

    def reordered(self, heads: int) -> LowRank:
        """The adapter of a weight whose heads interleave the rows of their two halves; not for transposed ones."""
        b = self.b.reshape(heads, 2, -1, self.b.shape[1]).swapaxes(1, 2).reshape(self.b.shape)
        return replace(self, b=b)

    def delta(self) -> np.ndarray:
        """The difference to the weight: f32 of `shape`."""
        product = self.scale * (self.b.astype(np.float32) @ self.a.astype(np.float32))
        return product.T if self.transposed else product


class MergedWeights:
    """Weights with merged adapters. A weight that an adapter changes is float32, regardless of the file's format."""

    def __init__(self, weights: Weights, adapters: Sequence[Mapping[str, LowRank]]) -> None:
        """adapters: each by the names of weights. Raises ImportModelError for an adapter of another model."""
        self._weights = weights
        self._adapters: dict[str, list[LowRank]] = {}
        for adapter in adapters:
            for name, part in adapter.items():
                if name not in weights:
                    expected = f"one for tensors of the model, such as {next(iter(weights.names), 'none')}"
                    raise ImportModelError("the adapter", expected=expected, got=f"one for {name}")
                if weights.shape(name) != part.shape:
                    got = f"one of {list(part.shape)} for {name}"
                    raise ImportModelError("the adapter", expected=f"one of {list(weights.shape(name))}", got=got)
                self._adapters.setdefault(name, []).append(part)
        self._merged = cache(self._merge)

    @property
    def names(self) -> Collection[str]:
        return self._weights.names

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(name)

    def matrix(self, name: str) -> Node:
        return self._merged(name) if name in self._adapters else self._weights.matrix(name)

    def vector(self, name: str) -> Node:
        return self._merged(name) if name in self._adapters else self._weights.vector(name)

    def rows(self, name: str, ids: Node) -> Node:
        if name in self._adapters:
            return ops.Take(0)(self._merged(name), ids, loc=name)
        return self._weights.rows(name, ids)

    def _merge(self, name: str) -> Node:
        """A constant that is computed when the program is packed, so that only one weight at a time is in memory."""
        parts, base = self._adapters[name], self._weights.matrix(name)

        def merged() -> np.ndarray:
            (weight,) = interpret(Graph((), (base,)), [])
            return np.add(weight, sum(part.delta() for part in parts), dtype=np.float32)

        return deferred_const(TensorType(f32, self.shape(name)), merged, name)
