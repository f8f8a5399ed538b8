"""Uniformly quantized tensors: operands are dequantized, and the result is quantized once. Ops that move elements are
applied to the stored integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.types import Quant, Tensor
from ingot.frontends.stablehlo.values import AnyValue, Call, Quantized, Table
from ingot.ir.node import Node, const

row, on_quantized = Table(), Table()


def _steps(quant: Quant, x: Node) -> tuple[Node, Node]:
    """scale and zero point, broadcast to `x`."""
    parameters: list[Node] = []
    for values in (quant.scales, quant.zeros):
        array = np.array(values, quant.expressed_dtype.numpy)
        if quant.axis is None:
            parameters.append(ops.broadcast_to(const(array.reshape(())), x.shape))
        else:
            parameters.append(ops.BroadcastInDim(x.shape, (quant.axis,))(const(array)))
    return parameters[0], parameters[1]


def dequantized(value: Quantized) -> Node:
    """(stored - zero) * scale"""
    x = ops.cast(value.node, value.quant.expressed_dtype)
    scale, zero = _steps(value.quant, x)
    return ops.Mul()(ops.Sub()(x, zero), scale)


def quantized(x: Node, quant: Quant) -> Quantized:
    """round(x / scale) + zero, within the storage's limits; halves go to even."""
    scale, zero = _steps(quant, x)
    steps = ops.Add()(ops.RoundEven()(ops.Div()(x, scale)), zero)
    wide = ops.clip(steps, float(quant.low), float(quant.high))
    return Quantized(ops.cast(wide, quant.storage), quant)


@row("uniform_quantize", "uniform_dequantize")
def unreachable(c: Call, x: AnyValue) -> AnyValue:
    raise Unsupported("between types that are not quantized")


@on_quantized("uniform_quantize")
def uniform_quantize(c: Call, x: AnyValue) -> AnyValue:
    quant = c.type.quant
    if quant is None:
        raise Unsupported("to a type that is not quantized")
    real = dequantized(x) if isinstance(x, Quantized) else x
    assert isinstance(real, Node)
    return quantized(ops.cast(real, quant.expressed_dtype), quant)


@on_quantized("uniform_dequantize")
def uniform_dequantize(c: Call, x: AnyValue) -> Node:
    assert isinstance(x, Quantized)
    return dequantized(x)


_MOVEMENT_OPS = ("broadcast_in_dim", "reshape", "transpose", "slice", "concatenate", "gather", "dynamic_slice",
          "dynamic_update_slice", "reverse", "select", "pad", "optimization_barrier", "dynamic_broadcast_in_dim",
          "dynamic_reshape", "real_dynamic_slice", "dynamic_gather")  # fmt: skip


@on_quantized("any")
def through_numbers(c: Call, *xs: AnyValue) -> tuple[AnyValue, ...]:
    """Dequantize, compute, quantize."""
    quants = {x.quant for x in xs if isinstance(x, Quantized)} | {t.quant for t in c.types if t is not None}
    is_movement = c.op.name.removeprefix("stablehlo.") in _MOVEMENT_OPS and len(quants) == 1
    inner = c if is_movement else replace(c, types=tuple(map(_real, c.types)))
    numbers = [x if not isinstance(x, Quantized) else x.node if is_movement else dequantized(x) for x in xs]
    results = c.importer.rows.real[c.op.name](inner, *numbers)
    requantized: list[AnyValue] = []
    for y, type in zip(results if isinstance(results, tuple) else (results,), c.types, strict=True):
        if type is None or type.quant is None:
            requantized.append(y)
            continue
        assert isinstance(y, Node)
        requantized.append(Quantized(y, type.quant) if is_movement else quantized(y, type.quant))
    return tuple(requantized)


def _real(type: Tensor | None) -> Tensor | None:
    """The type of the numbers that a quantized tensor represents."""
    return replace(type, dtype=type.quant.expressed_dtype, quant=None) if type is not None and type.quant else type


@on_quantized("bitcast_convert")
def bitcast_convert(c: Call, x: AnyValue) -> AnyValue:
    node = x.node if isinstance(x, Quantized) else x
    assert isinstance(node, Node)
    if node.dtype != c.dtype:
        node = ops.BitcastConvert(c.dtype)(node)
    return Quantized(node, c.type.quant) if c.type.quant else node


@on_quantized("constant")
def constant(c: Call) -> AnyValue:
    node = c.importer.rows.real["stablehlo.constant"](c)
    return Quantized(node, c.type.quant) if c.type.quant and isinstance(node, Node) else node
