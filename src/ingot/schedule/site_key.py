"""What a measured choice is filed under, as text: the loops of a kernel and what is fused with its main op."""

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
    """A size that is known at run time only as the one that is likely."""
    return str(d) if isinstance(d, int) else f"~{estimate(d)}"


def around_text(body: Graph, anchor: Node) -> str:
    """The results' types, the ops that are fused with `anchor`, and how large the operands are that they read: "full"
    as the result, or "part" of it."""
    most = max(_elements(n) for n in body.outputs)
    fused = [n.op.name for n in body.nodes() if n is not anchor and n.op.computes and not isinstance(n.op, _VIEWS)]
    own = {body.inputs.index(x) for x in body.inputs if x in anchor.inputs}
    read = [n for i, n in enumerate(body.inputs) if i not in own]
    sizes = [("full" if _elements(n) >= most else "part") for n in read]
    return " ".join([*(str(n.dtype) for n in body.outputs), *fused, *sorted(sizes)])


def _elements(node: Node) -> int:
    total = 1
    for d in node.shape:
        total *= estimate(d)
    return total


__all__ = ["around_text", "loops_text", "size_text"]
