"""Quantized layers of a folder (GPTQ, AWQ, 8-bit floats) as levels, zeros and scales.

    NAME.qweight, NAME.qzeros, NAME.scales   GPTQ and AWQ: integers packed in int32; `weight` is [outputs, inputs]
    NAME.weight, NAME.weight_scale[_inv]     floats of 8 bits, with a scale for all, for a row, or for a tile

Sources: AutoGPTQ's qlinear_cuda.py, AutoAWQ's gemm.py, and transformers' finegrained_fp8.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ingot import ops
from ingot.frontends.huggingface.folder import CONFIG, Folder
from ingot.frontends.shared.levels import Levels, unpacked
from ingot.ir.node import Node, deferred_const
from ingot.ir.types import TensorType, dtype_of, f32, u4, u8
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each 4 bits of an int32
_SCALES = (".weight_scale_inv", ".weight_scale")
_FLOAT8 = ("fp8", "fbgemm_fp8", "modelopt", "compressed-tensors")
_METHODS = ("gptq", "awq", *_FLOAT8)


@dataclass(frozen=True)
class Dense:
    """A weight without blockwise scales: dequantized to f32 before it is packed. values: -> f32 of `shape`."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], np.ndarray]

    @cached_property
    def _constant(self) -> Node:
        return deferred_const(TensorType(f32, self.shape), self.values, self.name)

    def matrix(self) -> Node:
        """f32 of `shape`."""
        return self._constant

    def rows(self, ids: Node) -> Node:
        """f32[*ids.shape, columns]."""
        return ops.EmbeddingLookup()(self._constant, ids, loc=self.name)


@dataclass(frozen=True)
class Packed:
    """A quantized weight. open: reads the tensors that describe its storage, its zeros and the groups of its
    columns."""

    shape: tuple[int, ...]
    open: Callable[[], Levels | Dense]


Arrays: TypeAlias = Mapping[str, np.ndarray]


def packed_of(folder: Folder) -> tuple[dict[str, Packed], set[str]]:
    """The quantized weights by name, and the tensors that they are stored in. Raises ImportModelError for a method
    that is not read, and for tensors that do not fit together."""
    config = folder.config.get("quantization_config")
    if config is None:
        return {}, set()
    where = str(folder.path / CONFIG)
    method = config.get("quant_method") if isinstance(config, dict) else None
    if method not in _METHODS:
        expected = f"a quant_method among {', '.join(_METHODS)}"
        fix = "use the model before it was quantized, or a GGUF file of it"
        raise ImportModelError("quantization_config", expected=expected, got=repr(method), where=where, fix=fix)
    layers = _float8(folder.tensors, config, where) if method in _FLOAT8 else _integers(folder.tensors, config, where)
    return {name: weight for name, (weight, _) in layers.items()}, {
        part for _, parts in layers.values() for part in parts
    }


_PackedLayers: TypeAlias = dict[str, tuple[Packed, tuple[str, ...]]]


def _option(config: Mapping[str, Any], name: str, choices: tuple[object, ...], default: object, where: str) -> Any:
    value = config.get(name, default)
    if not any(value == k and type(value) is type(k) for k in choices):
        expected = f"one of {', '.join(map(repr, choices))}"
        raise ImportModelError(f"quantization_config: {name}", expected=expected, got=repr(value), where=where)
    return value


# --- integers packed in int32


def _integers(tensors: Arrays, config: Mapping[str, Any], where: str) -> _PackedLayers:
    is_awq = config["quant_method"] == "awq"
    bits = _option(config, "bits", (4,) if is_awq else (2, 4, 8), None, where)
    if is_awq:
        _option(config, "version", ("gemm", "GEMM"), "gemm", where)
    # the first format stores zeros minus one
    version = "gptq" if is_awq else _option(config, "checkpoint_format", ("gptq", "gptq_v2"), "gptq", where)
    added = 0 if is_awq or version == "gptq_v2" else 1
    layers: _PackedLayers = {}
    for name in [n.removesuffix(".qweight") for n in tensors if n.endswith(".qweight")]:
        parts = [f"{name}.{part}" for part in ("qweight", "qzeros", "scales")]
        if lacking := [part for part in parts if part not in tensors]:
            raise ImportModelError(f"quantized layer {name!r}", expected=lacking[0], got="no such tensor", where=where)
        index = tensors.get(f"{name}.g_idx")
        weight, zeros, scales = (tensors[part] for part in parts)
        layer = _Layer(name, bits, added, is_awq, weight, zeros, scales, index)
        if index is not None:
            parts.append(f"{name}.g_idx")
        layers[f"{name}.weight"] = Packed(layer.checked(where), layer.open), tuple(parts)
    return layers


@dataclass(frozen=True)
class _Layer:
    """index: the group of each input, None for groups in their order."""

    name: str
    bits: int
    added: int
    is_awq: bool
    weight: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    index: np.ndarray | None

    def checked(self, where: str) -> tuple[int, int]:
        """Outputs and inputs. Raises ImportModelError where the shapes do not fit together."""
        fields = 32 // self.bits
        integers = (self.weight, self.zeros, *(() if self.index is None else (self.index,)))
        kinds = all(a.dtype == np.int32 for a in integers) and dtype_of(self.scales).is_float
        if kinds and self.weight.ndim == self.zeros.ndim == self.scales.ndim == 2 and self.weight.size:
            rows, columns = self.weight.shape
            inputs, outputs = (rows, columns * fields) if self.is_awq else (rows * fields, columns)
            groups = self.scales.shape[0]
            is_whole = groups and inputs % groups == 0 and outputs % fields == 0
            is_consistent = self.scales.shape[1] == outputs and self.zeros.shape == (groups, outputs // fields)
            if is_whole and is_consistent and (self.index is None or self.index.shape == (inputs,)):
                return outputs, inputs
        got = ", ".join(f"{a.dtype}{list(a.shape)}" for a in (*integers, self.scales))
        expected = f"packed int32 of {self.bits} bits with zeros and float scales for each group of inputs"
        raise ImportModelError(f"quantized layer {self.name!r}", expected=expected, got=got, where=where)

    def open(self) -> Levels | Dense:
        outputs, groups = self.scales.shape[1], self.scales.shape[0]
        inputs = self.weight.size * (32 // self.bits) // outputs
        group = inputs // groups
        if self.index is not None and not np.array_equal(self.index, np.arange(inputs) // group):
            return Dense(self.name, (outputs, inputs), self._in_any_order)
        zeros = self._zeros()
        first = int(zeros.flat[0])
        one = bool((zeros == first).all()) and first < 1 << self.bits
        dtype = u8 if self.bits == 8 else u4
        return Levels(
            self.name, (outputs, inputs), group, dtype,
            lambda: self._integers().reshape(outputs, groups, group).view(dtype.numpy),
            first if one else lambda: self._zeros().T.astype(np.float32)[..., None],
            lambda: self.scales.T.astype(np.float32)[..., None],
        )  # fmt: skip

    def _in_any_order(self) -> np.ndarray:
        assert self.index is not None
        index = np.clip(self.index, 0, len(self.scales) - 1)
        zeros, scales = self._zeros().T.astype(np.float32), self.scales.T.astype(np.float32)
        return (self._integers() - zeros[:, index]) * scales[:, index]

    def _integers(self) -> np.ndarray:
        """uint8[outputs, inputs]."""
        plain = self._columns(self.weight) if self.is_awq else unpacked(_octets(self.weight.T), self.bits).T
        return np.ascontiguousarray(plain.T)

    def _zeros(self) -> np.ndarray:
        """int32[groups, outputs]."""
        return self._columns(self.zeros).astype(np.int32) + self.added

    def _columns(self, packed: np.ndarray) -> np.ndarray:
        plain = unpacked(_octets(packed), self.bits)
        if not self.is_awq:
            return plain
        return plain.reshape(len(plain), -1, 8)[..., np.argsort(_AWQ_ORDER)].reshape(plain.shape)


def _octets(packed: np.ndarray) -> np.ndarray:
    """int32[n, k] -> uint8[n, 4 k]"""
    return np.ascontiguousarray(packed).view(np.uint8)


# --- floats of 8 bits


def _float8(tensors: Arrays, config: Mapping[str, Any], where: str) -> _PackedLayers:
    if config["quant_method"] == "compressed-tensors":
        _option(config, "format", ("float-quantized", "naive-quantized"), None, where)
    tile = config.get("weight_block_size")
    if tile is not None and not (
        isinstance(tile, list) and len(tile) == 2 and all(type(t) is int and t > 0 for t in tile)
    ):
        expected = "two positive numbers, or none"
        raise ImportModelError("quantization_config: weight_block_size", expected=expected, got=repr(tile), where=where)
    layers: _PackedLayers = {}
    for name, weight in tensors.items():
        if not name.endswith(".weight") or not (dtype_of(weight).is_float and dtype_of(weight).bits == 8):
            continue
        scales = [n for suffix in _SCALES if (n := name.removesuffix(".weight") + suffix) in tensors]
        if not scales:
            continue  # plain floats
        scale = tensors[scales[0]]
        sizes = _tile_of(weight, scale, tile)
        if sizes is None:
            expected = "one, one a row, or one for each tile of weight_block_size"
            got = f"{scale.dtype}{list(scale.shape)} for {list(weight.shape)}"
            raise ImportModelError(f"scales of {name!r}", expected=expected, got=got, where=where)
        layers[name] = _of_tiles(name, weight, scale, *sizes), (name, scales[0])
    return layers


def _tile_of(weight: np.ndarray, scale: np.ndarray, tile: list[int] | None) -> tuple[int, int] | None:
    """The rows and columns that share a scale."""
    if weight.ndim != 2 or not weight.size or not dtype_of(scale).is_float:
        return None
    rows, columns = weight.shape
    if scale.size == 1:
        return rows, columns
    if scale.shape in ((rows, 1), (rows,)):
        return 1, columns
    tiles = tile and (-(-rows // tile[0]), -(-columns // tile[1]))
    return (tile[0], tile[1]) if tile and scale.shape == tiles else None


def _of_tiles(name: str, weight: np.ndarray, scale: np.ndarray, high: int, wide: int) -> Packed:
    rows, columns = weight.shape
    tiles = scale.reshape(-(-rows // high), -(-columns // wide))

    def scales() -> np.ndarray:
        return np.repeat(tiles.astype(np.float32), high, axis=0)[:rows]

    def values() -> np.ndarray:
        return weight.astype(np.float32) * np.repeat(scales(), wide, axis=1)[:, :columns]

    def open() -> Levels | Dense:
        if columns % wide:
            return Dense(name, weight.shape, values)
        shape = (rows, columns // wide, wide)
        return Levels(
            name, weight.shape, wide, dtype_of(weight), lambda: weight.reshape(shape), 0, lambda: scales()[..., None]
        )

    return Packed(weight.shape, open)
