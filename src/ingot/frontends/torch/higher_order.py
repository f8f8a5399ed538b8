"""Torch's higher-order ops: graphs as arguments of a node, imported as Case or While, or inlined.

A handler gets `run` (a graph and its arguments -> its results), the fx node, and the values of the node's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._higher_order_ops.flex_attention import math_attention
from torch._higher_order_ops.out_dtype import out_dtype_fallback
from torch.fx.experimental.proxy_tensor import make_fx

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.convert import dtype_of, location
from ingot.frontends.torch.decompose import without_handled
from ingot.frontends.torch.values import Complex, cast, i64
from ingot.ir.dims import Dim
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType

Run = Callable[[fx.GraphModule, Sequence[object]], list[object]]


def _operands(values: object, what: str) -> list[Node]:
    """`values` as nodes, complex tensors as their two parts. Raises Unsupported unless all are tensors."""
    operands = list(values) if isinstance(values, Sequence) else [values]
    if not all(isinstance(v, Node | Complex) for v in operands):
        raise Unsupported(f"{what} of something else than tensors")
    parts = ((v.real, v.imaginary) if isinstance(v, Complex) else (v,) for v in operands)
    return [n for nodes in parts for n in nodes if isinstance(n, Node)]


def _tensors(values: Sequence[object], what: str) -> list[Node]:
    """`_operands` of the tensors among `values`: sizes are available in a body without being operands."""
    return _operands([v for v in values if not isinstance(v, int | Dim)], what)


def _with_tensors(values: Sequence[object], nodes: Sequence[Node]) -> tuple[object, ...]:
    """`values` with `nodes` in place of its `_tensors`."""
    rest = iter(nodes)
    return tuple(
        Complex(next(rest), next(rest)) if isinstance(v, Complex) else next(rest) if isinstance(v, Node) else v
        for v in values
    )


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
    tensors = _tensors(operands, "branches")
    branches: list[Graph] = []
    results: Sequence[object] = ()
    for body in (no, yes):
        inputs = _inputs(tensors, "operand")
        results = run(body, _with_tensors(operands, inputs))
        branches.append(Graph(tuple(inputs), tuple(_operands(results, "a branch"))))
    chosen = ops.Case(tuple(branches))(cast(pred, dtype_of(torch.int32)), *tensors, loc=location(node))
    return _with_tensors(results, chosen.results)


def while_loop(run: Run, node: fx.Node, test: fx.GraphModule, body: fx.GraphModule, carried: Sequence[object],
               others: Sequence[object] = ()) -> object:  # fmt: skip
    """carried = body(carried, others) while test(carried, others)."""
    starts, fixed = _operands(carried, "a loop"), _tensors(others, "a loop")
    state = _inputs([*starts, *fixed], "carried")
    arguments = _with_tensors((*carried, *others), state)
    (is_going,) = _operands(run(test, arguments), "a loop's condition")
    ends = [*_operands(run(body, arguments), "a loop's body"), *state[len(starts) :]]
    return _with_tensors(carried, _loop(node, state, ops.reshape(is_going, ()), ends, [*starts, *fixed]))


def _loop(
    node: fx.Node, state: Sequence[Node], is_going: Node, ends: Sequence[Node], starts: Sequence[Node]
) -> tuple[Node, ...]:
    for i, (a, b) in enumerate(zip(state, ends, strict=True)):
        if a.type != b.type:
            raise Unsupported(f"a loop whose carried value {i} changes from {a.type} to {b.type}")
    cond, body = Graph(tuple(state), (is_going,)), Graph(tuple(state), tuple(ends))
    return ops.While(cond, body)(*starts, loc=location(node)).results


# carried values, slices of the scanned ones, others -> carried values, parts to stack
Step = Callable[[Sequence[object]], tuple[Sequence[object], Sequence[object]]]


def _scanned(node: fx.Node, step: Step, carried: Sequence[object], scanned: Sequence[object], others: Sequence[object],
             stacked: Sequence[Node] = ()) -> tuple[object, ...]:  # fmt: skip
    """The carried values after `step` on each slice of `scanned` along axis 0, and the stacked parts.

    stacked: initial values of the stacks; where they are given, their first row stays, and the loop starts at row 1.
    """
    starts, xs = _operands(carried, "a scan"), _operands(scanned, "a scan")
    if not xs:
        raise Unsupported("a scan over nothing")
    count, first, zero = xs[0].shape[0], const(len(stacked) and 1, i64.numpy), const(0, i64.numpy)
    invariant = [*xs, *_tensors(others, "a scan")]
    row = Input("row", TensorType(i64))()
    names, constants = _inputs(starts, "carried"), _inputs(invariant, "held")

    def slice_of(x: Node) -> Node:
        slice_ = ops.DynamicSlice((1, *x.shape[1:]))(x, row, *(zero for _ in x.shape[1:]))
        return ops.reshape(slice_, x.shape[1:])

    slices = [slice_of(x) for x in constants[: len(xs)]]
    values, parts = step(_with_tensors((*carried, *scanned, *others), [*names, *slices, *constants[len(xs) :]]))
    ends, rows = _operands(values, "a scan's body"), _operands(parts, "a scan's body")
    initial = stacked or [filled((count, *p.shape), 0, p.dtype) for p in rows]
    stacks = _inputs(initial, "stacked")
    writes = [
        ops.DynamicUpdateSlice()(s, ops.expand_dims(p, 0), row, *(zero for _ in p.shape))
        for s, p in zip(stacks, rows, strict=True)
    ]
    state = [row, *names, *constants, *stacks]
    is_going = ops.compare("LT", row, ops.scalar(count, i64))
    done = _loop(
        node, state, is_going, [ops.add(row, 1), *ends, *constants, *writes], [first, *starts, *invariant, *initial]
    )
    return _with_tensors((*values, *parts), [*done[1 : 1 + len(ends)], *done[1 + len(ends) + len(constants) :]])


def scan(run: Run, node: fx.Node, body: fx.GraphModule, carried: Sequence[object], scanned: Sequence[object],
         others: Sequence[object] = ()) -> object:  # fmt: skip
    """(carried, y) = body(carried, x, others) for each slice x of `scanned` along axis 0; the ys stacked."""

    def step(values: Sequence[object]) -> tuple[Sequence[object], Sequence[object]]:
        results = run(body, values)
        return results[: len(carried)], results[len(carried) :]

    return _scanned(node, step, carried, scanned, others)


def map_(run: Run, node: fx.Node, body: fx.GraphModule, scanned: Sequence[object], others: Sequence[object]) -> object:
    return scan(run, node, body, (), scanned, others)


_CUMULATIVE = {"add.Tensor": "sum", "mul.Tensor": "prod", "maximum.default": "max", "minimum.default": "min"}


def _cumulative_kind(combine: fx.GraphModule) -> str | None:
    """The kind of CumReduce that a scan with this function of two numbers is, or None."""
    *inputs, result = (n for n in combine.graph.nodes if n.op != "output")
    is_of_both = [*result.args] in (inputs[:2], inputs[1::-1]) and not result.kwargs
    is_numeric = isinstance(value := result.meta.get("val"), torch.Tensor) and value.dtype is not torch.bool
    return _CUMULATIVE.get(str(result.target).removeprefix("aten.")) if is_of_both and is_numeric else None


def associative_scan(run: Run, node: fx.Node, combine: fx.GraphModule, scanned: Sequence[object],
                     others: Sequence[object] = ()) -> object:  # fmt: skip
    """y[i] = combine(y[i - 1], x[i], others) along axis 0, with y[0] = x[0], for each x of `scanned`."""
    xs = _operands(scanned, "a scan")
    if len(xs) == 1 and (kind := _cumulative_kind(combine)) is not None:
        return (ops.CumReduce(kind, 0)(xs[0]),)

    def step(values: Sequence[object]) -> tuple[Sequence[object], Sequence[object]]:
        results = run(combine, values)
        return results, results

    first = _with_tensors(scanned, [ops.reshape(ops.slice_axis(x, 0, 0, 1), x.shape[1:]) for x in xs])
    return _scanned(node, step, first, scanned, others, stacked=xs)[len(scanned) :]


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

    return tuple(run(_traced(attention, metas), [*read[:3], *score_buffers, *mask_buffers]))


def out_dtype(run: Run, node: fx.Node, op: Any, dtype: torch.dtype, *operands: object) -> object:
    """`op` on operands of `dtype`, as torch defines it."""
    metas = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args[2:]]
    (result,) = run(_traced(partial(out_dtype_fallback, op, dtype), metas), operands)
    return result


def _traced(function: Callable[..., object], metas: Sequence[Any]) -> fx.GraphModule:
    """The graph of a function of tensors like `metas`."""
    with metas[0].fake_mode:
        return make_fx(function, decomposition_table=without_handled(core_aten_decompositions()))(*metas)


def invoke_subgraph(run: Run, node: fx.Node, body: object, name: str, *operands: object) -> object:
    """A nested compile region, which is inlined wherever it is called."""
    return _inline(0)(run, node, body, *operands)


def on_list(run: Run, node: fx.Node, body: object, operands: Sequence[object], *_: object) -> object:
    """A region whose operands are a list, which is inlined."""
    return _inline(0)(run, node, body, *operands)


HIGHER_ORDER: dict[str, Callable[..., object]] = {
    "wrap_with_set_grad_enabled": with_gradients, "wrap_with_autocast": _inline(4), "cond": cond,
    "while_loop": while_loop, "scan": scan, "map_impl": map_,
    "associative_scan": associative_scan, "out_dtype": out_dtype, "hints_wrapper": on_list, "strict_mode": on_list,
    "foreach_map": _inline(0), "invoke_subgraph": invoke_subgraph, "flex_attention": flex_attention,
}  # fmt: skip
