"""Small kernels in one launch, and what is written into caches computed as it is written."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f16, f32, i64
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

HEADS, PLACES, HEAD = 2, 12, 8
RNG = np.random.default_rng(8)


def rotate(x: Node, cos: Node, sin: Node) -> Node:
    """Rotary positions: x * cos + [-x2, x1] * sin"""
    shape = x.shape
    halves = [ops.Slice((0, 0, 0, a), (*shape[:3], a + HEAD // 2), (1,) * 4)(x) for a in (HEAD // 2, 0)]
    cross = ops.Concat(3)(ops.Neg()(halves[0]), halves[1])
    cos, sin = (ops.BroadcastInDim(shape, (3,))(p) for p in (cos, sin))
    return ops.Add()(ops.Mul()(x, cos), ops.Mul()(cross, sin))


def step() -> Graph:
    """A decoder's queries, its new key and value, which are written into caches that last, and attention to these."""
    shape = 1, HEADS, 1, HEAD
    wide = HEADS * HEAD
    x = Input("x", TensorType(f16, (1, 64)))()
    at = Input("at", TensorType(i64, ()))()
    cos, sin = (Input(label, TensorType(f16, (HEAD,)))() for label in ("cos", "sin"))
    caches = [Input(label, TensorType(f16, (1, HEADS, PLACES, HEAD)))() for label in ("keys", "values")]
    w = const((RNG.normal(size=(64, 3 * wide)) / 8).astype(np.float16))
    y = ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)
    q, k, v = (ops.reshape(ops.Slice((0, i * wide), (1, (i + 1) * wide), (1, 1))(y), shape) for i in range(3))
    zero = const(np.zeros((), np.int64))
    new = (rotate(k, cos, sin), v)
    updated = [ops.DynamicUpdateSlice()(old, n, zero, zero, at, zero) for old, n in zip(caches, new, strict=True)]
    attention = ops.Attention("none", 0.3)(rotate(q, cos, sin), *updated)
    return Graph((x, at, cos, sin, *caches), (*updated, attention), state=("keys", "values"))


def separate_step(heads: int) -> Graph:
    """The same with a product for each of queries, keys and values, in a framework's order: a value's update stands
    before the next product. The caches are written through transposed views."""
    shape, wide = (1, heads, 1, HEAD), heads * HEAD
    x, at = Input("x", TensorType(f16, (1, 64)))(), Input("at", TensorType(i64, (1,)))()
    cos, sin = (Input(label, TensorType(f16, (HEAD,)))() for label in ("cos", "sin"))
    weights = [Input(f"w{i}", TensorType(f16, (64, wide)))() for i in range(3)]
    caches = [Input(label, TensorType(f16, (1, heads, PLACES, HEAD)))() for label in ("keys", "values")]
    q, k, v = (ops.reshape(ops.DotGeneral(((), ()), ((1,), (0,)))(x, w), shape) for w in weights)

    def updated(cache: Node, new: Node) -> Node:
        first, last = (2, 0, 1, 3), (1, 2, 0, 3)
        rows = ops.ScatterND()(ops.Transpose(first)(cache), ops.reshape(at, (1, 1)), ops.Transpose(first)(new))
        return ops.Transpose(last)(rows)

    new = updated(caches[1], v), updated(caches[0], rotate(k, cos, sin))
    attention = ops.Attention("none", 0.3)(rotate(q, cos, sin), new[1], new[0])
    return Graph((x, at, cos, sin, *weights, *caches), (*reversed(new), attention), state=("keys", "values"))


@pytest.mark.parametrize("heads", [1, HEADS])
def test_groups_that_follow_join_a_launch(heads: int) -> None:
    graph = separate_step(heads)
    program, _ = planned(graph, H100)
    # products with the place in the caches; updates with the queries' positions; attention
    assert [s.label.count("|") for s in program.steps] == [3, 2, 0], [s.label for s in program.steps]
    assert not any(s.copy_reason for s in program.state)
    inputs = [RNG.normal(size=n.shape).astype(np.float16) for n in graph.inputs[:-2]]
    for place in (0, 7, PLACES - 1):
        inputs[1] = np.array([place])
        (got,) = run_checked(graph, inputs, H100)
        old = [np.zeros((1, heads, PLACES, HEAD), np.float16)] * 2
        np.testing.assert_allclose(got, interpret(graph, [*inputs, *old])[2], atol=5e-2)


def test_positions_and_caches_are_one_launch() -> None:
    graph = step()
    program, _ = planned(graph, H100)
    names = [s.kernel for s in program.steps]
    assert len(names) == 3, names
    assert not any(s.copy_reason for s in program.state)
    assert sum(s.label.count("|") for s in program.steps) == 2
    x, cos, sin = (RNG.normal(size=s).astype(np.float16) for s in ((1, 64), HEAD, HEAD))
    for place in (0, 7, PLACES - 1):
        inputs = [x, np.array(place), cos, sin]
        (got,) = run_checked(graph, inputs, H100)
        old = [np.zeros((1, HEADS, PLACES, HEAD), np.float16)] * 2
        np.testing.assert_allclose(got, interpret(graph, [*inputs, *old])[2], atol=2e-3)


def test_an_update_that_reads_what_it_changes_is_computed_before() -> None:
    """cache[at] = cache[0] + x: other programs write what each would read."""
    x, at = Input("x", TensorType(f16, (4, 8)))(), Input("at", TensorType(i64, ()))()
    cache = Input("cache", TensorType(f16, (4, 8)))()
    zero = const(np.zeros((), np.int64))
    new_rows = ops.Slice((0, 0), (1, 8), (1, 1))(ops.Mul()(ops.Reverse((0,))(cache), x))
    new = ops.DynamicUpdateSlice()(cache, new_rows, at, zero)
    graph = Graph((x, at, cache), (new, ops.Neg()(new)), state=("cache",))
    assert len(planned(graph, H100)[0].steps) == 3
    inputs = [RNG.normal(size=(4, 8)).astype(np.float16), np.array(2)]
    (got,) = run_checked(graph, inputs, H100)
    np.testing.assert_array_equal(got, interpret(graph, [*inputs, np.zeros((4, 8), np.float16)])[1])


def test_large_kernels_have_a_launch_each() -> None:
    x = Input("x", TensorType(f16, (1 << 18,)))()
    graph = Graph((x,), (ops.Exp()(x), ops.reshape(ops.Sin()(x), (1 << 9, 1 << 9))))
    assert len(planned(graph, H100)[0].steps) == 2


def test_what_needs_another_waits_for_it() -> None:
    x = Input("x", TensorType(f16, (40,)))()
    sums = [ops.Reduce("sum", (0,))(f()(x)) for f in (ops.Exp, ops.Tanh, ops.Sin)]
    spread = ops.BroadcastInDim((8, 5), ())  # other elements than those of the sums
    graph = Graph((x,), (*sums, ops.Sub()(spread(sums[0]), spread(sums[2]))))
    program, _ = planned(graph, H100)
    assert len(program.steps) == 2
    value = RNG.normal(size=40).astype(np.float16)
    for got, want in zip(run_checked(graph, [value], H100), interpret(graph, [value]), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_products_whose_operands_are_copied_in_boxes_share_a_launch() -> None:
    arrays = [RNG.normal(size=s).astype(np.float16) for s in ((1024, 64), (64, 32)) * 2]
    inputs = tuple(Input(f"x{i}", TensorType(f16, a.shape))() for i, a in enumerate(arrays))
    dot = ops.DotGeneral(((), ()), ((1,), (0,)))
    graph = Graph(inputs, (dot(*inputs[:2]), dot(*inputs[2:])))
    program, kernels = planned(graph, H100)
    (kernel,) = kernels.values()
    assert len(program.steps) == 1
    assert sum(b.matrix is not None for b in kernel.params) == 4
    for got, want in zip(run_checked(graph, arrays, H100), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-2)


def test_kernels_of_one_program_in_a_loop_share_a_launch() -> None:
    """A drawn token and its bookkeeping: each needs what the one before wrote, and a copy of what the loop carries."""
    size, trip_count = 40, 5
    x, count = Input("x", TensorType(f32, (size,)))(), Input("count", TensorType(i64, ()))()
    before = (const(np.zeros((), np.int64)), count, x, const(np.full(8, -1, np.int64)))
    i, last, scores, places = inputs = tuple(Input(f"v{n}", v.type)() for n, v in enumerate(before))
    best = ops.arg_reduce("max", scores, 0)
    lowered = ops.DynamicUpdateSlice()(scores, const(np.full(1, -9.0, np.float32)), best)
    stored = ops.DynamicUpdateSlice()(places, ops.reshape(best, (1,)), i)
    after = (ops.add(i, 1), last, lowered, stored)
    cond = Graph(inputs, (ops.compare("LT", i, last),))
    results = ops.While(cond, Graph(inputs, after))(*before).results
    graph = Graph((x, count), (results[2], results[3]))
    program, _ = planned(graph, H100)
    first, end = (n for n, step in enumerate(program.steps) if step.target is not None)
    body = [step.label for step in program.steps[first + 1 : end]]
    assert len(body) == 1 and body[0].count(">") >= 2, body
    values = [RNG.permutation(size).astype(np.float32), np.array(trip_count)]
    for got, want in zip(run_checked(graph, values, H100), interpret(graph, values), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_product_of_tiles_keeps_its_warps() -> None:
    """Beside it another kernel may have more warps than alone; the product's tiles are chosen with its own."""
    a, b, x = (Input(f"x{i}", TensorType(f16, s))() for i, s in enumerate(((64, 64), (64, 32), (8, 4096))))
    product, y = ops.DotGeneral(((), ()), ((1,), (0,)))(a, b), ops.Reduce("sum", (1,))(x)
    alone = [planned(Graph(inputs, (r,)), H100)[1] for inputs, r in (((a, b), product), ((x,), y))]
    (own,), (other,) = ([dict(kernel.hints)["warps"] for kernel in kernels.values()] for kernels in alone)
    _, kernels = planned(Graph((a, b, x), (product, y)), H100)
    assert len(kernels) == (1 if own >= other else 2)
    assert all(dict(kernel.hints)["warps"] == own for kernel in kernels.values() if "product" in kernel.name)
