"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff import pullback
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Operand,
    axis_of,
    boolean,
    cast,
    expand,
    i64,
    promoted,
    sums_of,
)
from ingot.ir.node import Node

aten = Table()


def scaled(x: Node, factor: Operand) -> Node:
    """x * factor; `x` itself for the number 1."""
    if isinstance(factor, int | float) and factor == 1:
        return x
    return ops.Mul()(x, filled(x.shape, factor, x.dtype))


@aten(
    "mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "vdot.default",
    "linalg_matmul.default",
)  # fmt: skip
def matmul(c: Context, a: Node, b: Node) -> Node:
    return ops.MatMul()(a, b)


@aten("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_mm(
    c: Context, a: Node, b: Node, offs: Node | None = None, bias: Node | None = None, out_dtype: object = None
) -> Node:
    """Each group of rows of `a`, up to an offset, times its own matrix; or each group of columns of `a` times the same
    group of rows of `b`; without offsets, a batched product."""
    if offs is None:
        return ops.MatMul()(a, b)
    if (a.type.rank, b.type.rank) == (2, 2):
        return _grouped_sums(ops.swap_axes(a, 0, 1), b, offs)
    if (a.type.rank, b.type.rank) != (2, 3):
        raise Unsupported(f"groups of operands of rank {a.type.rank} and {b.type.rank}; only 2 and 3, and 2 and 2")
    return ops.GroupedMatMul()(a, b, offs)


@aten("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_backward(c: Context, x: Node, w: Node, offs: Node, g: Node) -> tuple[Node, Node]:
    return ops.GroupedMatMul()(g, ops.swap_axes(w, 1, 2), offs), _grouped_sums(x, g, offs)


def _grouped_sums(x: Node, g: Node, offs: Node) -> Node:
    """[S, K], [S, N] -> [G, K, N]: x^T g of each group's rows, the gradient of the group's matrix."""
    sums = filled((*offs.shape, x.shape[1], g.shape[1]), 0, x.dtype)
    return pullback(lambda w: ops.GroupedMatMul()(x, w, offs), sums, g)


@aten("trace.default")
def trace(c: Context, x: Node) -> Node:
    x = cast(x, c.dtype)
    diagonal = ops.Compare("EQ")(ops.iota(x.shape, 0), ops.iota(x.shape, 1))
    return ops.reduce_sum(ops.Select()(diagonal, x, filled(x.shape, 0, x.dtype)), (0, 1))


@aten("linalg_cross.default")
def linalg_cross(c: Context, a: Node, b: Node, *, dim: int = -1) -> Node:
    """a[1] b[2] - a[2] b[1], and so on cyclically."""
    a, b = expand(a, c.shape), expand(b, c.shape)
    axis = axis_of(dim, a.type.rank)

    def rolled(x: Node, by: int) -> Node:
        return ops.Concat(axis)(cut(x, axis, by, 3), cut(x, axis, 0, by))

    return ops.Sub()(ops.Mul()(rolled(a, 1), rolled(b, 2)), ops.Mul()(rolled(a, 2), rolled(b, 1)))


@aten("cross.default")
def cross(c: Context, a: Node, b: Node, dim: int | None = None) -> Node:
    if dim is None:
        dim = next((axis for axis, size in enumerate(c.shape) if size == 3), -1)
    return linalg_cross(c, a, b, dim=dim)


@aten("inner.default")
def inner(c: Context, a: Node, b: Node) -> Node:
    """Sums of products over both last axes; a 0-d operand scales."""
    if not a.type.rank or not b.type.rank:
        shape = b.shape if not a.type.rank else a.shape
        return ops.Mul()(expand(a, shape), expand(b, shape))
    return ops.DotGeneral(((), ()), ((a.type.rank - 1,), (b.type.rank - 1,)), None)(a, b)


@aten("linear.default")
def linear(c: Context, x: Node, weight: Node, bias: Node | None = None) -> Node:
    weight = ops.swap_axes(weight, 0, 1) if weight.type.rank == 2 else weight
    if bias is None:
        return ops.MatMul()(x, weight)
    product = ops.MatMul(sums_of(x.dtype))(x, weight)
    return cast(ops.Add()(product, expand(cast(bias, product.dtype), product.shape)), x.dtype)


def _added(c: Context, base: Node, product: Node, beta: Operand, alpha: Operand) -> Node:
    """beta base + alpha product, rounded once. A factor of 0 drops what it scales even where that is NaN."""

    def is_zero(factor: Operand) -> bool:
        return isinstance(factor, int | float) and factor == 0

    product = filled(product.shape, 0, product.dtype) if is_zero(alpha) else scaled(product, alpha)
    if not is_zero(beta):
        product = ops.Add()(product, scaled(expand(cast(base, product.dtype), product.shape), beta))
    return cast(product, c.dtype)


@aten("addmm.default", "baddbmm.default", "addmv.default")
def addmm(c: Context, base: Node, a: Node, b: Node, *, beta: Operand = 1, alpha: Operand = 1) -> Node:
    return _added(c, base, ops.MatMul(sums_of(a.dtype))(a, b), beta, alpha)


@aten("addbmm.default")
def addbmm(c: Context, base: Node, a: Node, b: Node, *, beta: Operand = 1, alpha: Operand = 1) -> Node:
    return _added(c, base, ops.Reduce("sum", (0,))(ops.MatMul(sums_of(a.dtype))(a, b)), beta, alpha)


@aten("addr.default")
def addr(c: Context, base: Node, a: Node, b: Node, *, beta: Operand = 1, alpha: Operand = 1) -> Node:
    a, b = promoted((a, b), c.dtype)
    return _added(c, promoted((base,), c.dtype)[0], _outer(a, b), beta, alpha)


def _outer(a: Node, b: Node) -> Node:
    shape = (*a.shape, *b.shape)
    return ops.Mul()(expand(ops.expand_dims(a, 1), shape), expand(b, shape))


@aten("outer.default", "ger.default")
def outer(c: Context, a: Node, b: Node) -> Node:
    return _outer(*promoted((a, b), c.dtype))


@aten("einsum.default")
def einsum(c: Context, equation: str, tensors: Sequence[Node], *, path: Sequence[int] | None = None) -> Node:
    # of narrow integers, torch returns i64 where it multiplies and sums, and the same type where it calls a matmul
    dtype = i64 if c.dtype == boolean else c.dtype
    return cast(ops.Einsum(equation.replace(" ", ""))(*promoted(tensors, dtype)), c.dtype)


@aten("tensordot.default")
def tensordot(c: Context, a: Node, b: Node, dims_self: Sequence[int], dims_other: Sequence[int]) -> Node:
    lhs_axes = tuple(d % a.type.rank for d in dims_self)
    rhs_axes = tuple(d % b.type.rank for d in dims_other)
    # a size of 1 is broadcast: the other operand is summed
    for i, j in zip(lhs_axes, rhs_axes, strict=True):
        if a.shape[i] == 1 and b.shape[j] != 1:
            b = _summed(b, j)
        elif b.shape[j] == 1 and a.shape[i] != 1:
            a = _summed(a, i)
    return ops.DotGeneral(((), ()), (lhs_axes, rhs_axes), None)(a, b)


def _summed(x: Node, axis: int) -> Node:
    """The sum over `axis`, kept as size 1."""
    shape = tuple(1 if d == axis else size for d, size in enumerate(x.shape))
    return ops.Reshape(shape)(ops.Reduce("sum", (axis,))(x))


@aten("bilinear.default")
def bilinear(c: Context, a: Node, b: Node, weight: Node, bias: Node | None = None) -> Node:
    product = ops.Einsum("...i,kij,...j->...k")(a, weight, b)
    return product if bias is None else ops.Add()(product, expand(bias, product.shape))


@aten("chain_matmul.default", "linalg_multi_dot.default")
def chain(c: Context, tensors: Sequence[Node]) -> Node:
    product = tensors[0]
    for x in tensors[1:]:
        product = ops.MatMul()(product, x)
    return product


@aten("kron.default")
def kron(c: Context, a: Node, b: Node) -> Node:
    a, b = promoted((a, b), c.dtype)
    rank = max(a.type.rank, b.type.rank)
    a = reshape(a, (*((1,) * (rank - a.type.rank)), *a.shape))
    b = reshape(b, (*((1,) * (rank - b.type.rank)), *b.shape))
    lhs = reshape(a, tuple(d for s in a.shape for d in (s, 1)))
    rhs = reshape(b, tuple(d for s in b.shape for d in (1, s)))
    shape = tuple(d for s, t in zip(a.shape, b.shape, strict=True) for d in (s, t))
    return reshape(ops.Mul()(expand(lhs, shape), expand(rhs, shape)), c.shape)
