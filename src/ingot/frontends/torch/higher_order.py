"""Torch's higher-order ops: graphs as arguments of a node, imported as Case or While, or inlined.

A handler gets `run` (a graph and its arguments -> its results), the fx node, and the values of the node's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx.experimental.proxy_tensor import make_fx

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.convert import dtype_of, location
from ingot.frontends.torch.decompose import without_handled
from ingot.frontends.torch.values import cast, i64
from ingot.ir.dims import Dim
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType

Run = Callable[[fx.GraphModule, Sequence[object]], list[object]]


def _operands(values: object, what: str) -> list[Node]:
    """`values` as nodes. Raises Unsupported unless all are real tensors."""
    operands = list(values) if isinstance(values, Sequence) else [values]
    if not all(isinstance(v, Node) for v in operands):
        raise Unsupported(f"{what} of something else than real tensors")
    return [v for v in operands if isinstance(v, Node)]


def _inputs(nodes: Sequence[Node], label: str) -> list[Node]:
    return [Input(f"{label}{i}", n.type)() for i, n in enumerate(nodes)]


def _inline(skipped: int) -> Callable[..., object]:
    """A handler that inlines a region; its graph and operands follow `skipped` options."""

    def inline(run: Run, node: fx.Node, *args: object) -> object:
        body, *operands = args[skipped:]
        if not isinstance(body, fx.GraphModule):
            raise Unsupported("a body that is no graph")
        return tuple(run(body, operands))

    return inline


def with_gradients(run: Run, node: fx.Node, enabled: bool, body: object, *operands: object) -> object:
    """A region under `torch.no_grad()` or `torch.enable_grad()`."""
    results = _inline(0)(run, node, body, *operands)
    assert isinstance(results, tuple)
    return results if enabled else tuple(ops.StopGradient()(v) if isinstance(v, Node) else v for v in results)


def cond(run: Run, node: fx.Node, predicate: object, yes: fx.GraphModule, no: fx.GraphModule,
         operands: Sequence[object] = ()) -> object:  # fmt: skip
    """torch.cond(pred, yes, no, operands) -> Case(no, yes)(i64(pred), tensors...)."""
    (pred,) = _operands([predicate], "a predicate")
    # sizes are available in both branches without being operands
    tensors = _operands([o for o in operands if not isinstance(o, int | Dim)], "branches")
    branches: list[Graph] = []
    for body in (no, yes):
        inputs = _inputs(tensors, "operand")
        own_inputs = iter(inputs)
        results = run(body, [next(own_inputs) if isinstance(o, Node) else o for o in operands])
        branches.append(Graph(tuple(inputs), tuple(_operands(results, "a branch"))))
    return ops.Case(tuple(branches))(cast(pred, dtype_of(torch.int32)), *tensors, loc=location(node)).results


def while_loop(run: Run, node: fx.Node, test: fx.GraphModule, body: fx.GraphModule, carried: Sequence[object],
               others: Sequence[object] = ()) -> object:  # fmt: skip
    """carried = body(carried, others) while test(carried, others)."""
    starts, fixed = _operands(carried, "a loop"), _operands(others, "a loop")
    state = _inputs([*starts, *fixed], "carried")
    (is_going,) = _operands(run(test, state), "a loop's condition")
    ends = _operands(run(body, state), "a loop's body")
    return _loop(node, state, ops.reshape(is_going, ()), [*ends, *state[len(starts) :]], [*starts, *fixed])[
        : len(starts)
    ]


def _loop(
    node: fx.Node, state: Sequence[Node], is_going: Node, ends: Sequence[Node], starts: Sequence[Node]
) -> tuple[Node, ...]:
    for i, (a, b) in enumerate(zip(state, ends, strict=True)):
        if a.type != b.type:
            raise Unsupported(f"a loop whose carried value {i} changes from {a.type} to {b.type}")
    cond, body = Graph(tuple(state), (is_going,)), Graph(tuple(state), tuple(ends))
    return ops.While(cond, body)(*starts, loc=location(node)).results


def scan(run: Run, node: fx.Node, body: fx.GraphModule, carried: Sequence[object], scanned: Sequence[object],
         others: Sequence[object] = ()) -> object:  # fmt: skip
    """(carried, y) = body(carried, x, others) for each slice x of `scanned` along axis 0; the ys stacked."""
    starts, xs, fixed = (_operands(v, "a scan") for v in (carried, scanned, others))
    if not xs:
        raise Unsupported("a scan over nothing")
    count, zero = xs[0].shape[0], const(0, i64.numpy)
    invariant = [*xs, *fixed]
    step = Input("step", TensorType(i64))()
    names, constants = _inputs(starts, "carried"), _inputs(invariant, "held")

    def slice_of(x: Node) -> Node:
        slice_ = ops.DynamicSlice((1, *x.shape[1:]))(x, step, *(zero for _ in x.shape[1:]))
        return ops.reshape(slice_, x.shape[1:])

    results = _operands(
        run(body, [*names, *map(slice_of, constants[: len(xs)]), *constants[len(xs) :]]), "a scan's body"
    )
    ends, parts = results[: len(starts)], results[len(starts) :]
    stacked = [Input(f"stacked{i}", TensorType(p.dtype, (count, *p.shape)))() for i, p in enumerate(parts)]
    writes = [
        ops.DynamicUpdateSlice()(s, ops.expand_dims(p, 0), step, *(zero for _ in p.shape))
        for s, p in zip(stacked, parts, strict=True)
    ]
    state = [step, *names, *constants, *stacked]
    is_going = ops.compare("LT", step, ops.scalar(count, i64))
    empty = [filled(s.shape, 0, s.dtype) for s in stacked]
    done = _loop(
        node, state, is_going, [ops.add(step, 1), *ends, *constants, *writes], [zero, *starts, *invariant, *empty]
    )
    return (*done[1 : 1 + len(starts)], *done[1 + len(starts) + len(constants) :])


def map_(run: Run, node: fx.Node, body: fx.GraphModule, scanned: Sequence[object], others: Sequence[object]) -> object:
    return scan(run, node, body, (), scanned, others)


def flex_attention(run: Run, node: fx.Node, *args: object) -> object:
    """Torch's own definition, traced, with `score_mod` and `mask_mod` vectorized over all positions. A later pass
    recognizes the attention in it."""
    read: tuple[Any, ...] = args
    _, _, _, score_mod, block_mask, scale, options, *buffers = read
    score_buffers, mask_buffers = (*buffers, (), ())[:2]
    places = [node.args[0], node.args[1], node.args[2], *(b for operands in node.args[7:9] for b in operands)]  # type: ignore[union-attr]
    metas = [p.meta["val"] if isinstance(p, fx.Node) else p for p in places]
    middle = 3 + len(score_buffers)

    def attention(*t: Any) -> Any:
        q, k, v = t[:3]
        return math_attention(q, k, v, score_mod, (block_mask[-1],), scale, options, t[3:middle], t[middle:])

    with metas[0].fake_mode:
        traced = make_fx(attention, decomposition_table=without_handled(core_aten_decompositions()))(*metas)
    return tuple(run(traced, [*read[:3], *score_buffers, *mask_buffers]))


HIGHER_ORDER: dict[str, Callable[..., object]] = {
    "wrap_with_set_grad_enabled": with_gradients, "wrap_with_autocast": _inline(4), "cond": cond,
    "while_loop": while_loop, "scan": scan, "map_impl": map_, "flex_attention": flex_attention,
}  # fmt: skip
