"""Adapters of a model, merged into weights as these are read: low-rank ones (LoRA, Hu et al. 2021,
https://arxiv.org/abs/2106.09685; with magnitudes DoRA, Liu et al. 2024, https://arxiv.org/abs/2402.09353), and tensors
that were trained as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, deferred_const
from ingot.ir.types import TensorType, f32
from ingot.language.architecture import Architecture
from ingot.language.weights import Weights
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError


class Change(ABC):
    """What an adapter makes of a tensor of `shape`. combines: whether other adapters may change the same tensor.
    is_tied: whether a change of the table is also one of the output that is the same tensor."""

    is_tied: ClassVar[bool] = False

    @property
    def combines(self) -> bool:
        return True

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of `shape` may be changed so."""
        return self.shape == shape

    def equals(self, other: Change) -> bool:
        """Whether both are known to change a tensor alike."""
        return False

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def applied(self, weight: np.ndarray) -> np.ndarray:
        """The tensor after the change: f32."""

    @abstractmethod
    def reordered(self, heads: int) -> Change:
        """The change of a tensor whose heads interleave the rows of their two halves; not of transposed matrices."""


@dataclass(frozen=True, eq=False)
class LowRank(Change):
    """weight  ->  weight + scale * b @ a, each row then brought to its length in `magnitude`, if there is one.

    a: f32[rank, inputs], b: f32[outputs, rank], magnitude: f32[outputs]. transposed: whether the weight is stored
    [inputs, outputs].
    """

    a: np.ndarray
    b: np.ndarray
    scale: float
    transposed: bool = False
    magnitude: np.ndarray | None = None

    @property
    def combines(self) -> bool:
        return self.magnitude is None

    def equals(self, other: Change) -> bool:
        if not isinstance(other, LowRank) or self.magnitude is not None or other.magnitude is not None:
            return False
        a, b = (self.a, self.b) if self.transposed == other.transposed else (self.b.T, self.a.T)
        return self.scale == other.scale and np.array_equal(a, other.a) and np.array_equal(b, other.b)

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.b.shape[0], self.a.shape[1]
        return shape[::-1] if self.transposed else shape

    def applied(self, weight: np.ndarray) -> np.ndarray:
        total = weight.T if self.transposed else weight
        total = total + np.float32(self.scale) * (self.b.astype(np.float32) @ self.a.astype(np.float32))
        if self.magnitude is not None:
            total *= (self.magnitude.astype(np.float32) / np.linalg.norm(total, axis=1))[:, None]
        return total.T if self.transposed else total

    def reordered(self, heads: int) -> LowRank:
        magnitude = None if self.magnitude is None else _interleaved(self.magnitude, heads)
        return replace(self, b=_interleaved(self.b, heads), magnitude=magnitude)


@dataclass(frozen=True, eq=False)
class Trained(Change):
    """weight  ->  weight + scale * (value - weight): a tensor that was trained as a whole."""

    value: np.ndarray
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def applied(self, weight: np.ndarray) -> np.ndarray:
        value = self.value.astype(np.float32)
        return value if self.scale == 1 else weight + np.float32(self.scale) * (value - weight)

    def equals(self, other: Change) -> bool:
        if not isinstance(other, Trained) or type(other) is not type(self):
            return False
        return other.scale == self.scale and np.array_equal(self.value, other.value)

    def reordered(self, heads: int) -> Trained:
        return replace(self, value=_interleaved(self.value, heads))


class Added(Trained):
    """weight  ->  weight + scale * value."""

    def applied(self, weight: np.ndarray) -> np.ndarray:
        return weight + np.float32(self.scale) * self.value.astype(np.float32)


@dataclass(frozen=True, eq=False)
class TrainedRows(Trained):
    """Some rows of a table, the trained tokens: value[i] is that of row indices[i]."""

    indices: np.ndarray
    is_tied: ClassVar[bool] = True

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 2 and shape[1:] == self.shape[1:] and int(self.indices.max(initial=0)) < shape[0]

    def applied(self, weight: np.ndarray) -> np.ndarray:
        result = np.array(weight, np.float32)
        result[self.indices] = Trained.applied(self, result[self.indices])
        return result

    def equals(self, other: Change) -> bool:
        is_like = isinstance(other, TrainedRows) and np.array_equal(self.indices, other.indices)
        return is_like and Trained.equals(self, other)


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


Adapter = Mapping[str, Sequence[Change]]  # by the names of tensors, in order


def merged(weights: Weights, architecture: Architecture, adapters: Sequence[Adapter]) -> tuple[Weights, Architecture]:
    """The weights with adapters merged, and the architecture with them. Where a table is also the output, an adapter of
    one of them does not change the other, but for trained tokens of the table alone; both are stored then, unless they
    are changed alike. Raises ImportModelError for an adapter of another model."""
    changes: dict[str, list[Change]] = {}
    for adapter in adapters:
        for name, parts in adapter.items():
            changes.setdefault(name, []).extend(parts)
    names = dict(architecture.names)
    output, table = names.get("output", ""), names["embedding"]
    is_tied = architecture.tied or output not in weights
    if not changes:
        return weights, architecture
    if not is_tied or not changes.keys() & {output, table}:
        return MergedWeights(weights, changes), architecture
    of_table, of_output = changes.get(table, []), changes.get(output, [])
    if not any(part.is_tied for part in of_output):
        of_output = [*(part for part in of_table if part.is_tied), *of_output]
    if len(of_table) == len(of_output) and all(a.equals(b) for a, b in zip(of_table, of_output, strict=True)):
        return MergedWeights(weights, {name: parts for name, parts in changes.items() if name != output}), architecture
    changes |= {output: of_output} if of_output else {}
    return MergedWeights(weights, changes, {output: table}), replace(architecture, tied=False)


class MergedWeights:
    """Weights with merged adapters. A weight that an adapter changes is float32, regardless of the file's format."""

    def __init__(
        self, weights: Weights, changes: Mapping[str, Sequence[Change]], copies: Mapping[str, str] | None = None
    ) -> None:
        """changes: by the names of weights. copies: further weights, that begin as copies of others. Raises
        ImportModelError for changes of another model."""
        self._weights, self._changes, self._copies = weights, changes, copies or {}
        for name, parts in changes.items():
            if name not in self:
                expected = f"one for tensors of the model, such as {next(iter(weights.names), 'none')}"
                raise ImportModelError("the adapter", expected=expected, got=f"one for {name}")
            for part in parts:
                if not part.fits(self.shape(name)):
                    got = f"one of {list(part.shape)} for {name}"
                    raise ImportModelError("the adapter", expected=f"one of {list(self.shape(name))}", got=got)
                if not part.combines and len(parts) > 1:
                    expected, got = f"no other adapter of {name} beside one with magnitudes (DoRA)", len(parts)
                    raise ImportModelError("the adapters", expected=expected, got=f"{got} adapters of it")
        self._merged = cache(self._merge)

    @property
    def names(self) -> Collection[str]:
        return {**dict.fromkeys(self._weights.names), **self._copies}

    def __contains__(self, name: str) -> bool:
        return name in self._copies or name in self._weights

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(self._source(name))

    def matrix(self, name: str) -> Node:
        return self._merged(name) if name in self._changes else self._weights.matrix(self._source(name))

    def vector(self, name: str) -> Node:
        return self._merged(name) if name in self._changes else self._weights.vector(self._source(name))

    def rows(self, name: str, ids: Node) -> Node:
        if name in self._changes:
            return ops.Take(0)(self._merged(name), ids, loc=name)
        return self._weights.rows(self._source(name), ids)

    def _source(self, name: str) -> str:
        return self._copies.get(name, name)

    def _merge(self, name: str) -> Node:
        """A constant that is computed when the program is packed, so that only one weight at a time is in memory."""
        source, parts = self._source(name), self._changes[name]
        shape = self._weights.shape(source)
        base = self._weights.vector(source) if len(shape) == 1 else self._weights.matrix(source)

        def value() -> np.ndarray:
            (weight,) = interpret(Graph((), (base,)), [])
            for part in parts:
                weight = part.applied(weight)
            return weight

        return deferred_const(TensorType(f32, shape), value, name)
