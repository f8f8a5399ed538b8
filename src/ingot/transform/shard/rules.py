"""Sharding rules: the dimensions of an op's operands and results that may be split together (Shardy's factors).

    dot_general [b m k] x [b k n] -> [b m n],  sum over k:   b, m, n may be split; if k is, results are partial sums

A dimension that belongs to no factor has to be whole. An op without a rule needs whole operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias, TypeVar

from ingot import ops
from ingot.ir.dims import DimLike, exact_quotient
from ingot.ir.node import Node, Op, splat_of
from ingot.ir.types import Shape, boolean
from ingot.ops.core.elementwise import Elementwise
from ingot.ops.nn.activation import Activation
from ingot.ops.nn.softmax import Normalizer
from ingot.support.dataclass import dataclass

Dims: TypeAlias = tuple["str | None", ...]  # the factor of each dimension


@dataclass(frozen=True)
class Rule:
    """operands, results: the factors of their dimensions. sums: factors that the op reduces, with the kind of the
    reduction ("sum", "max", ...): if one is split, results are partial. linear: operands in which the op is linear
    while the others are fixed; -1: in all of them jointly. split(op, counts, shapes): the op on parts, for the number
    of parts of each factor and the shapes of the results' parts; None: the same op. sizes: the sizes of factors smaller
    than their dimensions, such as the number of groups, whose channels stay together."""

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sums: Mapping[str, str] = field(default_factory=dict[str, str])
    linear: tuple[int, ...] = ()
    split: Callable[[Any, Mapping[str, int], Sequence[Shape]], Op] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])


RuleOf = Callable[[Any, Node], Rule | None]
_RULES: dict[type[Op], RuleOf] = {}
R = TypeVar("R", bound=RuleOf)


def has_rule(op: Op) -> bool:
    return _rule_of(type(op)) is not None


def rule(node: Node) -> Rule | None:
    """The rule for a node; None if its operands have to be whole."""
    build = _rule_of(type(node.op))
    return None if build is None else build(node.op, node)


def _rule_of(cls: type[Op]) -> RuleOf | None:
    return next((_RULES[base] for base in cls.__mro__ if base in _RULES), None)


def _sharding(*classes: type[Op]) -> Callable[[R], R]:
    def register(build: R) -> R:
        for cls in classes:
            _RULES[cls] = build
        return build

    return register


def _names(rank: int, prefix: str = "d", start: int = 0) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(start, start + rank))


def _without(dims: Sequence[str | None], axes: Sequence[int]) -> Dims:
    """`dims` without the factors at `axes`, which have to be whole."""
    return tuple(None if i in axes else d for i, d in enumerate(dims))


# --- elementwise


@_sharding(Elementwise, Activation)
def _elementwise(op: Op, node: Node) -> Rule:
    dims = _names(len(node.shape))
    linear: tuple[int, ...] = ()
    if isinstance(op, ops.Add | ops.Sub):
        linear = (-1,)
    elif isinstance(op, ops.Mul):
        linear = (0, 1)
    elif isinstance(op, ops.Div | ops.Neg) and node.dtype.is_float:
        linear = (0,)
    elif isinstance(op, ops.Convert):
        linear = (0,) if node.dtype.is_float and node.inputs[0].dtype.is_float else ()
    return Rule(tuple(dims if x.shape else () for x in node.inputs), (dims,), linear=linear)


@_sharding(ops.Sharding, ops.AllReduce, ops.AllGather)
def _annotation(op: Op, node: Node) -> Rule:
    """Also for collectives of another mesh: `turns` splits the graph of one of its devices."""
    dims = _names(len(node.shape))
    dims = _without(dims, (op.axis,)) if isinstance(op, ops.AllGather) else dims
    return Rule((dims,), (dims,))


# --- views


@_sharding(ops.BroadcastInDim)
def _broadcast(op: ops.BroadcastInDim, node: Node) -> Rule:
    dims, (x,) = _names(len(node.shape)), node.inputs
    operand = tuple(dims[d] if x.shape[i] == node.shape[d] else None for i, d in enumerate(op.dims))
    return Rule((operand,), (dims,), linear=(0,), split=lambda op, n, s: replace(op, shape=s[0]))


@_sharding(ops.Transpose)
def _transpose(op: ops.Transpose, node: Node) -> Rule:
    dims = _names(len(node.shape))
    return Rule((dims,), (tuple(dims[p] for p in op.permutation),), linear=(0,))


def _matching_runs(a: Shape, b: Shape) -> list[tuple[range, range]] | None:
    """The shortest runs of dimensions of `a` and `b` with equal products, in order; None if sizes prevent it."""
    runs: list[tuple[range, range]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        first_a, first_b = i, j
        size_a: DimLike = 1
        size_b: DimLike = 1
        if i < len(a):
            size_a, i = a[i], i + 1
        if j < len(b):
            size_b, j = b[j], j + 1
        while size_a != size_b:
            if j < len(b) and exact_quotient(size_a, size_b) is not None:
                size_b, j = size_b * b[j], j + 1
            elif i < len(a) and exact_quotient(size_b, size_a) is not None:
                size_a, i = size_a * a[i], i + 1
            elif isinstance(size_a, int) and isinstance(size_b, int) and min(size_a, size_b) > 0:
                if size_a < size_b and i < len(a):
                    size_a, i = size_a * a[i], i + 1
                elif size_b < size_a and j < len(b):
                    size_b, j = size_b * b[j], j + 1
                else:
                    return None
            else:
                return None
        runs.append((range(first_a, i), range(first_b, j)))
    return runs


@_sharding(ops.Reshape)
def _reshape(op: ops.Reshape, node: Node) -> Rule | None:
    """[a b] -> [ab]: splitting the first dimension of a run that is not 1 splits the run's elements in order."""
    (x,) = node.inputs
    if 0 in x.shape or (groups := _matching_runs(x.shape, node.shape)) is None:
        return None
    sides: list[list[str | None]] = [[None] * len(x.shape), [None] * len(node.shape)]
    for number, group in enumerate(groups):
        majors = [
            next((d for d in dims if shape[d] != 1), None)
            for dims, shape in zip(group, (x.shape, node.shape), strict=True)
        ]
        if None not in majors:
            for side, major in zip(sides, majors, strict=True):
                assert major is not None
                side[major] = f"r{number}"
    operand, result = (tuple(side) for side in sides)
    return Rule((operand,), (result,), linear=(0,), split=lambda op, n, s: replace(op, shape=s[0]))


@_sharding(ops.Slice)
def _slice(op: ops.Slice, node: Node) -> Rule:
    (x,), dims = node.inputs, _names(len(node.shape))
    cut_dims = [
        i
        for i, (low, high, step) in enumerate(zip(op.start, op.limit, op.strides, strict=True))
        if low != 0 or high != x.shape[i] or step != 1
    ]
    dims = _without(dims, cut_dims)

    def split(op: ops.Slice, n: Mapping[str, int], shapes: Sequence[Shape]) -> Op:
        limit = tuple(high if d is None else size for d, high, size in zip(dims, op.limit, shapes[0], strict=True))
        return replace(op, limit=limit)

    return Rule((dims,), (dims,), linear=(0,), split=split)


@_sharding(ops.Pad)
def _pad(op: ops.Pad, node: Node) -> Rule:
    padded_dims = [i for i, p in enumerate(zip(op.low, op.high, op.interior, strict=True)) if p != (0, 0, 0)]
    dims = _without(_names(len(node.shape)), padded_dims)
    # partial sums padded with zeros are partial sums
    linear = (0,) if splat_of(node.inputs[1]) == 0 else ()
    return Rule((dims, ()), (dims,), linear=linear)


@_sharding(ops.Reverse)
def _reverse(op: ops.Reverse, node: Node) -> Rule:
    dims = _without(_names(len(node.shape)), op.dims)
    return Rule((dims,), (dims,), linear=(0,))


@_sharding(ops.Concat)
def _concat(op: ops.Concat, node: Node) -> Rule:
    dims = _without(_names(len(node.shape)), (op.dimension,))
    return Rule((dims,) * len(node.inputs), (dims,), linear=(-1,))


@_sharding(ops.DynamicSlice)
def _dynamic_slice(op: ops.DynamicSlice, node: Node) -> Rule:
    x, *starts = node.inputs
    cut_dims = [i for i, size in enumerate(op.sizes) if size != x.shape[i]]
    dims = _without(_names(len(node.shape)), cut_dims)
    return Rule((dims, *((),) * len(starts)), (dims,), linear=(0,), split=lambda op, n, s: replace(op, sizes=s[0]))


@_sharding(ops.DynamicUpdateSlice)
def _dynamic_update_slice(op: ops.DynamicUpdateSlice, node: Node) -> Rule:
    x, update, *starts = node.inputs
    cut_dims = [i for i, size in enumerate(update.shape) if size != x.shape[i]]
    dims = _without(_names(len(node.shape)), cut_dims)
    return Rule((dims, dims, *((),) * len(starts)), (dims,))


# --- folds


@_sharding(ops.Reduce)
def _reduce(op: ops.Reduce, node: Node) -> Rule:
    dims = _names(len(node.inputs[0].shape))
    is_reducible = op.kind in ("sum", "prod", "max", "min") and node.dtype != boolean
    sums = {dims[d]: op.kind for d in op.dims} if is_reducible else {}
    operand = dims if sums else _without(dims, op.dims)
    result = tuple(d for i, d in enumerate(dims) if i not in op.dims)
    return Rule((operand,), (result,), sums, linear=(0,) if op.kind == "sum" else ())


@_sharding(ops.ArgReduce)
def _arg_reduce(op: ops.ArgReduce, node: Node) -> Rule:
    dims = _names(len(node.inputs[0].shape))
    return Rule((_without(dims, (op.dim,)),), (dims[: op.dim] + dims[op.dim + 1 :],))


@_sharding(ops.CumReduce)
def _cum_reduce(op: ops.CumReduce, node: Node) -> Rule:
    dims = _without(_names(len(node.shape)), (op.dim,))
    return Rule((dims,), (dims,), linear=(0,) if op.kind == "sum" else ())


@_sharding(ops.ReduceWindow)
def _reduce_window(op: ops.ReduceWindow, node: Node) -> Rule:
    settings = zip(op.window, op.strides, op.padding, op.dilation, op.base_dilation, strict=True)
    pooled_dims = [i for i, s in enumerate(settings) if s != (1, 1, (0, 0), 1, 1)]
    dims = _without(_names(len(node.shape)), pooled_dims)
    return Rule((dims,) * len(node.inputs), (dims,), linear=(0,) if op.kind == "sum" else ())


@_sharding(ops.Sort)
def _sort(op: ops.Sort, node: Node) -> Rule:
    dims = _without(_names(len(node.types[0].shape)), (op.dimension,))
    return Rule((dims,) * len(node.inputs), (dims,) * len(node.types))


# --- sums of products


@_sharding(ops.DotGeneral)
def _dot_general(op: ops.DotGeneral, node: Node) -> Rule:
    a, b = node.inputs
    free = op.free(len(a.shape), len(b.shape))
    batch, summed = _names(len(op.batch[0]), "b"), _names(len(op.contract[0]), "k")
    rows, columns = _names(len(free[0]), "m"), _names(len(free[1]), "n")
    operands = [
        dict(zip((*op.batch[i], *op.contract[i], *free[i]), (*batch, *summed, *free_names), strict=True))
        for i, free_names in enumerate((rows, columns))
    ]
    sides = tuple(tuple(names[d] for d in range(len(names))) for names in operands)
    return Rule(sides, ((*batch, *rows, *columns),), dict.fromkeys(summed, "sum"), linear=(0, 1))


@_sharding(ops.MatMul)
def _matmul(op: ops.MatMul, node: Node) -> Rule | None:
    a, b = node.inputs
    if len(a.shape) < 2 or len(b.shape) < 2:
        return None
    batch = _names(len(node.shape) - 2, "b")

    def leading(x: Node) -> Dims:
        names = batch[len(batch) - (len(x.shape) - 2) :]
        sizes = node.shape[len(batch) - (len(x.shape) - 2) :]
        return tuple(d if n == size else None for d, n, size in zip(names, x.shape[:-2], sizes, strict=False))

    return Rule(((*leading(a), "m", "k"), (*leading(b), "k", "n")), ((*batch, "m", "n"),), {"k": "sum"}, linear=(0, 1))


@_sharding(ops.Convolution)
def _convolution(op: ops.Convolution, node: Node) -> Rule:
    if op.batch_groups > 1:
        lhs, rhs, out = {"N": "g", "C": "k"}, {"O": "g", "I": "k"}, {"C": "g"}
    elif op.feature_groups > 1:
        lhs, rhs, out = {"N": "n", "C": "g"}, {"O": "g"}, {"N": "n", "C": "g"}
    else:
        lhs, rhs, out = {"N": "n", "C": "k"}, {"I": "k", "O": "o"}, {"N": "n", "C": "o"}
    groups = op.feature_groups * op.batch_groups

    def dims(layout: str, factors: Mapping[str, str]) -> Dims:
        return tuple(factors.get(letter) for letter in layout)

    def split(op: ops.Convolution, n: Mapping[str, int], s: Sequence[Shape]) -> Op:
        parts = n.get("g", 1)
        if op.batch_groups > 1:
            return replace(op, batch_groups=op.batch_groups // parts)
        return replace(op, feature_groups=op.feature_groups // parts)

    sums = {"k": "sum"} if "k" in lhs.values() else {}
    return Rule(
        (dims(op.lhs_layout, lhs), dims(op.rhs_layout, rhs)), (dims(op.out_layout, out),), sums, linear=(0, 1),
        split=split, sizes={"g": groups},
    )  # fmt: skip


@_sharding(ops.Conv)
def _conv(op: ops.Conv, node: Node) -> Rule:
    spatial = (None,) * (len(node.shape) - 2)
    operands: tuple[Dims, ...]
    if op.groups > 1:
        operands, result = (("n", "g", *spatial), ("g", None, *spatial)), ("n", "g", *spatial)
    else:
        operands, result = (("n", "k", *spatial), ("o", "k", *spatial)), ("n", "o", *spatial)

    def split(op: ops.Conv, n: Mapping[str, int], s: Sequence[Shape]) -> Op:
        return replace(op, groups=op.groups // n.get("g", 1))

    sums = {"k": "sum"} if op.groups == 1 else {}
    return Rule(operands, (result,), sums, linear=(0, 1), split=split, sizes={"g": op.groups})


@_sharding(ops.KernelGradient)
def _kernel_gradient(op: ops.KernelGradient, node: Node) -> Rule:
    spatial = (None,) * (len(node.shape) - 2)
    multiplier = None if not op.depthwise else exact_quotient(node.inputs[1].shape[-1], node.inputs[0].shape[-1])
    channels = "o" if multiplier == 1 else None  # x's channels are those of g
    return Rule(
        (("n", *spatial, channels if op.depthwise else "i"), ("n", *spatial, channels if op.depthwise else "o")),
        ((channels if op.depthwise else "o", None if op.depthwise else "i", *spatial),), {"n": "sum"}, linear=(0, 1),
    )  # fmt: skip


# --- attention and norms


# query heads are split like the key heads to which they attend
_HEADS: Dims = ("b", "h", None, None)
_ROWS: Dims = ("b", None, "h", None)


def _heads(node: Node, operands: int, masks: Sequence[Node], results: Sequence[Dims]) -> Rule:
    """operands: the number of operands before the masks, each of which begins with the dimensions batch and heads."""
    q, k = node.inputs[:2]
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    dims = _HEADS

    def mask_dims(mask: Node) -> Dims:
        first = 4 - len(mask.shape)
        mask_axes = zip(dims[first:], mask.shape, scores[first:], strict=True)
        return tuple(d if n == size else None for d, n, size in mask_axes)

    operand_dims = (dims[: len(x.shape)] for x in node.inputs[:operands])
    return Rule((*operand_dims, *map(mask_dims, masks)), tuple(results))


@_sharding(ops.Attention, ops.AttentionWithSums)
def _attention(op: ops.Attention | ops.AttentionWithSums, node: Node) -> Rule | None:
    results = (_HEADS,) if isinstance(op, ops.Attention) else (_ROWS if op.by_row else _HEADS, _HEADS[:3])
    is_whole = op.scaled if isinstance(op, ops.Attention) else op.dropout  # draws depend on positions in the whole
    return None if is_whole else _heads(node, 3, node.inputs[3:], results)


@_sharding(ops.AttentionGradients)
def _attention_gradients(op: ops.AttentionGradients, node: Node) -> Rule | None:
    before, results = len(node.inputs) - len(op.mask(node.inputs)), (_ROWS if op.by_row else _HEADS,) * 3
    return None if op.dropout else _heads(node, before, op.mask(node.inputs), results)


@_sharding(Normalizer)
def _normalizer(op: Normalizer, node: Node) -> Rule:
    dims = _without(_names(len(node.shape)), (op.axis,))
    return Rule((dims,), (dims,))


@_sharding(ops.LayerNorm, ops.RMSNorm)
def _norm(op: ops.LayerNorm | ops.RMSNorm, node: Node) -> Rule:
    dims = _without(_names(len(node.shape)), op.axes)
    return Rule((dims, *((None,) * len(p.shape) for p in node.inputs[1:])), (dims,))


@_sharding(ops.Standardize)
def _standardize(op: ops.Standardize, node: Node) -> Rule | None:
    """None for moments over samples, which are lowered to sums, because samples may be split."""
    if 0 in op.axes:
        return None
    dims = _without(_names(len(node.inputs[0].shape)), op.axes)
    moments = tuple(d for i, d in enumerate(dims) if i not in op.axes)
    return Rule((dims,), (dims, moments, moments)[: len(node.types)])


@_sharding(ops.BatchNorm)
def _batch_norm(op: ops.BatchNorm, node: Node) -> Rule:
    dims = _names(len(node.shape))
    return Rule((dims, *(("d1",) for _ in node.inputs[1:])), (dims,))


@_sharding(ops.MaxPool, ops.AvgPool, ops.LpPool)  # not for indices of maxima, which number the elements of all images
def _pool(op: Op, node: Node) -> Rule:
    dims = ("d0", "d1", *(None,) * (len(node.shape) - 2))
    return Rule((dims,), (dims,))


@_sharding(ops.Recurrent)
def _recurrent(op: ops.Recurrent, node: Node) -> Rule | None:
    """Sequences are independent, unless quantization levels are chosen jointly for all of them."""
    if op.levels:
        return None
    count = 4 + op.states + op.has_lengths
    state: Dims = (None, "b", None)
    lengths: tuple[Dims, ...] = (("b",),) if op.has_lengths else ()
    weights = [(None,) * len(x.shape) for x in (*node.inputs[1:4], *node.inputs[count:])]
    operands = (state, *weights[:3], *(state,) * op.states, *lengths, *weights[3:])
    return Rule(operands, ((None, None, "b", None), *(state,) * op.states))


# --- lookups


@_sharding(ops.Take)
def _take(op: ops.Take, node: Node) -> Rule:
    x, indices = node.inputs
    dims, index_dims = _names(len(x.shape)), _names(len(indices.shape), "i")
    axis = op.axis % len(dims)
    return Rule((_without(dims, (axis,)), index_dims), ((*dims[:axis], *index_dims, *dims[axis + 1 :]),), linear=(0,))


def _index_dims(count: int, vector: int, batching: Mapping[int, str]) -> tuple[Dims, Dims]:
    """(the factors of the dimensions of the indices, those of its dimensions without the index vector)"""
    dims: list[str | None] = [batching.get(d, f"i{d}") for d in range(count)]
    if vector < count:
        dims[vector] = None
    return tuple(dims), tuple(d for i, d in enumerate(dims) if i != vector)


@_sharding(ops.Gather)
def _gather(op: ops.Gather, node: Node) -> Rule:
    x, indices = node.inputs
    batching = dict(zip(op.start_indices_batching_dims, _names(len(op.operand_batching_dims), "b"), strict=True))
    index_dims, batch = _index_dims(len(indices.shape), op.index_vector_dim, batching)
    removed = (*op.collapsed_slice_dims, *op.operand_batching_dims)
    offsets = [d for d in range(len(x.shape)) if d not in removed]
    full = {d: f"o{d}" for d in offsets if op.slice_sizes[d] == x.shape[d]}
    operand: list[str | None] = [full.get(d) for d in range(len(x.shape))]
    for d, name in zip(op.operand_batching_dims, batching.values(), strict=True):
        operand[d] = name
    slices, windows = iter(batch), iter(offsets)
    result = tuple(full.get(next(windows)) if d in op.offset_dims else next(slices) for d in range(len(node.shape)))

    def split(op: ops.Gather, n: Mapping[str, int], s: Sequence[Shape]) -> Op:
        sizes = tuple(
            size if d not in full else exact_quotient(size, n.get(full[d], 1)) for d, size in enumerate(op.slice_sizes)
        )
        return replace(op, slice_sizes=sizes)

    return Rule((tuple(operand), index_dims), (result,), linear=(0,), split=split)


@_sharding(ops.Scatter)
def _scatter(op: ops.Scatter, node: Node) -> Rule | None:
    x, indices, updates = node.inputs
    batching = dict(zip(op.scatter_indices_batching_dims, _names(len(op.input_batching_dims), "b"), strict=True))
    index_dims, batch = _index_dims(len(indices.shape), op.index_vector_dim, batching)
    removed = (*op.inserted_window_dims, *op.input_batching_dims)
    windows = [d for d in range(len(x.shape)) if d not in removed]
    update_of = dict(zip(op.update_window_dims, windows, strict=True))
    full = {d: f"o{d}" for u, d in update_of.items() if updates.shape[u] == x.shape[d]}
    # added to zeros, the updates of each device give partial sums
    adds = op.kind == "add" and splat_of(x) == 0
    batch_names = set(batching.values())
    index_dims, batch = (
        tuple(d if d in batch_names or (adds and d is not None) else None for d in dims) for dims in (index_dims, batch)
    )
    slices = iter(batch)
    update = tuple(full.get(update_of[u]) if u in update_of else next(slices) for u in range(len(updates.shape)))
    operand: list[str | None] = [full.get(d) for d in range(len(x.shape))]
    for d, name in zip(op.input_batching_dims, batching.values(), strict=True):
        operand[d] = name
    sums = {d: "sum" for d in batch if d is not None and d not in batch_names}
    linear = (2,) if adds else ()
    return Rule((tuple(operand), index_dims, update), (tuple(operand),), sums, linear=linear)


# MODEL and CORE ops that are split directly; other MODEL ops are lowered first
RULED = frozenset(_RULES)
