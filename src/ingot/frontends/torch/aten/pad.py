"""Padding: constant, reflection, replication, circular."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot import ops
from ingot.autodiff import pullback
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Operand,
    node_of,
)
from ingot.ir.dims import DimLike
from ingot.ir.node import Node

aten = Table()


@aten("constant_pad_nd.default")
def constant_pad(c: Context, x: Node, pad: Sequence[DimLike], value: Operand = 0) -> Node:
    low, high = pads(pad, x.type.rank)
    return ops.Pad(low, high, (0,) * x.type.rank)(x, node_of(value, x.dtype))


def pads(pad: Sequence[DimLike], rank: int) -> tuple[tuple[DimLike, ...], tuple[DimLike, ...]]:
    """PyTorch's pads (last axis first, low before high) as (low, high) over all axes."""
    low: list[DimLike] = [0] * rank
    high: list[DimLike] = [0] * rank
    for i in range(len(pad) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return tuple(low), tuple(high)


_MODES = {"reflect": "reflect", "replicate": "edge"}


@aten("pad.default")
def pad_(c: Context, x: Node, pad: Sequence[DimLike], mode: str = "constant", value: Operand | None = None) -> Node:
    if mode == "constant":
        return constant_pad(c, x, pad, 0 if value is None else value)
    if mode == "circular":
        return circular_pad(c, x, pad)
    return ops.PadMode(*pads(pad, x.type.rank), _MODES[mode])(x)


@aten("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def reflection_pad(c: Context, x: Node, padding: Sequence[DimLike]) -> Node:
    return ops.PadMode(*pads(padding, x.type.rank), "reflect")(x)


@aten("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def replication_pad(c: Context, x: Node, padding: Sequence[DimLike]) -> Node:
    return ops.PadMode(*pads(padding, x.type.rank), "edge")(x)


def _backward(forward: Callable[..., Node]) -> Callable[..., Node]:
    """The gradient of a pad of static sizes: see `decompositions.backward.padded`."""

    def backward(c: Context, grad: Node, x: Node, padding: Sequence[DimLike]) -> Node:
        return pullback(lambda v: forward(c, v, padding), x, grad)

    return backward


for _n in (1, 2, 3):
    aten.add(f"reflection_pad{_n}d_backward.default", _backward(reflection_pad))
    aten.add(f"replication_pad{_n}d_backward.default", _backward(replication_pad))


@aten("_pad_circular.default")
def circular_pad(c: Context, x: Node, pad: Sequence[DimLike]) -> Node:
    """Circular padding; elements that negative pads crop are not repeated."""
    cut = [min(p, 0) if isinstance(p, int) else 0 for p in pad]
    remaining = [p - q for p, q in zip(pad, cut, strict=True)]
    return ops.PadMode(*pads(remaining, x.type.rank), "wrap")(constant_pad(c, x, cut) if any(cut) else x)
