"""Reductions, scans, sorts and norms over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.elementwise import compare, is_true
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    aligned,
    axes_of,
    axis_of,
    boolean,
    cast,
    expand,
    f32,
    i64,
    node_of,
    require_elements,
    scalar_like,
    wide,
)
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node, Op
from ingot.ir.types import DType

aten = Table()

Dims = int | Sequence[int] | None


def reduced(kind: str, x: Node, axes: Sequence[int], keepdim: bool) -> Node:
    """As `ops.reduce`; a 0-d tensor is returned as it is."""
    return ops.reduce(kind, x, axes, keepdim) if x.type.rank else x


@aten("sum.default", "sum.dim_IntList")
def sum_(c: Context, x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Node:
    return reduced("sum", cast(x, c.dtype), axes_of(dim, x.type.rank), keepdim)


@aten("histc.default")
def histc(c: Context, x: Node, bins: int = 100, min: float = 0, max: float = 0) -> Node:
    """The number of elements in each of equally wide bins; the last one includes its upper end, and elements outside
    are not counted."""
    x = reshape(x, (product(x.shape),))
    low, high = scalar_like(min, x), scalar_like(max, x)
    if min == max:
        low, high = ops.Reduce("min", (0,))(x), ops.Reduce("max", (0,))(x)
        flat = ops.Compare("EQ")(low, high)
        one = scalar_like(1, x)
        low, high = ops.Select()(flat, ops.Sub()(low, one), low), ops.Select()(flat, ops.Add()(high, one), high)
    scaled = ops.mul(ops.sub(x, low), bins)
    bin = ops.minimum(cast(ops.div(scaled, ops.sub(high, low)), i64), bins - 1)
    is_inside = ops.And()(compare("GE", x, expand(low, x.shape)), compare("LE", x, expand(high, x.shape)))
    bin = ops.Select()(is_inside, bin, filled(x.shape, -1, i64))
    shape = (bins, *x.shape)
    is_bin = ops.Compare("EQ")(ops.iota(shape, 0), ops.BroadcastInDim(shape, (1,))(bin))
    return cast(ops.Reduce("sum", (1,))(cast(is_bin, i64)), c.dtype)


@aten("nansum.default")
def nansum(c: Context, x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Node:
    x = cast(x, c.dtype)
    if x.dtype.is_float:
        x = ops.Select()(ops.IsNan()(x), filled(x.shape, 0, x.dtype), x)
    return reduced("sum", x, axes_of(dim, x.type.rank), keepdim)


@aten("prod.default")
def prod(c: Context, x: Node, *, dtype: object = None) -> Node:
    return reduced("prod", cast(x, c.dtype), axes_of(None, x.type.rank), False)


@aten("prod.dim_int")
def prod_dim(c: Context, x: Node, dim: int, keepdim: bool = False, *, dtype: object = None) -> Node:
    return reduced("prod", cast(x, c.dtype), axes_of(dim, x.type.rank), keepdim)


def mean_of(x: Node, axes: Sequence[int], keepdim: bool) -> Node:
    total = reduced("sum", x, axes, keepdim)
    count = product(x.shape[a] for a in axes) if x.type.rank else 1
    return ops.Div()(*aligned((total, count), x.dtype))


@aten("mean.default", "mean.dim")
def mean(c: Context, x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Node:
    x = cast(x, c.dtype)
    return cast(mean_of(cast(x, wide(x.dtype)), axes_of(dim, x.type.rank), keepdim), c.dtype)


def variance(x: Node, axes: Sequence[int], correction: float, keepdim: bool) -> tuple[Node, Node]:
    """(variance, mean), in x's dtype: the mean square of the deviations, two passes."""
    center = mean_of(x, axes, True)
    deviation = ops.Sub()(x, expand(center, x.shape))
    squares = reduced("sum", ops.Mul()(deviation, deviation), axes, keepdim)
    count = product(x.shape[a] for a in axes) if x.type.rank else 1
    if correction == int(correction):
        # PyTorch divides by max(0, count - correction)
        freedom = ops.Max()(node_of(count - int(correction), x.dtype), node_of(0, x.dtype))
    else:
        freedom = ops.Max()(ops.Sub()(node_of(count, x.dtype), node_of(correction, x.dtype)), node_of(0, x.dtype))
    value = ops.Div()(squares, expand(freedom, squares.shape))
    return value, center if keepdim or not x.type.rank else reshape(center, value.shape)


def _moments(x: Node, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Node, Node]:
    return variance(cast(x, wide(x.dtype)), axes_of(dim, x.type.rank), 1 if correction is None else correction, keepdim)


def _spread_rows(name: str, finish: Callable[[Node, Node, DType], object]) -> None:
    """The overloads of var, std, var_mean and std_mean."""

    def corrected(
        c: Context, x: Node, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
    ) -> object:
        return finish(*_moments(x, dim, correction, keepdim), x.dtype)

    def by_dim(c: Context, x: Node, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> object:
        return finish(*_moments(x, dim, int(unbiased), keepdim), x.dtype)

    def over_all(c: Context, x: Node, unbiased: bool = True) -> object:
        return finish(*_moments(x, None, int(unbiased), False), x.dtype)

    aten.add(f"{name}.correction", corrected)
    aten.add(f"{name}.dim", by_dim)
    aten.add(f"{name}.default", over_all)


_spread_rows("var", lambda v, m, t: cast(v, t))
_spread_rows("std", lambda v, m, t: cast(ops.Sqrt()(v), t))
_spread_rows("var_mean", lambda v, m, t: (cast(v, t), cast(m, t)))
_spread_rows("std_mean", lambda v, m, t: (cast(ops.Sqrt()(v), t), cast(m, t)))


def _extreme(c: Context, kind: str, x: Node, axes: Sequence[int], keepdim: bool) -> Node:
    require_elements(c, (x.shape[a] for a in axes) if x.type.rank else (), kind)
    if x.dtype == boolean:
        return reduced("or" if kind == "max" else "and", x, axes, keepdim)
    return reduced(kind, x, axes, keepdim)


def _extremes(kind: str) -> None:
    def amax(c: Context, x: Node, dim: Dims = (), keepdim: bool = False) -> Node:
        return _extreme(c, kind, x, axes_of(dim, x.type.rank), keepdim)

    def over_all(c: Context, x: Node) -> Node:
        return _extreme(c, kind, x, axes_of(None, x.type.rank), False)

    def with_index(c: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        axes = axes_of(dim, x.type.rank)
        return _extreme(c, kind, x, axes, keepdim), arg_extreme(kind, x, axes[0] if x.type.rank else 0, keepdim)

    def index(c: Context, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        if dim is None:
            place = arg_extreme(kind, reshape(x, (product(x.shape),)), 0, False)
            return reshape(place, c.shape)
        return arg_extreme(kind, x, axis_of(dim, x.type.rank), keepdim)

    aten.add(f"a{kind}.default", amax)
    aten.add(f"{kind}.default", over_all)
    aten.add(f"{kind}.dim", with_index)
    aten.add(f"arg{kind}.default", index)


def arg_extreme(kind: str, x: Node, axis: int, keepdim: bool) -> Node:
    if not x.type.rank:
        return node_of(0, i64)
    if x.dtype == boolean:
        x = cast(x, f32)
    return ops.arg_reduce(kind, x, axis, keepdim)


_extremes("max")
_extremes("min")


@aten("aminmax.default")
def aminmax(c: Context, x: Node, *, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    axes = axes_of(dim, x.type.rank)
    low, high = _extreme(c, "min", x, axes, keepdim), _extreme(c, "max", x, axes, keepdim)
    return reshape(low, c.results[0].shape), reshape(high, c.results[1].shape)


def _quantifier(kind: str) -> Callable[..., Node]:
    def quantifier(c: Context, x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
        return cast(reduced(kind, is_true(x), axes_of(dim, x.type.rank), keepdim), c.dtype)

    return quantifier


for _name, _kind in (("any", "or"), ("all", "and")):
    for _overload in ("default", "dim", "dims"):
        aten.add(f"{_name}.{_overload}", _quantifier(_kind))
    aten.add(f"_is_{_name}_true.default", _quantifier(_kind))


@aten("count_nonzero.default", "count_nonzero.dim_IntList")
def count_nonzero(c: Context, x: Node, dim: Dims = None) -> Node:
    return reduced("sum", cast(is_true(x), i64), axes_of(dim, x.type.rank), False)


@aten("logsumexp.default")
def logsumexp(c: Context, x: Node, dim: Dims, keepdim: bool = False) -> Node:
    x = cast(x, c.dtype)
    if not x.type.rank:
        return x
    return ops.LogSumExp(axes_of(dim, x.type.rank), keepdim)(x)


@aten("linalg_vector_norm.default")
def vector_norm(
    c: Context, x: Node, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Node:
    x = cast(x, c.dtype)
    norm_value = norm(cast(x, wide(x.dtype)), float(ord), axes_of(dim, x.type.rank), keepdim)
    return cast(reshape(norm_value, c.shape), c.dtype)


@aten("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype")
def norm_(
    c: Context, x: Node, p: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Node:
    return vector_norm(c, x, 2.0 if p is None else p, dim, keepdim)


def norm(x: Node, p: float, axes: Sequence[int], keepdim: bool) -> Node:
    """The vector p-norm over `axes` of a float tensor; p may be 0 and +-inf."""
    size = ops.Abs()(x)
    if math.isinf(p):
        return reduced("max" if p > 0 else "min", size, axes, keepdim)
    if p == 0:
        return reduced("sum", cast(is_true(x), x.dtype), axes, keepdim)
    if p == 1:
        return reduced("sum", size, axes, keepdim)
    if p == 2:
        return ops.Sqrt()(reduced("sum", ops.Mul()(x, x), axes, keepdim))
    total = reduced("sum", ops.Pow()(size, filled(x.shape, p, x.dtype)), axes, keepdim)
    return ops.Pow()(total, filled(total.shape, 1 / p, x.dtype))


@aten("renorm.default")
def renorm(c: Context, x: Node, p: float, dim: int, maxnorm: float) -> Node:
    axis = axis_of(dim, x.type.rank)
    size = norm(cast(x, wide(x.dtype)), float(p), [i for i in range(x.type.rank) if i != axis], True)
    limit = filled(size.shape, maxnorm, size.dtype)
    factor = ops.Div()(limit, ops.Add()(size, filled(size.shape, 1e-7, size.dtype)))
    factor = ops.Select()(ops.Compare("GT")(size, limit), factor, filled(size.shape, 1, size.dtype))
    return ops.Mul()(x, expand(cast(factor, x.dtype), x.shape))


def _scan(kind: str) -> Callable[..., Node]:
    def scan(c: Context, x: Node, dim: int, *, dtype: object = None) -> Node:
        x = cast(x, c.dtype)
        return ops.CumReduce(kind, axis_of(dim, x.type.rank))(x) if x.type.rank else x

    return scan


aten.add("cumsum.default", _scan("sum"))
aten.add("cumprod.default", _scan("prod"))


def _running(kind: str) -> Callable[..., tuple[Node, Node]]:
    def running(c: Context, x: Node, dim: int) -> tuple[Node, Node]:
        if not x.type.rank:
            return x, node_of(0, i64)
        axis = axis_of(dim, x.type.rank)
        best = ops.CumReduce(kind, axis)(x)
        # the last position that reached the running extreme; NaN equals itself here
        is_best = ops.Compare("EQ")(x, best)
        if x.dtype.is_float:
            is_best = ops.Or()(is_best, ops.And()(ops.IsNan()(x), ops.IsNan()(best)))
        position = ops.Select()(is_best, ops.iota(x.shape, axis), filled(x.shape, 0, i64))
        return best, ops.CumReduce("max", axis)(position)

    return running


aten.add("cummax.default", _running("max"))
aten.add("cummin.default", _running("min"))


def sorted_with_index(x: Node, axis: int, descending: bool, count: DimLike | None = None) -> tuple[Node, Node]:
    """Stable sort and the positions that the values came from, or the first `count` of them."""
    if not x.type.rank:
        return x, node_of(0, i64)
    values, places = ops.Sort(axis, descending, True, count=count)(x, ops.iota(x.shape, axis)).results
    return values, places


@aten("sort.default")
def sort(c: Context, x: Node, dim: int = -1, descending: bool = False) -> tuple[Node, Node]:
    return sorted_with_index(x, axis_of(dim, x.type.rank), descending)


@aten("sort.stable")
def sort_stable(
    c: Context, x: Node, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> tuple[Node, Node]:
    return sorted_with_index(x, axis_of(dim, x.type.rank), descending)


@aten("argsort.default")
def argsort(c: Context, x: Node, dim: int = -1, descending: bool = False) -> Node:
    return sorted_with_index(x, axis_of(dim, x.type.rank), descending)[1]


@aten("argsort.stable")
def argsort_stable(c: Context, x: Node, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Node:
    return sorted_with_index(x, axis_of(dim, x.type.rank), descending)[1]


@aten("msort.default")
def msort(c: Context, x: Node) -> Node:
    return sorted_with_index(x, 0, False)[0]


@aten("topk.default")
def topk(c: Context, x: Node, k: DimLike, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Node, ...]:
    if not x.type.rank:
        return x, node_of(0, i64)
    return ops.TopK(k, axis_of(dim, x.type.rank), largest, sorted)(x).results


@aten("kthvalue.default")
def kthvalue(c: Context, x: Node, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Node, ...]:
    return _at_rank(x, k - 1, axis_of(dim, x.type.rank), keepdim)


@aten("median.dim")
def median_dim(c: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, ...]:
    axis = axis_of(dim, x.type.rank)
    if not x.type.rank:
        return x, node_of(0, i64)
    values, position = _at_rank(x, (x.shape[axis] - 1) // 2, axis, keepdim)
    if not x.dtype.is_float:
        return values, position
    # a NaN anywhere is the median
    missing = reduced("or", ops.IsNan()(x), (axis,), keepdim)
    first = arg_extreme("max", cast(ops.IsNan()(x), f32), axis, keepdim)
    return ops.Select()(missing, filled(values.shape, math.nan, x.dtype), values), ops.Select()(
        missing, first, position
    )


@aten("median.default")
def median(c: Context, x: Node) -> Node:
    if x.type.size == 0 and x.dtype.is_float:
        return filled((), math.nan, x.dtype)
    return median_dim(c, reshape(x, (product(x.shape),)), 0)[0]


def _at_rank(x: Node, rank: DimLike, axis: int, keepdim: bool) -> tuple[Node, ...]:
    pair = sorted_with_index(x, axis, False, rank + 1)
    if not x.type.rank:
        return pair
    slices = [cut(p, axis, rank, rank + 1) for p in pair]
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return tuple(p if keepdim else reshape(p, shape) for p in slices)


def _softmax(make: Callable[[int], Op]) -> Callable[..., Node]:
    def softmax(c: Context, x: Node, dim: int, dtype: object = None, half_to_float: bool = False) -> Node:
        x = cast(x, c.dtype)
        if not x.type.rank:
            return reshape(make(0)(reshape(x, (1,))), ())
        return make(axis_of(dim, x.type.rank))(x)

    return softmax


for _name in ("softmax.int", "special_softmax.int"):
    aten.add(_name, _softmax(ops.Softmax))
for _name in ("log_softmax.int", "special_log_softmax.int"):
    aten.add(_name, _softmax(ops.LogSoftmax))


def _core_softmax(make: Callable[[int], Op]) -> Callable[..., Node]:
    inner = _softmax(make)

    def softmax(c: Context, x: Node, dim: int, half_to_float: bool) -> Node:
        return inner(c, x, dim)

    return softmax


aten.add("_softmax.default", _core_softmax(ops.Softmax))
aten.add("_log_softmax.default", _core_softmax(ops.LogSoftmax))


@aten("_safe_softmax.default")
def safe_softmax(c: Context, x: Node, dim: int, dtype: object = None) -> Node:
    """Softmax whose rows that are all -inf give 0."""
    x = cast(x, c.dtype)
    axis = axis_of(dim, x.type.rank)
    hidden = ops.Compare("EQ")(x, filled(x.shape, -math.inf, x.dtype))
    empty = expand(reduced("and", hidden, (axis,), True), x.shape)
    return ops.Select()(empty, filled(x.shape, 0, x.dtype), ops.Softmax(axis)(x))


@aten("cdist.default", "_cdist_forward.default")
def cdist(c: Context, a: Node, b: Node, p: float = 2.0, compute_mode: int | None = None) -> Node:
    rows, columns, width = c.shape[-2], c.shape[-1], a.shape[-1]
    lead = c.shape[:-2]
    shape = (*lead, rows, columns, width)
    lhs = expand(reshape(a, (*a.shape[:-1], 1, width)), shape)
    rhs = expand(reshape(b, (*b.shape[:-2], 1, *b.shape[-2:])), shape)
    return norm(ops.Sub()(lhs, rhs), float(p), (len(shape) - 1,), False)
