"""The tensors of a folder of Hugging Face as nodes of a graph (`ingot.language.weights.Weights`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType

import numpy as np

from ingot import ops
from ingot.frontends.huggingface.folder import Folder
from ingot.frontends.huggingface.quantized import Packed, packed_of
from ingot.frontends.shared.levels import missing
from ingot.ir.node import Node, deferred_const
from ingot.ir.types import TensorType, dtype_of, f32
from ingot.support.errors import ImportModelError


class FolderWeights:
    """Names are the file's; a quantized layer's tensors are one weight, `NAME.weight`."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        packed, parts = packed_of(folder)
        self._packed: Mapping[str, Packed] = MappingProxyType(packed)
        # constants are equal where their arrays are the same objects: programs share the weights that they read
        self._opened, self._stored = cache(lambda name: packed[name].open()), cache(self._stored_of)
        self._floats = cache(self._floats_of)
        self._arrays = {name: array for name, array in folder.tensors.items() if name not in parts}

    @property
    def names(self) -> Collection[str]:
        return self._arrays.keys() | self._packed.keys()

    def __contains__(self, name: object) -> bool:
        return name in self._arrays or name in self._packed

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the tensor."""
        return self._packed[name].shape if name in self._packed else self._array(name).shape

    def matrix(self, name: str) -> Node:
        """f32[..., rows, columns]: levels dequantized, or floats of the file, in the file's order of axes."""
        return self._opened(name).matrix() if name in self._packed else ops.cast(self._stored(name), f32)

    def vector(self, name: str) -> Node:
        """f32 of the tensor's shape, as numbers."""
        return self.matrix(name) if name in self._packed else self._floats(name)

    def rows(self, name: str, ids: Node) -> Node:
        """f32[*ids.shape, columns]. The rows are gathered as levels, or as floats of the file."""
        if name in self._packed:
            return self._opened(name).rows(ids)
        return ops.cast(ops.EmbeddingLookup()(self._stored(name), ids, loc=name), f32)

    def _floats_of(self, name: str) -> Node:
        array = self._array(name)
        return deferred_const(TensorType(f32, array.shape), lambda: array.astype(np.float32), name)

    def _stored_of(self, name: str) -> Node:
        array = self._array(name)
        return deferred_const(TensorType(dtype_of(array), array.shape), lambda: array, name)

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise missing(name, self.names, str(self.folder.path))
        array = self._arrays[name]
        if not dtype_of(array).is_float:
            where = str(self.folder.path)
            raise ImportModelError(f"tensor {name!r}", expected="floats", got=str(array.dtype), where=where)
        return array
