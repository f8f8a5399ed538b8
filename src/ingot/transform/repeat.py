"""Loops in graphs that transforms make.

body(1, body(0, sums))  ...   ->   while(number < iterations)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node, const, rebuild, topological

LoopBody = Callable[[Node, Sequence[Node], Sequence[Node]], Sequence[Node]]


def repeat(iterations: int | Node, sums: Sequence[Node], invariants: Sequence[Node], body: LoopBody) -> list[Node]:
    """The sums after `iterations` calls of `body(iteration, sums, invariants)`, in a loop if there are several."""
    if iterations == 1:
        return list(body(const(0, np.int64), sums, invariants))
    count = const(iterations, np.int64) if isinstance(iterations, int) else iterations
    starts = [const(0, np.int64), count, *sums, *invariants]
    state = [Input(f"carried {n}", x.type)() for n, x in enumerate(starts)]
    number, limit, loop_sums, loop_invariants = *state[:2], state[2 : 2 + len(sums)], state[2 + len(sums) :]
    results = (ops.add(number, 1), limit, *body(number, loop_sums, loop_invariants), *loop_invariants)
    loop = ops.While(Graph(tuple(state), (ops.compare("LT", number, limit),)), Graph(tuple(state), results))
    return list(loop(*starts).results[2 : 2 + len(sums)])


def rows_in_parts(parts: int, part: Callable[[Node], Node]) -> Node:
    """concat(part(0), part(1), ...) along the first axis, by a loop if there are several. What `part` reads and does
    not depend on its number is computed once, unless it is a constant or a copy of elements."""
    if parts == 1:
        return part(const(0, np.int64))
    number = Input("number of a part", const(0, np.int64).type)()
    rows = part(number)
    invariants = _invariants(rows, number)

    def body(i: Node, sums: Sequence[Node], values: Sequence[Node]) -> list[Node]:
        (y,) = rebuild((rows,), {number: i, **dict(zip(invariants, values, strict=True))})
        zero = const(0, np.int64)
        start = ops.mul(i, int(rows.shape[0]))
        return [ops.DynamicUpdateSlice()(sums[0], y, start, *[zero] * (len(rows.shape) - 1))]

    empty = ops.full((parts * rows.shape[0], *rows.shape[1:]), 0, rows.dtype)
    return repeat(parts, [empty], invariants, body)[0]


def _invariants(y: Node, number: Node) -> list[Node]:
    """The values that do not depend on `number`, from which y is computed by what does, and by copies."""
    varying: set[Node] = set()
    found: dict[Node, None] = {}
    for n in topological([y]):
        if n is number or any(x in varying for x in n.inputs):
            varying.add(n)
    reached = [x for n in topological([y]) if n in varying for x in n.inputs]
    while reached:
        x = reached.pop()
        if x in varying or x.constant is not None:
            continue
        if not isinstance(x.op, Input) and len(x.types) == 1 and (x.op.rearranges or not x.inputs):
            reached += x.inputs
        else:
            found[x] = None
    return list(found)
