"""The key of a measured choice, as text: the loops of a kernel and the ops fused with its anchor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingot import ops
from ingot.ir.dims import DimLike, estimate
from ingot.ir.node import Graph, Node
from ingot.schedule.axes import Axis

_VIEWS = (ops.BroadcastInDim, ops.Reshape, ops.Transpose)


def loops_text(loops: Iterable[tuple[str, Sequence[Axis]]]) -> str:
    """Axes by name, with their strides in both operands.   m3136:64:0 n256:0:1 k64:1:256"""
    return " ".join(name + ",".join(map(_axis, axes)) for name, axes in loops if axes)


def _axis(x: Axis) -> str:
    return ":".join(map(size_text, (x.extent, x.a, x.b)))


def size_text(d: DimLike) -> str:
    """A size as text; a symbolic one as its likely value."""
    return str(d) if isinstance(d, int) else f"~{estimate(d)}"


def around_text(body: Graph, anchor: Node) -> str:
    """The results' types, the ops fused with `anchor`, and the sizes of the operands that they read: "full" like the
    result, or "part" of it."""
    largest = max(_elements(n) for n in body.outputs)
    fused = [n.op.name for n in body.nodes() if n is not anchor and n.op.computes and not isinstance(n.op, _VIEWS)]
    anchor_inputs = {body.inputs.index(x) for x in body.inputs if x in anchor.inputs}
    operands = [n for i, n in enumerate(body.inputs) if i not in anchor_inputs]
    sizes = [("full" if _elements(n) >= largest else "part") for n in operands]
    return " ".join([*(str(n.dtype) for n in body.outputs), *fused, *sorted(sizes)])


def _elements(node: Node) -> int:
    total = 1
    for d in node.shape:
        total *= estimate(d)
    return total


__all__ = ["around_text", "loops_text", "size_text"]
