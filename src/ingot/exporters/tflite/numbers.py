"""Graphs of integer ops with scales as graphs of float ops, from which the exporter recovers TFLite's levels.

convert(conv(q - z, w - zw) + b) * (sx * sw / sy)   ->   conv((q - z) * sx, (w - zw) * sw) + b * (sx * sw), / sy
quantize(x / s, 1, z)                               ->   quantize(x, s, z)
(max_pool(q) - z) * s                               ->   max_pool((q - z) * s)     also views
transpose((w - z) * s)                              ->   (transpose(w) - z) * s    of constants
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ingot import ops
from ingot.frontends.tflite.file import Quantization
from ingot.ir.node import Const, Graph, Input, Node, Op, const, rebuild, splat_of
from ingot.ir.types import f32, i8, i32, u8
from ingot.passes.constants import is_constant, value_of

_PRODUCTS = (ops.Conv, ops.MatMul, ops.DotGeneral)
_MAX_NODES = 32  # of the constant expression of a scale


def as_numbers(graph: Graph) -> Graph:
    """See the module. Integer ops without a scale are unchanged."""
    for rule in (_product_of_numbers, _scale_of_rounding, _levels_last, _constants_first):
        graph = graph.with_outputs(rebuild(graph.outputs, rule=rule))
    return graph


def constant_of(n: Node) -> np.ndarray | None:
    """The elements of a constant or of a dequantized constant; None for other nodes."""
    if isinstance(n.op, Const):
        return n.op.value
    if isinstance(n.op, ops.Dequantize) and len(n.inputs) == 3 and all(map(is_constant, n.inputs)):
        return _value(n)
    return None


@lru_cache(maxsize=256)
def _value(n: Node) -> np.ndarray:
    return np.asarray(n.op.reference(*map(value_of, n.inputs)))


def levels_of(n: Node) -> Quantization | None:
    """The quantization, as i8, of a constant that is dequantized from 8 bits; None for other nodes."""
    if not isinstance(n.op, ops.Dequantize) or constant_of(n) is None or n.inputs[0].dtype not in (i8, u8):
        return None
    q, zero, scale = n.inputs
    grid = grid_of(zero, scale, q.dtype) or _grid_by_channel(value_of(zero), value_of(scale), q.type.rank)
    if grid is None or q.dtype == i8:
        return grid
    return Quantization(grid.scales, tuple(z - 128 for z in grid.zeros), grid.axis)


def grid_of(zero: Node, scale: Node, dtype: object) -> Quantization | None:
    """A quantization with one constant scale and zero point; None for any other."""
    s, z = (splat_of(p) for p in (scale, zero))
    if s is None or z is None or not float(s) > 0:
        return None
    return Quantization((float(s),), (int(z),), 0)


def _grid_by_channel(zero: np.ndarray, scale: np.ndarray, rank: int) -> Quantization | None:
    """A quantization with one scale per index of one axis; None for any other."""
    shape = (1,) * (rank - scale.ndim) + scale.shape
    axes = [d for d, size in enumerate(shape) if size > 1]
    if len(axes) != 1 or not (scale > 0).all() or zero.size not in (1, scale.size):
        return None
    zeros = np.broadcast_to(zero.reshape(-1), scale.size)
    return Quantization(tuple(map(float, scale.reshape(-1))), tuple(map(int, zeros)), axes[0])


def moved_levels(op: Op, n: Node) -> Node | None:
    """A view of a dequantized constant, with the view applied to its levels; None if the scales would no longer lie
    along one axis."""
    grid = levels_of(n)
    if grid is None or not isinstance(op, ops.Transpose | ops.Reshape):
        return None
    q, zero, scale = n.inputs
    levels = const(op.reference(value_of(q)), loc=q.loc)
    if len(grid.scales) == 1:
        return ops.Dequantize()(levels, *(ops.reshape(_first(p), ()) for p in (zero, scale)), loc=n.loc)
    if isinstance(op, ops.Transpose):
        axis = tuple(op.permutation).index(grid.axis)
    else:
        before, after = q.shape, levels.shape
        edge_axes = [d for d in (0, -1) if grid.axis in (d, len(before) + d) and before[d] == after[d]]
        if not edge_axes:
            return None
        axis = edge_axes[0] % len(after)
    shape = [len(grid.scales) if d == axis else 1 for d in range(levels.type.rank)]
    zeros = np.broadcast_to(value_of(zero).reshape(-1), len(grid.scales)).reshape(shape)
    return ops.Dequantize()(levels, const(zeros), const(value_of(scale).reshape(shape)), loc=n.loc)


def _first(p: Node) -> Node:
    return const(value_of(p).reshape(-1)[:1])


def _constants_first(n: Node, inputs: Sequence[Node]) -> Node:
    if len(inputs) == 1 and isinstance(inputs[0].op, ops.Dequantize):
        return moved_levels(n.op, inputs[0]) or n.with_inputs(inputs)
    return n.with_inputs(inputs)


def _levels_last(n: Node, inputs: Sequence[Node]) -> Node:
    """Dequantize before views and max pools, instead of after them."""
    new = n.with_inputs(inputs)
    if not isinstance(n.op, ops.Dequantize) or len(inputs) != 3:
        return new
    q, zero, scale = inputs
    chain: list[Node] = []
    while _keeps_levels(q) and splat_of(scale) is not None and splat_of(zero) is not None:
        chain.append(q)
        q = q.inputs[0]
    if not chain:
        return new
    y = n.op(q, *(ops.reshape(_first(p), ()) for p in (zero, scale)), loc=n.loc)
    for step in reversed(chain):
        y = step.with_inputs((y, *step.inputs[1:]))
    return y


def _keeps_levels(n: Node) -> bool:
    is_view = len(n.inputs) == 1 and (n.op.rearranges or isinstance(n.op, ops.MaxPool))
    return len(n.types) == 1 and (is_view or isinstance(n.op, ops.Take))


def _scale_of_rounding(n: Node, inputs: Sequence[Node]) -> Node:
    if not isinstance(n.op, ops.Quantize) or splat_of(inputs[1]) != 1 or not isinstance(inputs[0].op, ops.Div):
        return n.with_inputs(inputs)
    x, scale = inputs[0].inputs
    value = splat_of(scale)
    if value is None:
        return n.with_inputs(inputs)
    return ops.quantize(x, const(np.float32(value)), ops.reshape(_first(inputs[2]), ()), loc=n.loc)


def _product_of_numbers(n: Node, inputs: Sequence[Node]) -> Node:
    """A product of integers that is scaled by constants, as a product of floats."""
    new = n.with_inputs(inputs)
    if not isinstance(n.op, ops.Mul) or n.dtype != f32:
        return new
    for total, scale in (inputs, inputs[::-1]):
        if isinstance(total.op, ops.Convert) and _is_of_constants(scale):
            return _scaled(total.inputs[0], _source(scale)) or new
    return new


def _is_of_constants(n: Node) -> bool:
    """Whether `n` is a small expression of constants."""
    nodes = [n]
    for m in nodes:  # grows
        if isinstance(m.op, Input) or len(nodes) > _MAX_NODES:
            return False
        nodes += m.inputs
    return True


def _source(n: Node) -> Node:
    while isinstance(n.op, ops.BroadcastInDim):
        (n,) = n.inputs
    return n


def _scaled(total: Node, scale: Node) -> Node | None:
    """The product `total` in floats. total: sums in i32. scale: sx * sw, or sx * sw / sy. None for another form."""
    divisor = None
    if isinstance(scale.op, ops.Div):
        scale, divisor = (_source(p) for p in scale.inputs)
    factor = np.float32(1)
    if isinstance(scale.op, ops.Mul) and isinstance(_source(scale.inputs[0]).op, ops.Mul):
        scale, other_factor = (_source(p) for p in scale.inputs)
        factor = np.float32(value_of(other_factor).reshape(-1)[0]) if value_of(other_factor).size == 1 else None
    if factor is None or total.dtype != i32:
        return None
    bias = None
    if isinstance(total.op, ops.Add):
        for a, b in (total.inputs, total.inputs[::-1]):
            if isinstance(a.op, _PRODUCTS) and is_constant(_source(b)):
                total, bias = a, b
                break
    if not isinstance(total.op, _PRODUCTS):
        return None
    x, w = total.inputs
    if not all(isinstance(v.op, ops.Dequantize) and len(v.inputs) == 2 for v in (x, w)):
        return None
    if isinstance(scale.op, ops.Mul):
        x_scale, w_scale = (value_of(_source(p)).astype(np.float32) for p in scale.inputs)
    else:  # only the product of both scales is known: any factorization of it is valid
        q = x.inputs[0]
        x_scale = value_of(_source(q.inputs[1])).reshape(-1)[:1] if isinstance(q.op, ops.Quantize) else np.ones(1, "f4")
        w_scale = value_of(scale).astype(np.float32) / x_scale
    x_scale, axis = x_scale.reshape(-1) * factor, _output_axis(total)
    if axis is None or x_scale.size != 1 or (w_scale.size > 1 and not is_constant(w.inputs[0])):
        return None
    shape = [w_scale.size if d == axis and w_scale.size > 1 else 1 for d in range(w.type.rank)]
    numbers = total.op(
        ops.Dequantize()(*x.inputs, const(x_scale[0])),
        ops.Dequantize()(*w.inputs, const(w_scale.reshape(shape) if w_scale.size > 1 else w_scale.reshape(-1)[0])),
        loc=total.loc,
    )
    if bias is not None:
        # in floats, as the bias has no levels of its own
        step = w_scale * np.float64(x_scale[0])
        value = value_of(_source(bias)).astype(np.float64)
        numbers = ops.add(numbers, const((value * step).astype(np.float32)))
    return numbers if divisor is None else ops.div(numbers, divisor)


def _output_axis(n: Node) -> int | None:
    """The axis of the weights that becomes the result's channels."""
    if isinstance(n.op, ops.Conv):
        return 0
    w = n.inputs[1]
    if isinstance(n.op, ops.MatMul):
        return w.type.rank - 1
    assert isinstance(n.op, ops.DotGeneral)
    free = [d for d in range(w.type.rank) if d not in (*n.op.batch[1], *n.op.contract[1])]
    return free[0] if len(free) == 1 else None
