"""One product for a sum of products of few terms.

    a @ v + x + b @ w   ->   x + concat(a, b) @ concat(v, w)

The gradient of what queries, keys and values are projected from is such a sum. A product of few terms takes the time
of its start and of its epilogue, which stores and loads the sum so far; a and b are computed in their places. The sum
is rounded once, so it is exact but for the order of its terms.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.dims import estimate, is_static
from ingot.ir.node import Graph, Node, rebuild
from ingot.ir.types import TensorType, f32
from ingot.ops import Add, Concat, Convert, DotGeneral, Reshape, reshape
from ingot.ops.views import base_of
from ingot.passes.constants import is_constant

MAX_TERMS = 1024  # of a product: a longer one takes the time of its terms
MIN_ROWS = 256  # of the result, from which on copies of the second operands cost less than they save
_MATRICES = DotGeneral(((), ()), ((1,), (0,)))
_Products = tuple[tuple[Node, Node], ...]  # the operands of each


def sum_products(graph: Graph) -> Graph:
    """a @ v + x + b @ w -> x + concat(a, b) @ concat(v, w), for 16-bit matrices whose products nothing else reads"""
    users, outputs = graph.uses(), set(graph.outputs)
    sums: dict[Node, tuple[Node | None, _Products]] = {}  # another term, and products

    def sum_of(n: Node, image: Node) -> tuple[Node | None, _Products]:
        """The terms of a sum that only one node reads; any other value is a term itself."""
        return sums.get(n, (image, ())) if len(users.get(n, ())) == 1 and n not in outputs else (image, ())

    def summed(n: Node, images: Sequence[Node]) -> Node:
        terms = [sum_of(i, image) for i, image in zip(n.inputs, images, strict=True)]
        match n.op:
            case DotGeneral() if _is_short(n):
                sums[n] = None, ((images[0], images[1]),)
            case Reshape() | Convert() if n.dtype in (n.inputs[0].dtype, f32) and terms[0][0] is None:
                sums[n] = terms[0]
            case Add():
                (x, a), (y, b) = terms
                if (x is None or y is None) and len({_type(p) for p in (*a, *b)}) == 1:
                    sums[n] = x or y, (*a, *b)
                    return _sum(*sums[n], n) if a and b else n.with_inputs(images)
            case _:
                pass
        return n.with_inputs(images)

    return graph.with_outputs(rebuild(graph.outputs, rule=summed))


def _is_short(n: Node) -> bool:
    """Whether a node is a product of few terms of a computed matrix and one that is known only at run time."""
    if n.op != _MATRICES or not n.dtype.is_float or n.dtype.bits != 16 or any(i.type.rank != 2 for i in n.inputs):
        return False
    if not is_static((*n.inputs[0].shape, *n.inputs[1].shape)):
        return False
    rows, terms = map(estimate, n.inputs[0].shape)
    is_computed = not base_of(n.inputs[0]).is_leaf and not any(map(is_constant, n.inputs))
    return rows >= MIN_ROWS and terms <= MAX_TERMS and is_computed


def _type(operands: tuple[Node, Node]) -> TensorType:
    """Of the product of two matrices."""
    a, b = operands
    return TensorType(a.dtype, (a.shape[0], b.shape[1]))


def _sum(other: Node | None, products: _Products, n: Node) -> Node:
    """The sum of products, and of another term, in the type and shape of `n`."""
    a, b = zip(*products, strict=True)
    dot = DotGeneral(_MATRICES.batch, _MATRICES.contract, None if n.dtype == a[0].dtype else n.dtype)
    product = reshape(dot(Concat(1)(*a, loc=n.loc), Concat(0)(*b, loc=n.loc), loc=n.loc), n.shape)
    return product if other is None else Add()(other, product, loc=n.loc)


__all__ = ["sum_products"]
