"""What a contraction decides, as a `Site`: the register tile, chunks and blocks of the direct loop nest, or Winograd's
pieces."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ingot import ops
from ingot.ir.dims import DimLike, estimate
from ingot.ir.node import Const, Graph, Input, Node, Project
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.choice import Choice, Direct, Pieces, Site
from ingot.schedule.cpu.contraction.cost_model import admits, choose, neighbours, others, plan_of
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.plan import (
    Shape,
    admits_pieces,
    near_pieces,
    other_pieces,
    plan_winograd,
)

_VIEWS = (Input, Const, Project, ops.BroadcastInDim, ops.Reshape, ops.Transpose)


def tuning_site(body: Graph, anchor: Node, c: Contraction, shape: Shape | None, machine: Machine) -> Site:
    """`shape`: of a convolution that Winograd's algorithm covers."""
    direct = choose(c, machine)
    share = prod(x.inside.share(estimate(x.extent)) for x in c.reduce if x.inside is not None)
    pieces = plan_winograd(shape, plan_of(c, machine, direct), machine, share) if shape is not None else None
    untuned: Choice = direct if pieces is None else pieces

    def ranked() -> list[Choice]:
        found = [direct, *others(c, machine)]
        quick = other_pieces(shape, machine) if shape is not None else []
        # the other algorithm's best few come behind the better algorithm's
        found = [*found, *quick[:3]] if pieces is None else [*quick, *found[:2]]
        return [x for x in dict.fromkeys(found) if x != untuned]

    def refine(choice: Choice) -> list[Choice]:
        if isinstance(choice, Direct):
            return neighbours(c, machine, choice)
        assert shape is not None and isinstance(choice, Pieces)
        return near_pieces(shape, choice, machine)

    def possible(choice: Choice) -> bool:
        if isinstance(choice, Pieces):
            return shape is not None and admits_pieces(shape, choice, machine)
        return admits(c, machine, choice)

    return Site(_key(body, anchor, c, shape), untuned, ranked, refine, possible)


def _key(body: Graph, anchor: Node, c: Contraction, shape: Shape | None) -> str:
    """All that the fastest choice depends on, as text.   f32 f32 f32 packed m3136:64:0 n256:0:1 k64:1:256 > f32 add"""
    axes = (("b", c.batch), ("m", c.rows), ("n", c.cols), ("k", c.reduce), ("of", c.inner.reduce if c.inner else ()))
    loops = [name + ",".join(map(_axis, group)) for name, group in axes if group]
    kind = ("packed" if c.packed else "in place") + (" computed" if c.computed else "")
    window = "" if shape is None else f" window {_size(shape.h)}x{_size(shape.w)}"
    return f"{c.a} {c.b} {c.acc} {kind} {' '.join(loops)}{window} > {' '.join(_around(body, anchor))}"


def _axis(x: Axis) -> str:
    return ":".join(map(_size, (x.extent, x.a, x.b)))


def _size(d: DimLike) -> str:
    """A size that is known at run time only as the one that is likely."""
    return str(d) if isinstance(d, int) else f"~{estimate(d)}"


def _around(body: Graph, anchor: Node) -> Sequence[str]:
    """The results' types, the ops that are fused with the contraction, and how large the operands are that they read:
    "full" as the result, or "part" of it."""
    most = max(_elements(n) for n in body.outputs)
    fused = [n.op.name for n in body.nodes() if n is not anchor and not isinstance(n.op, _VIEWS)]
    own = {body.inputs.index(x) for x in body.inputs if x in anchor.inputs}
    read = [n for i, n in enumerate(body.inputs) if i not in own]
    sizes = [("full" if _elements(n) >= most else "part") for n in read]
    return [*(str(n.dtype) for n in body.outputs), *fused, *sorted(sizes)]


def _elements(node: Node) -> int:
    total = 1
    for d in node.shape:
        total *= estimate(d)
    return total


__all__ = ["tuning_site"]
