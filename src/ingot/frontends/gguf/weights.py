"""The tensors of a GGUF file as nodes of a graph (`ingot.language.weights.Weights`)."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import numpy as np

from ingot import ops
from ingot.frontends.gguf.file import GGUFFile, Tensor
from ingot.frontends.shared.levels import Levels, missing
from ingot.ir.node import Node, deferred_const
from ingot.ir.types import TensorType, dtype_of, f32


class GGUFWeights:
    """Decoded tensor by tensor, each time a pass or the packing reads one: a whole model is never in memory."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        # constants are equal where their arrays are the same objects: programs share the weights that they read
        self._levels, self._plain, self._floats = cache(_levels), cache(_plain), cache(_floats)

    @property
    def names(self) -> Collection[str]:
        return self.file.tensors.keys()

    def __contains__(self, name: object) -> bool:
        return name in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the tensor."""
        return self._tensor(name).shape

    def matrix(self, name: str) -> Node:
        """f32[..., rows, columns]: levels dequantized, or numbers of the file."""
        tensor = self._tensor(name)
        return ops.cast(self._plain(tensor), f32) if tensor.format.levels is None else self._levels(tensor).matrix()

    def vector(self, name: str) -> Node:
        """f32 of the tensor's shape, as numbers."""
        return self._floats(self._tensor(name))

    def rows(self, name: str, ids: Node) -> Node:
        """f32[*ids.shape, columns]: what is gathered are levels, or numbers of the file."""
        tensor = self._tensor(name)
        if tensor.format.levels is None:
            return ops.cast(ops.Take(0)(self._plain(tensor), ids, loc=name), f32)
        return self._levels(tensor).rows(ids)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.file.tensors:
            raise missing(name, self.names, str(self.file.path))
        return self.file.tensors[name]


def _plain(tensor: Tensor) -> Node:
    """A tensor of plain numbers, in their own type."""
    view = tensor.format.unpack(tensor.data).reshape(tensor.shape)
    return deferred_const(TensorType(dtype_of(view), tensor.shape), lambda: view, tensor.name)


def _floats(tensor: Tensor) -> Node:
    return deferred_const(TensorType(f32, tensor.shape), tensor.dequantized, tensor.name)


def _levels(tensor: Tensor) -> Levels:
    format, lines = tensor.format, (*tensor.shape[:-1], tensor.shape[-1] // tensor.format.group)
    assert format.levels is not None

    def parameter(which: int) -> np.ndarray:
        value = format.decode_scales(tensor.data)[which]
        assert isinstance(value, np.ndarray)
        return value.reshape(*lines, 1)

    def levels() -> np.ndarray:
        return format.decode_levels(tensor.data).reshape(*lines, format.group)

    has_minimum = not isinstance(format.decode_scales(tensor.data[:1])[0], int)
    zero = (lambda: parameter(0)) if has_minimum else format.zero
    return Levels(tensor.name, tensor.shape, format.group, format.levels, levels, zero, lambda: parameter(1))
