"""Products of widened 16-bit floats as products of the 16-bit floats.

    dot_general(convert<f32>(a), transpose(convert<f32>(b)))  ->  dot_general<f32>(a, transpose(b))    for tensor cores
    dot_general(x, transpose(convert<f32>(w)))                ->  dot_general<f32>(x, transpose(w))    for constants w

    attention(q, convert<f32>(k), convert<f32>(v))            ->  attention(q, k, v)                   for few queries
    attention(q, convert<f32>(k) * ks, convert<f32>(v) * vs)  ->  attention<scaled>(q, k, v, ks, vs)   of i8

The result is the same but for the order of its sums: products of two 16-bit floats are exact in f32, and a weight that
is stored in 16 bits is widened as it is loaded, at half of the memory's traffic.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import Rule, rewrite, rules
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8
from ingot.passes.constants import is_constant


def narrow_products(graph: Graph) -> Graph:
    """Return the graph with products of 16-bit operands wherever both are widened values of one type."""
    return rewrite(graph, NARROW_PRODUCTS)


def _narrow_product(n: Node) -> Node | None:
    if n.dtype != f32:
        return None
    a, b = map(_unwidened, n.inputs)
    if a is None or b is None or a.dtype != b.dtype:
        return None
    return n.op.with_sums(f32)(a, b, loc=n.loc)


def widened_value(n: Node, *dtypes: DType) -> Node | None:
    """The operand of a conversion to f32 from one of `dtypes`; None of other nodes."""
    is_widened = isinstance(n.op, ops.Convert) and n.dtype == f32 and n.inputs[0].dtype in dtypes
    return n.inputs[0] if is_widened else None


def narrow_weights(graph: Graph, types: tuple[DType, ...]) -> Graph:
    """Return the graph with products of constants of 16-bit `types` wherever these are widened (see module)."""

    def narrow_weight(n: Node) -> Node | None:
        x, w = n.inputs
        narrow = _unwidened(w) if n.dtype == x.dtype == f32 else None
        if narrow is None or narrow.dtype not in types or not is_constant(narrow) or w.type.rank != 2:
            return None
        return n.op.with_sums(f32)(x, narrow, loc=n.loc)

    return rewrite(graph, rules(Rule("narrow-weight", ops.DotGeneral, narrow_weight)))


_F8 = (f8e4m3fn, f8e5m2)
MAX_QUERIES = 8  # whose attention reads each key once, so that it may as well widen it


def narrow_caches(graph: Graph, types: tuple[DType, ...]) -> Graph:
    """Return the graph with attention of few queries reading keys and values in 8 bits, or 16-bit `types`, wherever
    these are widened for it (see module)."""

    def narrow(n: Node) -> Node | None:
        op, (q, k, v, *mask) = n.op, n.inputs
        assert isinstance(op, ops.Attention)
        rows = q.shape[2]
        if op.scaled or q.dtype != f32 or not isinstance(rows, int) or rows > MAX_QUERIES:
            return None
        keys, values = _unwidened(k, *types, *_F8), _unwidened(v, *types, *_F8)
        if keys is not None and values is not None and keys.dtype == values.dtype:
            return op(q, keys, values, *mask, loc=n.loc)
        levels = [_scaled_levels(x) for x in (k, v)]
        if not all(levels):
            return None
        (keys, key_scales), (values, value_scales) = (x for x in levels if x is not None)
        return replace(op, scaled=True)(q, keys, values, *mask, key_scales, value_scales, loc=n.loc)

    return rewrite(graph, rules(Rule("narrow-cache", ops.Attention, narrow)))


def _scaled_levels(n: Node) -> tuple[Node, Node] | None:
    """(levels in i8, f32[.., 1]) whose product `n` is."""
    if not isinstance(n.op, ops.Mul) or n.dtype != f32:
        return None
    wide, scale = n.inputs
    is_levels = isinstance(wide.op, ops.Convert) and wide.inputs[0].dtype == i8
    if not is_levels or not isinstance(scale.op, ops.BroadcastInDim):
        return None
    (source,) = scale.inputs
    sizes = [(d, size) for d, size in zip(scale.op.dims, source.shape, strict=True) if size != 1]
    if sizes != [(d, size) for d, size in enumerate(n.shape[:-1]) if size != 1]:
        return None
    return wide.inputs[0], ops.reshape(source, (*n.shape[:-1], 1))


def _unwidened(n: Node, *dtypes: DType) -> Node | None:
    """The value of one of `dtypes` (by default of 16 bits) that `n` is in f32, maybe rearranged; None if it is no
    such."""
    if isinstance(n.op, ops.Convert):
        return widened_value(n, *(dtypes or (f16, bf16)))
    if not n.op.rearranges or len(n.inputs) != 1:
        return None
    x = _unwidened(n.inputs[0], *dtypes)
    return None if x is None else n.op(x, loc=n.loc)


NARROW_PRODUCTS = rules(
    Rule("narrow-dot", ops.DotGeneral, _narrow_product), Rule("narrow-convolution", ops.Convolution, _narrow_product)
)
