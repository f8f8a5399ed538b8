"""The tuning site of a contraction: the register tile, chunks and blocks of the direct loop nest, or Winograd's
tiles."""

from __future__ import annotations

from math import prod

from ingot.ir.dims import estimate
from ingot.ir.node import Graph, Node
from ingot.schedule.axes import Contraction
from ingot.schedule.choice import Choice, Direct, Site, Winograd
from ingot.schedule.cpu.contraction.cost_model import admits, candidates, choose, neighbors, plan_of
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.plan import (
    Shape,
    admits_pieces,
    best_pieces,
    neighbor_pieces,
    plan_winograd,
)
from ingot.schedule.site_key import around_text, loops_text, size_text


def tuning_site(body: Graph, anchor: Node, c: Contraction, winograd_shape: Shape | None, machine: Machine) -> Site:
    """The choices for `anchor`. winograd_shape: the convolution's shape if Winograd's algorithm covers it."""
    direct = choose(c, machine)
    nonzero_share = prod(x.valid_taps.valid_fraction(estimate(x.extent)) for x in c.reduce if x.valid_taps is not None)
    pieces = (
        plan_winograd(winograd_shape, plan_of(c, machine, direct), machine, nonzero_share)
        if winograd_shape is not None
        else None
    )
    untuned: Choice = direct if pieces is None else pieces

    def alternatives() -> list[Choice]:
        tilings = [direct, *candidates(c, machine)]
        winograd = best_pieces(winograd_shape, machine) if winograd_shape is not None else []
        # the best few of the slower algorithm follow those of the faster one
        tilings = [*tilings, *winograd[:3]] if pieces is None else [*winograd, *tilings[:2]]
        return [x for x in dict.fromkeys(tilings) if x != untuned]

    def refine(choice: Choice) -> list[Choice]:
        if isinstance(choice, Direct):
            return neighbors(c, machine, choice)
        assert winograd_shape is not None and isinstance(choice, Winograd)
        return neighbor_pieces(winograd_shape, choice, machine)

    def is_valid(choice: Choice) -> bool:
        if isinstance(choice, Winograd):
            return winograd_shape is not None and admits_pieces(winograd_shape, choice, machine)
        return admits(c, machine, choice)

    return Site(_key(body, anchor, c, winograd_shape), untuned, alternatives, refine, is_valid)


def _key(body: Graph, anchor: Node, c: Contraction, winograd_shape: Shape | None) -> str:
    """Everything that the fastest choice depends on, as text.

    f32 f32 f32 packed m3136:64:0 n256:0:1 k64:1:256 > f32 add
    """
    inner_reduce = c.inner.reduce if c.inner else ()
    loops = loops_text((("b", c.batch), ("m", c.rows), ("n", c.cols), ("k", c.reduce), ("of", inner_reduce)))
    kind = ("packed" if c.packed else "in place") + (" computed" if c.computes_a else "")
    window = "" if winograd_shape is None else f" window {size_text(winograd_shape.h)}x{size_text(winograd_shape.w)}"
    return f"{c.a} {c.b} {c.acc} {kind} {loops}{window} > {around_text(body, anchor)}"


__all__ = ["tuning_site"]
