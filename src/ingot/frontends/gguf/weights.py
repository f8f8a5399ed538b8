"""The tensors of a GGUF file as nodes of a graph (`ingot.language.weights.Weights`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, lru_cache
from math import prod

import numpy as np

from ingot import ops
from ingot.frontends.gguf.blocks import Factors
from ingot.frontends.gguf.file import GGUFFile, Tensor
from ingot.frontends.shared.levels import missing
from ingot.ir.node import Node, deferred_const
from ingot.ir.types import TensorType, dtype_of, f32


class GGUFWeights:
    """Tensors are decoded one by one whenever a pass or the packing reads them: a whole model is never in memory."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        # constants are equal only where their arrays are the same object, so caching makes programs share weights
        self._plain, self._floats = cache(_unquantized), cache(_floats)
        # the factors of the tensor that is being packed
        factors = lru_cache(maxsize=1)(lambda tensor: tensor.format.scales(tensor.data))
        self._levels = cache(lambda tensor: _levels(tensor, factors))

    @property
    def names(self) -> Collection[str]:
        return self.file.tensors.keys()

    def __contains__(self, name: object) -> bool:
        return name in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the tensor."""
        return self._tensor(name).shape

    def matrix(self, name: str) -> Node:
        """f32[..., rows, columns]: levels dequantized, or numbers of the file. A file may leave out a single row."""
        tensor = self._tensor(name)
        shape = tensor.shape if len(tensor.shape) > 1 else (1, *tensor.shape)
        if tensor.format.levels is None:
            return ops.reshape(ops.cast(self._plain(tensor), f32), shape)
        return ops.reshape(self._levels(tensor), shape)

    def vector(self, name: str) -> Node:
        """f32 of the tensor's shape, as numbers."""
        return self._floats(self._tensor(name))

    def rows(self, name: str, ids: Node) -> Node:
        """f32[*ids.shape, columns]. The rows are gathered as levels, or as numbers of the file."""
        tensor = self._tensor(name)
        if tensor.format.levels is None:
            return ops.cast(ops.EmbeddingLookup()(self._plain(tensor), ids, loc=name), f32)
        rows = ops.EmbeddingLookup()(self._levels(tensor), ids, loc=name)
        return ops.reshape(rows, (*ids.shape, *tensor.shape[1:]))

    def _tensor(self, name: str) -> Tensor:
        if name not in self.file.tensors:
            raise missing(name, self.names, str(self.file.path))
        return self.file.tensors[name]


def _unquantized(tensor: Tensor) -> Node:
    """A tensor of plain numbers, in their own type."""
    view = tensor.format.unpack(tensor.data).reshape(tensor.shape)
    return deferred_const(TensorType(dtype_of(view), tensor.shape), lambda: view, tensor.name)


def _floats(tensor: Tensor) -> Node:
    return deferred_const(TensorType(f32, tensor.shape), tensor.dequantized, tensor.name)


def _levels(tensor: Tensor, factors_of: Callable[[Tensor], Factors]) -> Node:
    """f32[*lines, blocks, groups of a block, group], without a dimension of blocks of one group."""
    format = tensor.format
    assert format.levels is not None
    groups = (format.elements // format.group,) if format.elements != format.group else ()
    blocks = (*tensor.shape[:-1], tensor.shape[-1] // format.elements)
    per_row = prod(blocks[1:])

    def rows(start: int, stop: int) -> np.ndarray:
        levels = format.decode_levels(tensor.data[start * per_row : stop * per_row])
        return levels.reshape(stop - start, *blocks[1:], *groups, format.group)

    def levels() -> np.ndarray:
        return rows(0, blocks[0])

    def factor(part: int, i: int) -> Node:
        like = first[part][i]
        shape = (*blocks, *((1, 1) if groups and like.shape[1] == 1 else (*groups, 1)))
        dtype = dtype_of(like)
        return deferred_const(TensorType(dtype, shape), lambda: factors_of(tensor)[part][i].reshape(shape), tensor.name)

    first = format.scales(tensor.data[:1])
    factors = [factor(part, i) for part, levels in enumerate(first) for i in range(len(levels))]
    like = TensorType(format.levels, (*blocks, *groups, format.group))
    form = ops.DequantizeBlocks(format.zero, format.bits, len(first[0]))
    return form(deferred_const(like, levels, tensor.name, rows), *factors, loc=tensor.name)
