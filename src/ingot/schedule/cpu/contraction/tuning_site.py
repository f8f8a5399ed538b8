"""What a contraction decides, as a `Site`: the register tile, chunks and blocks of the direct loop nest, or Winograd's
pieces."""

from __future__ import annotations

from math import prod

from ingot.ir.dims import estimate
from ingot.ir.node import Graph, Node
from ingot.schedule.axes import Contraction
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
from ingot.schedule.site_key import around_text, loops_text, size_text


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
    inner = c.inner.reduce if c.inner else ()
    loops = loops_text((("b", c.batch), ("m", c.rows), ("n", c.cols), ("k", c.reduce), ("of", inner)))
    kind = ("packed" if c.packed else "in place") + (" computed" if c.computed else "")
    window = "" if shape is None else f" window {size_text(shape.h)}x{size_text(shape.w)}"
    return f"{c.a} {c.b} {c.acc} {kind} {loops}{window} > {around_text(body, anchor)}"


__all__ = ["tuning_site"]
