"""Merge matmuls that read the same value: q, k and v projections become one product.

    q = x @ Wq + bq; k = x @ Wk + bk   ->   y = x @ [Wq Wk] + [bq bk]; q = y[..., :n]; k = y[..., n:]

One large product reads x once and has full tiles. It pays where the results are only viewed before they are read from
memory (heads for attention); pointwise ops that follow a result are better fused as the epilogue of their own product.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Const, Graph, Node, const, deferred_const
from ingot.ir.rewrite import replace_nodes
from ingot.ir.types import DType, TensorType, static_shape
from ingot.support.dataclass import dataclass
from ingot.support.files import release


@dataclass(frozen=True)
class _Product:
    """x @ weight (+ bias), rounded to the result's dtype. result: the node that the rest of the graph reads."""

    product: Node
    result: Node
    weight: Node
    bias: np.ndarray | None


# merged products have these in common: the value that they read, and the dtype of their rounded results
_Kind = tuple[Node, DType]


def merge_matmuls(graph: Graph) -> Graph:
    """x @ A, x @ B -> slices of x @ [A B] (see module)"""
    users = graph.uses()
    replacements: dict[Node, Node] = {}
    for (x, _), products in _candidates(graph, users).items():
        if len(products) > 1:
            replacements |= _merged(x, products)
    return replace_nodes(graph, replacements)


def _candidates(graph: Graph, users: dict[Node, list[Node]]) -> dict[_Kind, list[_Product]]:
    out: dict[_Kind, list[_Product]] = {}
    outputs = set(graph.outputs)
    for n in graph.nodes():
        if not isinstance(n.op, ops.MatMul) or n in outputs:
            continue
        x, w = n.inputs
        if w.constant is None or w.type.rank != 2 or x.constant is not None:
            continue
        product = _rounded(_with_bias(n, w, users), users, outputs)
        readers = users.get(product.result, [])
        if readers and product.result not in outputs and all(isinstance(u.op, ops.Reshape) for u in readers):
            out.setdefault((x, product.result.dtype), []).append(product)
    return out


def _rounded(product: _Product, users: dict[Node, list[Node]], outputs: set[Node]) -> _Product:
    """`product` with the conversion that rounds its wider sums (f32 of bf16), if any."""
    readers = users.get(product.result, [])
    single = len(readers) == 1 and product.result not in outputs and isinstance(readers[0].op, ops.Convert)
    return replace(product, result=readers[0]) if single else product


def _with_bias(n: Node, weight: Node, users: dict[Node, list[Node]]) -> _Product:
    readers = users.get(n, [])
    if len(readers) == 1 and isinstance(readers[0].op, ops.Add):
        (add,) = readers
        other = add.inputs[1] if add.inputs[0] is n else add.inputs[0]
        op = other.op
        along_columns = isinstance(op, ops.BroadcastInDim) and op.dims == (n.type.rank - 1,)
        bias = other.inputs[0].op if along_columns else None
        if isinstance(bias, Const) and bias.value.shape == weight.shape[1:]:
            return _Product(n, add, weight, bias.value)
    return _Product(n, n, weight, None)


def _merged(x: Node, products: list[_Product]) -> dict[Node, Node]:
    loc = products[0].result.loc
    widest = max((p.product.dtype for p in products), key=lambda d: d.bits)
    y = ops.MatMul(None if widest == x.dtype else widest)(x, _concatenated([p.weight for p in products]), loc=loc)
    if any(p.bias is not None for p in products):
        zeros = [np.zeros(static_shape(p.weight.shape)[1], y.dtype.numpy) for p in products]
        parts = [z if p.bias is None else p.bias for p, z in zip(products, zeros, strict=True)]
        bias = const(np.concatenate(parts))
        y = ops.Add()(y, ops.BroadcastInDim(y.shape, (y.type.rank - 1,))(bias), loc=loc)
    y = ops.cast(y, products[0].result.dtype)
    out: dict[Node, Node] = {}
    start: DimLike = 0
    for p in products:
        width = p.weight.shape[1]
        lead = (0,) * (y.type.rank - 1)
        limit = (*y.shape[:-1], start + width)
        out[p.result] = ops.Slice((*lead, start), limit, (1,) * y.type.rank)(y, loc=p.result.loc)
        start += width
    return out


def _concatenated(weights: list[Node]) -> Node:
    """[W V ...], concatenated when it is read."""
    type_ = ops.Concat(1).infer(*(w.type for w in weights))
    arrays = [w.constant for w in weights if w.constant is not None]

    def make() -> np.ndarray:
        values = [a.value for a in arrays]
        out = np.concatenate(values, axis=1)
        for value in values:
            release(value)
        return out

    assert isinstance(type_, TensorType)
    return deferred_const(type_, make, key=("concatenated", *weights))
