"""Constants of a file as arrays: sizes are checked, 4-bit integers unpacked, sparse tensors made dense."""

from __future__ import annotations

import math

import numpy as np

from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite import schema
from ingot.frontends.tflite.file import Tensor
from ingot.frontends.tflite.flatbuffer import Table
from ingot.support.errors import ImportModelError

_PACKED_TYPES = ("INT4", "UINT4", "INT2")
_MAX_SPARSE_RATIO = 4096  # elements of a sparse tensor for each one that is stored


def constant(tensor: Tensor) -> np.ndarray:
    """Raises Unsupported for types that Ingot lacks, ImportModelError for data of another size."""
    name, dtype = schema.type_name(tensor.type), schema.dtype(tensor.type)
    if dtype is None:
        raise Unsupported(f"a constant of {name}, {tensor.name!r}")
    assert tensor.data is not None
    if tensor.sparsity is not None:
        if name in _PACKED_TYPES:
            raise Unsupported(f"a sparse constant of {name}, {tensor.name!r}")
        return _dense(tensor, _stored(tensor, dtype.numpy), tensor.sparsity)
    count = math.prod(tensor.shape)
    data = _unpacked(tensor.data, count) if name in _PACKED_TYPES else _stored(tensor, dtype.numpy)
    if data.size != count:
        raise ImportModelError(f"constant {tensor.name!r}", expected=f"{count} elements", got=data.size)
    return data.reshape(tensor.shape)


def _stored(tensor: Tensor, dtype: np.dtype) -> np.ndarray:
    assert tensor.data is not None
    if tensor.data.nbytes % dtype.itemsize:
        got = f"{tensor.data.nbytes} bytes"
        raise ImportModelError(f"constant {tensor.name!r}", expected=f"whole elements of {dtype}", got=got)
    return tensor.data.view(dtype)


def _unpacked(data: np.ndarray, count: int) -> np.ndarray:
    """Signed 4-bit integers, the low half of a byte first."""
    nibbles = np.stack([data << 4, data & 0xF0], -1).view(np.int8).reshape(-1) >> 4
    return nibbles[:count] if nibbles.size in (count, count + 1) else nibbles


def _dense(tensor: Tensor, values: np.ndarray, sparsity: Table) -> np.ndarray:
    """A tensor stored as a tree over its dimensions, then those of its blocks, in the traversal order.

    Each level stores for each of its nodes either the number of children (dense), or their range and indices
    (compressed rows). Source: TACO's format as TFLite uses it (schema.fbs, SparsityParameters).
    """
    rank, order = len(tensor.shape), [int(v) for v in sparsity["traversal_order"]]
    blocks = [int(v) for v in sparsity["block_map"]]
    levels = sparsity["dim_metadata"]
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
        raise _damaged(tensor)
    if (
        len(set(blocks)) != len(blocks)
        or any(not 0 <= b < rank for b in blocks)
        or order[:rank] != sorted(order[:rank])
    ):
        raise Unsupported(f"the order in which {tensor.name!r} is stored")
    if math.prod(tensor.shape) > _MAX_SPARSE_RATIO * max(values.size, 1):
        raise ImportModelError(f"sparse constant {tensor.name!r}", expected="more than zeros", got=tensor.shape)
    inner = {d: int(levels[order.index(rank + i)]["dense_size"]) for i, d in enumerate(blocks)}
    if any(n < 1 or tensor.shape[d] % n for d, n in inner.items()):
        raise _damaged(tensor)
    sizes = [d // inner.get(i, 1) for i, d in enumerate(tensor.shape)] + [inner[d] for d in blocks]
    places = np.zeros(1, np.int64)  # dense positions of the nodes of a level
    for dim, level in zip(order, levels, strict=True):
        places = _children(tensor, level, places, sizes[dim], values.size)
    if places.size != values.size:
        raise _damaged(tensor)
    flat = np.zeros(math.prod(tensor.shape), values.dtype)
    flat[places] = values
    grid = flat.reshape([sizes[d] for d in order]).transpose(np.argsort(order))
    # each block dimension after the one that it splits
    axes = [a for d in range(rank) for a in ((d, rank + blocks.index(d)) if d in inner else (d,))]
    return np.ascontiguousarray(grid.transpose(axes)).reshape(tensor.shape)


def _children(tensor: Tensor, level: Table, parents: np.ndarray, size: int, max_size: int) -> np.ndarray:
    if level["format"] == 0:
        if parents.size * size > _MAX_SPARSE_RATIO * max(max_size, 1) or level["dense_size"] != size:
            raise _damaged(tensor)
        return (parents[:, None] * size + np.arange(size)).reshape(-1)
    if level["array_segments"] is None or level["array_indices"] is None:
        raise _damaged(tensor)
    starts, indices = (level[key]["values"].astype(np.int64) for key in ("array_segments", "array_indices"))
    counts = np.diff(starts)
    is_consistent = (
        starts.size == parents.size + 1 and starts[0] == 0 and starts[-1] == indices.size and (counts >= 0).all()
    )
    if not is_consistent or (indices < 0).any() or (indices >= size).any():
        raise _damaged(tensor)
    return np.repeat(parents, counts) * size + indices


def _damaged(tensor: Tensor) -> ImportModelError:
    return ImportModelError(f"sparse constant {tensor.name!r}", expected="places within its sizes", got="others")
