"""The choices of GPU schedules, as `Site`s: tiles of products, of attention and of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ingot.ir.node import Graph, Node
from ingot.ops import Attention, AttentionGradients, AttentionWithSums, PagedAttention
from ingot.schedule.choice import Choice, Flash, Patch, Site, Tiling, decide
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.site_key import around_text, loops_text, size_text

MAX_ALTERNATIVES = 8  # choices behind the model's own that are tried
C = TypeVar("C", bound=Choice)


def decided(site: Site, machine: Machine, kind: type[C]) -> C:
    """The choice that was measured at a site, else the model's."""
    choice = decide(site, machine.measured)
    assert isinstance(choice, kind)
    return choice


def product_site(
    body: Graph, anchors: Sequence[Node], loops: Loops, shape: ProductShape, machine: Machine, *, packed: bool
) -> Site:
    """anchors: products of one operand that share the kernel."""
    default, *others = shape.candidates(machine)[: 1 + MAX_ALTERNATIVES]

    def neighbors(choice: Choice) -> list[Choice]:
        assert isinstance(choice, Tiling)
        return [*shape.neighbors(choice, machine)]

    def admits(choice: Choice) -> bool:
        return isinstance(choice, Tiling) and shape.admits(choice, machine)

    kind = ("packed" if packed else "in place") + (f" turns of {shape.fixed_step}" if shape.fixed_step else "")
    kind += f" {len(anchors)} together" if len(anchors) > 1 else ""
    kind += " tf32" if shape.tf32 else " bf16x6" if shape.bf16x6 else ""
    key = _key(body, anchors[0], f"{kind} {_loops(loops)}")
    return Site(key, default, lambda: [t for t in others if admits(t)], neighbors, admits)


def flash_site(body: Graph, anchor: Node, default: Flash, admits: Callable[[Flash], bool]) -> Site:
    """admits: whether a choice gives a kernel for these heads."""

    def neighbors(choice: Choice) -> list[Choice]:
        assert isinstance(choice, Flash)
        queries, keys, warps, stages, parts = choice.queries, choice.keys, choice.warps, choice.stages, choice.parts
        tilings = [Flash(queries * 2, keys, warps, stages, parts), Flash(queries // 2, keys, warps, stages, parts)]
        tilings += [Flash(queries, keys * 2, warps, stages, parts), Flash(queries, keys // 2, warps, stages, parts)]
        tilings += [Flash(queries, keys, warps * 2, stages, parts), Flash(queries, keys, warps // 2, stages, parts)]
        tilings += [Flash(queries, keys, warps, stages + 1, parts), Flash(queries, keys, warps, stages - 1, parts)]
        tilings += [Flash(queries, keys, warps, stages, parts * 2), Flash(queries, keys, warps, stages, parts // 2)]
        return [c for c in tilings if admits(c)]

    assert isinstance(anchor.op, Attention | AttentionWithSums | AttentionGradients | PagedAttention)
    sizes = " ".join("x".join(map(size_text, x.shape)) for x in anchor.inputs)
    kind = f"window {anchor.op.window}" if isinstance(anchor.op, PagedAttention) else f"causal {anchor.op.causal}"
    key = _key(body, anchor, f"{sizes} {kind}")
    return Site(key, default, lambda: neighbors(default), neighbors, lambda c: isinstance(c, Flash) and admits(c))


def patch_site(body: Graph, anchor: Node, loops: Loops, default: Patch, admits: Callable[[Patch], bool]) -> Site:
    def neighbors(choice: Choice) -> list[Choice]:
        assert isinstance(choice, Patch)
        rows, columns, warps = choice.rows, choice.columns, choice.warps
        sizes = [(rows * 2, columns, warps), (rows // 2, columns, warps), (rows, columns, warps * 2)]
        sizes += [(rows, columns, warps // 2), (rows * 2, columns // 2, warps)]
        sizes += [(rows // 2, columns * 2, warps), (rows * 2, columns, warps * 2)]
        tilings = [replace(choice, rows=r, columns=c, warps=w) for r, c, w in sizes]
        tilings += [replace(choice, run=n) for n in (choice.run // 2, choice.run - 1, choice.run + 1, choice.run * 2)]
        return [c for c in tilings if admits(c)]

    key = _key(body, anchor, f"depthwise {_loops(loops)}")
    return Site(key, default, lambda: neighbors(default), neighbors, lambda c: isinstance(c, Patch) and admits(c))


def _loops(loops: Loops) -> str:
    named: Sequence[tuple[str, Sequence]] = (
        ("b", loops.batch), ("m", loops.rows), ("n", loops.cols), ("k", loops.reduce),
    )  # fmt: skip
    return loops_text(named)


def _key(body: Graph, anchor: Node, what: str) -> str:
    types = " ".join(str(x.dtype) for x in (*(x.type for x in anchor.inputs), *anchor.types))
    return f"gpu {anchor.op.name} {types} {what} > {around_text(body, anchor)}"


__all__ = ["decided", "flash_site", "patch_site", "product_site"]
