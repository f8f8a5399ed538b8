"""Ops that move elements, on arrays of any elements: sizes that are known at import, and strings on the host.

Each takes the node, for its attributes and version, and the operands in order, None for one that is left out. They
raise ValueError, IndexError or TypeError for what ONNX does not define.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ingot.frontends.onnx.protos import NodeProto


class Node(Protocol):
    @property
    def proto(self) -> NodeProto: ...

    @property
    def version(self) -> int: ...

    def attr(self, name: str, default: Any = None) -> Any: ...


Movement = Callable[..., "np.ndarray | tuple[np.ndarray, ...]"]
MOVEMENTS: dict[str, Movement] = {}


def _movement(name: str) -> Callable[[Movement], Movement]:
    def add(fn: Movement) -> Movement:
        MOVEMENTS[name] = fn
        return fn

    return add


@_movement("Reshape")
def reshape(n: Node, x: np.ndarray, to: np.ndarray | None = None) -> np.ndarray:
    target_shape = [int(v) for v in (n.attr("shape") if to is None else to)]
    if not n.attr("allowzero", 0):
        target_shape = [x.shape[i] if v == 0 else v for i, v in enumerate(target_shape)]
    return x.reshape(target_shape)


@_movement("Flatten")
def flatten(n: Node, x: np.ndarray) -> np.ndarray:
    axis = n.attr("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _axes(n: Node, tensor: np.ndarray | None) -> tuple[int, ...] | None:
    axes = n.attr("axes") if tensor is None else tensor.tolist()
    return None if axes is None else tuple(int(v) for v in axes)


@_movement("Squeeze")
def squeeze(n: Node, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.squeeze(x, _axes(n, axes))


@_movement("Unsqueeze")
def unsqueeze(n: Node, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.expand_dims(x, _axes(n, axes) or ())


@_movement("Transpose")
def transpose(n: Node, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, n.attr("perm"))


@_movement("Concat")
def concat(n: Node, *xs: np.ndarray) -> np.ndarray:
    return np.concatenate(xs, n.attr("axis", 1))


@_movement("Split")
def split(n: Node, x: np.ndarray, sizes: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    axis = n.attr("axis", 0)
    lengths = list(n.attr("split", ())) if sizes is None else sizes.tolist()
    if not lengths:
        count = n.attr("num_outputs", len(n.proto.output))
        part = -(-x.shape[axis] // count)
        lengths = [min(part, x.shape[axis] - i * part) for i in range(count)]
    if sum(lengths) != x.shape[axis]:
        raise ValueError(f"parts of {lengths} from an axis of {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(lengths)[:-1], axis))


@_movement("Gather")
def gather(n: Node, x: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.asarray(np.take(x, at, n.attr("axis", 0)), object)


@_movement("Compress")
def compress(n: Node, x: np.ndarray, condition: np.ndarray) -> np.ndarray:
    return np.compress(condition, x, n.attr("axis"))


@_movement("Expand")
def expand(n: Node, x: np.ndarray, to: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(to.tolist()))).copy()


@_movement("Tile")
def tile(n: Node, x: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    return np.tile(x, repeats.tolist())


@_movement("Slice")
def slice_(n: Node, x: np.ndarray, *bounds: np.ndarray | None) -> np.ndarray:
    if n.version < 10:
        starts, ends, axes, steps = list(n.attr("starts")), list(n.attr("ends")), n.attr("axes"), None
    else:
        starts, ends, axes, steps = ([] if v is None else v.tolist() for v in (*bounds, None, None)[:4])
    index = [slice(None)] * x.ndim
    places = axes or range(len(starts))
    for a, start, end, step in zip(places, starts, ends, steps or [1] * len(starts), strict=True):
        # with a negative step, ONNX writes "to the end" as a number below -size
        index[a] = slice(start, None if step < 0 and end < -x.shape[a] else end, step)
    return x[tuple(index)]
