"""Questions about constant values that several passes ask."""

from __future__ import annotations

import numpy as np

from ingot.ir.node import Const, Node


def splat_of(node: Node) -> np.generic | None:
    """The one value that all elements of `node` have, where it is a constant seen through ops that only rearrange."""
    while node.op.rearranges:
        node = node.inputs[0]
    if not isinstance(node.op, Const):
        return None
    value = node.op.value
    if value.size == 1:
        return value.reshape(-1)[0]
    if value.size == 0 or value.size > 4096:
        return None
    raw = np.ascontiguousarray(value).reshape(-1)
    return raw[0] if raw[0] == raw[-1] and _same_bits(raw) else None


def _same_bits(raw: np.ndarray) -> bool:
    rows = raw.view(np.uint8).reshape(raw.size, raw.itemsize)
    return bool((rows == rows[0]).all())


def is_constant(node: Node) -> bool:
    """Whether `node` is a constant, possibly seen through ops that only rearrange."""
    while node.op.rearranges and len(node.inputs) == 1:
        node = node.inputs[0]
    return isinstance(node.op, Const)
