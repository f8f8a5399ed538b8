"""Binarized products: contractions of values that are 1, -1 or 0, computed on bits, 32 to a word.

    dot(x[m, k], w[n, k])  ->  convert(k - 2 * differences(words(x < 0), words(w < 0)))   x and w of 1 and -1
    dot(x, w)              ->  half the sum of two such products                          w of 1, -1 and 0

Binarized networks (Courbariaux et al. 2016; Larq, Brevitas) export signs of activations as `sign`, as a select between
two numbers or as arithmetic on a comparison; weights are constants of one magnitude per output channel. All sums are
exact. 0 is the mean of 1 and -1, so values that may be 0 take two planes of bits. Where `sign` is NaN, so are the sums
that contain it. The correction for zeros that pad an image is computed at compile time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.dims import is_static, product
from ingot.ir.node import Graph, Node, const, rebuild, splat_of
from ingot.ir.types import boolean, f32, i32, static_shape, u32
from ingot.ops.core.base import is_contraction
from ingot.ops.core.shape import View
from ingot.passes.constants import value_of
from ingot.passes.core.layout import with_explicit_padding
from ingot.support.dataclass import dataclass

WORD = 32
MIN_SIGNS = 32  # per position; fewer leave most of a word empty
MAX_TERMS = 1 << 24  # of a sum, which f32 then represents exactly
MAX_BORDER_BYTES = 1 << 20
_MAX_WEIGHT_OPS = 16
_MAX_STEPS = 64  # from a product back to the op that produces the signs


@dataclass(frozen=True)
class _Signs:
    """Values that are -magnitude or magnitude; has_zero, has_nan: or 0, or NaN."""

    magnitude: float
    has_zero: bool = False
    has_nan: bool = False


def pack_signs(graph: Graph) -> Graph:
    """Rewrite products of signs to products of bits: see the module's docstring."""
    if not any(isinstance(n.op, ops.Sign | ops.Select | ops.Convert) for n in graph.nodes()):
        return graph

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        new = n.with_inputs(inputs)
        return (_bit_product(new) if is_contraction(n) else None) or new

    return graph.with_outputs(rebuild(graph.outputs, rule=image))


def unpack_signs(graph: Graph) -> Graph:
    """Rewrite products of words of signs to float products, for targets without population count."""
    if not any(isinstance(n.op, ops.DotGeneral | ops.Convolution) and n.op.of_signs for n in graph.nodes()):
        return graph

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        op = n.op
        if not isinstance(op, ops.DotGeneral | ops.Convolution) or not op.of_signs:
            return n.with_inputs(inputs)
        (x, w), depth = inputs, product(d for i, d in enumerate(inputs[1].shape) if i not in _output_dims(n))
        if isinstance(op, ops.DotGeneral):
            axes = op.contract[0][0], op.contract[1][0]
        else:  # zero bits of the padding are the sign 1
            op, x = with_explicit_padding(op, x, ops.scalar(0, u32))
            axes = op.lhs_layout.index("C"), op.rhs_layout.index("I")
        operands = (_unpack_words(v, axis) for v, axis in zip((x, w), axes, strict=True))
        sums = replace(op, dtype=f32, of_signs=False)(*operands, loc=n.loc)
        return ops.cast(ops.mul(ops.sub(ops.scalar(depth * WORD, f32), sums), 0.5), i32)

    return graph.with_outputs(rebuild(graph.outputs, rule=image))


def _output_dims(n: Node) -> Sequence[int]:
    """The dimensions of the second operand that are not summed."""
    if isinstance(n.op, ops.Convolution):
        return (n.op.rhs_layout.index("O"),)
    assert isinstance(n.op, ops.DotGeneral)
    return [d for d in range(n.inputs[1].type.rank) if d not in n.op.contract[1]]


def _unpack_words(words: Node, axis: int) -> Node:
    """1.0 and -1.0 for the bits of words along `axis`."""
    shape = words.shape
    spread = ops.broadcast_to(ops.expand_dims(words, axis + 1), (*shape[: axis + 1], WORD, *shape[axis + 1 :]))
    shifts = ops.BroadcastInDim(spread.shape, (axis + 1,))(const(np.arange(WORD, dtype=np.uint32)))
    bits = ops.and_(ops.ShiftRightLogical()(spread, shifts), 1)
    flat = ops.reshape(bits, (*shape[:axis], shape[axis] * WORD, *shape[axis + 1 :]))
    return ops.sub(1.0, ops.mul(ops.cast(flat, f32), 2.0))


def _bit_product(n: Node) -> Node | None:
    """The product `n` on bits; None if it is not a product of signs."""
    x, w = n.inputs
    if (x.dtype, w.dtype, n.dtype) != (f32, f32, f32):
        return None
    axes = _summed_axes(n)
    if axes is None:
        return None
    a_axis, b_axis, out_axis = axes
    padded, border = _split_zero_border(x, n.op) if isinstance(n.op, ops.Convolution) else (x, None)
    signs = _signs_of(padded, _MAX_STEPS)
    if signs is None:
        return None
    value = _constant_value(w)
    if value is None:
        return None
    weights, depth = _levels(value, out_axis), value.size // max(1, value.shape[out_axis])
    if weights is None or not 0 < depth < MAX_TERMS or value.shape[b_axis] < MIN_SIGNS:
        return None
    levels, scale = weights
    a_planes = [ops.compare("LT", padded, 0.0), *([ops.compare("LE", padded, 0.0)] if signs.has_zero else [])]
    b_planes = [levels < 0, *([levels <= 0] if (levels == 0).any() else [])]
    pairs = [(a, b) for a in a_planes for b in b_planes]
    a = (
        ops.concat([_pack_words(p, a_axis) for p, _ in pairs], a_axis)
        if len(pairs) > 1
        else _pack_words(a_planes[0], a_axis)
    )
    b = const(np.concatenate([_pack_constant_words(p, b_axis) for _, p in pairs], b_axis), loc=w.loc)
    if border is not None:
        a = ops.pad(a, tuple(low for low, _ in border), tuple(high for _, high in border))
    op = replace(n.op, zeros=()) if isinstance(n.op, ops.Convolution) else n.op
    differences = replace(op, dtype=i32, of_signs=True)(a, b, loc=n.loc)  # type: ignore[call-arg]
    sums = ops.sub(depth * len(pairs), ops.mul(differences, 2))
    if border is not None or (isinstance(n.op, ops.Convolution) and any(map(any, n.op.padding))):
        assert isinstance(n.op, ops.Convolution)
        padding_sums = _padding_sums(_with_border(n.op, border), levels, padded)
        if padding_sums is None:
            return None
        sums = ops.sub(sums, ops.mul(padding_sums, len(pairs)))
    sums = ops.cast(sums, f32)
    factor = (scale * np.float32(signs.magnitude) / np.float32(len(pairs))).astype(np.float32)
    if (factor != 1).any():
        shape = [1] * n.type.rank
        shape[_column_dim(n)] = -1
        sums = ops.mul(sums, const(factor.reshape(shape), loc=w.loc))
    return ops.add(sums, _nan_of_sums(n, x, a_axis)) if signs.has_nan else sums


def _summed_axes(n: Node) -> tuple[int, int, int] | None:
    """The contracted axis of each operand along which words are packed, and the axis of the weights' outputs."""
    op = n.op
    if isinstance(op, ops.Convolution):
        is_plain = op.feature_groups == op.batch_groups == 1 and all(d == 1 for d in op.lhs_dilation)
        layouts = op.lhs_layout.index("C"), op.rhs_layout.index("I"), op.rhs_layout.index("O")
        return layouts if is_plain else None
    assert isinstance(op, ops.DotGeneral)
    _, free = op.free(n.inputs[0].type.rank, n.inputs[1].type.rank)
    if any(op.batch) or len(op.contract[0]) != 1 or len(free) != 1:
        return None
    return op.contract[0][0], op.contract[1][0], free[0]


def _column_dim(n: Node) -> int:
    return n.op.out_layout.index("C") if isinstance(n.op, ops.Convolution) else n.type.rank - 1


def _constant_value(w: Node) -> np.ndarray | None:
    """The value of weights that a few ops compute from constants; such ops are not folded where the constants are
    smaller than the result."""
    visited: set[Node] = set()
    stack = [w]
    while stack:
        n = stack.pop()
        if n in visited or n.constant is not None:
            continue
        if not n.inputs or not is_static(n.shape) or len(visited) == _MAX_WEIGHT_OPS:
            return None
        visited.add(n)
        stack += n.inputs
    return value_of(w)


def _levels(w: np.ndarray, out_axis: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(weights of -1, 0 and 1, the factor of each output channel), or None."""
    summed_dims = tuple(d for d in range(w.ndim) if d != out_axis)
    magnitude = np.abs(w)
    factor = magnitude.max(summed_dims, keepdims=True, initial=0)
    if not np.isfinite(factor).all() or not ((magnitude == factor) | (w == 0)).all():
        return None
    return np.sign(w).astype(np.int8), factor.reshape(-1)


def _split_zero_border(x: Node, op: ops.Convolution) -> tuple[Node, tuple[tuple[int, int], ...] | None]:
    """(the images without a border of zeros, the size of the border at both ends of each axis or None)"""
    if isinstance(x.op, ops.Pad) and splat_of(x.inputs[1]) == 0 and not any(x.op.interior):
        border = tuple(zip(static_shape(x.op.low), static_shape(x.op.high), strict=True))
        is_spatial = all(c not in "NC" or pair == (0, 0) for c, pair in zip(op.lhs_layout, border, strict=True))
        if is_spatial and all(v >= 0 for pair in border for v in pair):
            return x.inputs[0], border
    return x, None


def _with_border(op: ops.Convolution, border: tuple[tuple[int, int], ...] | None) -> ops.Convolution:
    if border is None:
        return op
    spatial_border = [border[op.lhs_layout.index(c)] for c in op.spatial]
    pairs = zip(op.padding, spatial_border, strict=True)
    return replace(op, padding=tuple((p[0] + q[0], p[1] + q[1]) for p, q in pairs))


def _padding_sums(op: ops.Convolution, levels: np.ndarray, x: Node) -> Node | None:
    """For each result of an image, the sum of the weights at the padding of `op`, whose zero bits count as 1. None if
    the table is too large or image sizes are symbolic."""
    if not is_static(x.shape[d] for d, c in enumerate(op.lhs_layout) if c != "N"):
        return None
    shape = [1 if c in "NC" else int(s) for c, s in zip(op.lhs_layout, x.shape, strict=True)]  # type: ignore[arg-type]
    pads = [(0, 0) if c in "NC" else op.padding[op.spatial.index(c)] for c in op.lhs_layout]
    outside = np.pad(np.zeros(shape, np.float32), pads, constant_values=1)
    channel_sums = levels.sum(op.rhs_layout.index("I"), keepdims=True, dtype=np.float32)
    no_padding = tuple((0, 0) for _ in op.padding)
    total = replace(op, padding=no_padding, dtype=f32).reference(outside, channel_sums).astype(np.int32)
    return const(total) if total.nbytes <= MAX_BORDER_BYTES else None


def _pack_words(plane: Node, axis: int) -> Node:
    """Pack booleans along `axis` into u32 words, the first in the lowest bit, padded with false."""
    last = plane.type.rank - 1
    order = [d for d in range(last + 1) if d != axis] + [axis]
    plane = ops.transpose(plane, order) if axis != last else plane
    (size,) = static_shape(plane.shape[-1:])
    if size % WORD:
        plane = ops.pad(plane, (0,) * (last + 1), (*(0,) * last, -size % WORD), False)
    bits = ops.cast(ops.reshape(plane, (*plane.shape[:-1], -(-size // WORD), WORD)), u32)
    bit_values = const(np.uint32(1) << np.arange(WORD, dtype=np.uint32))
    words = ops.reduce_sum(ops.mul(bits, bit_values), -1)
    return ops.transpose(words, np.argsort(order).tolist()) if axis != last else words


def _pack_constant_words(plane: np.ndarray, axis: int) -> np.ndarray:
    """`_pack_words` of a constant."""
    plane = np.moveaxis(plane, axis, -1)
    pads = [(0, 0)] * (plane.ndim - 1) + [(0, -plane.shape[-1] % WORD)]
    packed = np.packbits(np.pad(plane, pads), axis=-1, bitorder="little")
    return np.ascontiguousarray(np.moveaxis(packed.view("<u4").astype(np.uint32), -1, axis))


def _nan_of_sums(n: Node, x: Node, axis: int) -> Node:
    """NaN for each result whose sum contains a NaN, else 0."""
    nan_sums = ops.reduce_sum(ops.sub(x, x), axis, keepdims=isinstance(n.op, ops.Convolution))
    if isinstance(n.op, ops.Convolution):
        window = [1 if c in "OI" else s for c, s in zip(n.op.rhs_layout, n.inputs[1].shape, strict=True)]
        ones = np.ones(static_shape(tuple(window)), np.float32)
        return ops.broadcast_to(n.op(nan_sums, const(ones)), n.shape)
    return ops.broadcast_to(ops.reshape(nan_sums, (*nan_sums.shape, 1)), n.shape)


def _signs_of(x: Node, steps: int) -> _Signs | None:
    """The description of values that are signs, or None."""
    if not steps or x.dtype != f32:
        return None
    if isinstance(x.op, ops.Sign):
        return _Signs(1.0, has_zero=_shifted_signs(x.inputs[0], steps) is None, has_nan=True)
    if isinstance(x.op, ops.Sub) and all(isinstance(i.op, ops.Convert) for i in x.inputs):
        a, b = (i.inputs[0] for i in x.inputs)
        if a.dtype == b.dtype == boolean:
            return _Signs(1.0, has_zero=not _is_one_true(a, b, steps))
    if isinstance(x.op, View) and x.op.rearranges:
        return _signs_of(x.inputs[0], steps - 1)
    if isinstance(x.op, ops.Pad):
        inner, fill = _signs_of(x.inputs[0], steps - 1), splat_of(x.inputs[1])
        if inner is None or fill is None or abs(float(fill)) not in (0.0, inner.magnitude):
            return None
        return replace(inner, has_zero=inner.has_zero or float(fill) == 0)
    ends = _false_and_true_values(x, steps)
    if ends is not None:
        low, high = sorted(ends)
        return _Signs(high) if high == -low and 0 < high < np.inf else None
    if isinstance(x.op, ops.Mul):
        for signs, factor in (x.inputs, x.inputs[::-1]):
            factor_value = splat_of(factor)
            inner = None if factor_value is None else _signs_of(signs, steps - 1)
            if factor_value is not None and inner is not None and 0 < float(factor_value) * inner.magnitude < np.inf:
                return replace(inner, magnitude=float(np.float32(factor_value) * np.float32(inner.magnitude)))
    return None


def _shifted_signs(x: Node, steps: int) -> _Signs | None:
    """The signs to which x adds a constant smaller than their magnitude, as in Larq, so that x is never 0; or None."""
    for inner, number in (x.inputs, x.inputs[::-1]) if isinstance(x.op, ops.Add) else ():
        shift = splat_of(number)
        signs = None if shift is None else _signs_of(inner, steps - 1)
        if shift is not None and signs is not None and 0 < abs(float(shift)) < signs.magnitude:
            return signs
    return None


def _is_one_true(a: Node, b: Node, steps: int) -> bool:
    """Whether a and b are y > 0 and y < 0 for a y that is never 0 or NaN, so that exactly one is true."""
    if not isinstance(a.op, ops.Compare) or not isinstance(b.op, ops.Compare) or a.inputs != b.inputs:
        return False
    signs = _shifted_signs(a.inputs[0], steps)
    is_split = {a.op.direction, b.op.direction} == {"GT", "LT"} and splat_of(a.inputs[1]) == 0
    return is_split and signs is not None and not signs.has_nan


def _false_and_true_values(x: Node, steps: int) -> tuple[float, float] | None:
    """The values of arithmetic on one boolean for false and for true, or None."""
    if not steps:
        return None
    value = splat_of(x)
    if value is not None:
        return float(value), float(value)
    match x.op:
        case ops.Select():
            values = tuple(splat_of(i) for i in x.inputs[1:])
            if any(v is None for v in values):
                return None
            return float(values[1]), float(values[0])  # type: ignore[arg-type]
        case ops.Convert() if x.inputs[0].dtype == boolean:
            return 0.0, 1.0
        case ops.Add() | ops.Sub() | ops.Mul() | ops.Neg() | ops.Convert() if x.dtype == f32:
            if sum(splat_of(i) is None for i in x.inputs) != 1:
                return None  # of several booleans
            values = [_false_and_true_values(i, steps - 1) for i in x.inputs]
            if any(f is None for f in values):
                return None
            low, high = (
                x.op.reference(*(np.asarray(f[end], i.dtype.numpy) for f, i in zip(values, x.inputs, strict=True)))  # type: ignore[index]
                for end in (0, 1)
            )
            return float(low), float(high)  # type: ignore[arg-type]
    return None


__all__ = ["pack_signs", "unpack_signs"]
