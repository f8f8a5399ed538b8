"""Weights of a language model by their names in the file, as nodes of a graph.

A reader of a file format implements `Weights`. The format decides how a weight is stored: a matrix is a constant, or
`Dequantize` of deferred levels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import SequenceMatcher
from typing import Protocol

import numpy as np

from ingot import ops
from ingot.ir.node import Node, const
from ingot.support.errors import ImportModelError


class Weights(Protocol):
    """Tensors by name. Raises ImportModelError for a name that is not among `names`.

    A matrix is [rows, columns] = [outputs, inputs], regardless of the file's order; the experts of a layer in one
    tensor are [experts, rows, columns]. `rows` uses the same constants in each call for a name, so that a program that
    reads a table in several places contains it once.
    """

    @property
    def names(self) -> Collection[str]: ...

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, without reading the tensor."""
        ...

    def matrix(self, name: str) -> Node:
        """f32[rows, columns], or f32[experts, rows, columns]."""
        ...

    def vector(self, name: str) -> Node:
        """f32, of the tensor's own shape."""
        ...

    def rows(self, name: str, ids: Node) -> Node:
        """f32[*ids.shape, columns]: rows of a matrix; others are not read."""
        ...


class ArrayWeights:
    """Float arrays in memory."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        # converted once: constants are shared only if their arrays are the same object
        self._arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}

    @property
    def names(self) -> Collection[str]:
        return self._arrays.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return self._array(name).shape

    def matrix(self, name: str) -> Node:
        return const(self._array(name), loc=name)

    def vector(self, name: str) -> Node:
        return const(self._array(name), loc=name)

    def rows(self, name: str, ids: Node) -> Node:
        return ops.EmbeddingLookup()(self.matrix(name), ids, loc=name)

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise missing(name, self.names)
        return self._arrays[name]


def missing(name: str, names: Collection[str]) -> ImportModelError:
    """The error for a tensor that the file lacks."""
    near = sorted(names, key=lambda other: -SequenceMatcher(None, name, other).ratio())[:3]
    return ImportModelError(f"tensor {name!r}", expected=f"one of the file's, such as {', '.join(near)}", got="none")
