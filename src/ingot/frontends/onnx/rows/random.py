"""Random numbers and dropout. A node's `seed` makes its numbers independent of the model's."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Const, Node
from ingot.ir.types import DType, Shape
from ingot.ops import sampling


def _key(c: Call) -> Node:
    seed = int(np.float32(c.float("seed")).view(np.uint32)) if c.has_attr("seed") else None
    return c.importer.random_key(seed)


def _dtype(c: Call, default: DType) -> DType:
    return dtype_from_code(c.int("dtype")) if c.has_attr("dtype") else default


def _float(c: Call, default: DType) -> DType:
    dtype = _dtype(c, default)
    if dtype not in sampling.FLOATS:
        raise Unsupported(f"random numbers of {dtype}")
    return dtype


def _normal(c: Call, shape: Shape, dtype: DType) -> Node:
    drawn = sampling.normal(_key(c), shape, sampling.compute_dtype(dtype))
    return ops.cast(ops.add(ops.mul(drawn, c.float("scale", 1.0)), c.float("mean", 0.0)), dtype)


def _uniform(c: Call, shape: Shape, dtype: DType) -> Node:
    low, high = c.float("low", 0.0), c.float("high", 1.0)
    if (low, high) == (0.0, 1.0):
        return sampling.uniform(_key(c), shape, dtype)
    drawn = sampling.uniform(_key(c), shape, sampling.compute_dtype(dtype))
    return ops.cast(ops.add(ops.mul(drawn, high - low), low), dtype)


@onnx_op("RandomNormal")
def random_normal(c: Call) -> Result:
    return _normal(c, c.int_list("shape"), _float(c, T.f32))


@onnx_op("RandomUniform")
def random_uniform(c: Call) -> Result:
    return _uniform(c, c.int_list("shape"), _float(c, T.f32))


@onnx_op("RandomNormalLike")
def random_normal_like(c: Call) -> Result:
    return _normal(c, c.shape(), _float(c, c.type().dtype))


@onnx_op("RandomUniformLike")
def random_uniform_like(c: Call) -> Result:
    return _uniform(c, c.shape(), _float(c, c.type().dtype))


@onnx_op("Bernoulli", since=15)
def bernoulli(c: Call) -> Result:
    chance = ops.cast(c.x(), sampling.compute_dtype(c.type().dtype))
    return ops.cast(sampling.bernoulli(_key(c), c.shape(), chance), _dtype(c, c.type().dtype))


@onnx_op("Multinomial", since=7)
def multinomial(c: Call) -> Result:
    """Logarithms of weights [b, n] -> places [b, sample_size]."""
    drawn = sampling.categorical_of_logits(_key(c), c.x(), c.int("sample_size", 1))
    return ops.cast(drawn, _dtype(c, T.i32))


def _rate(c: Call, index: int) -> float | Node:
    if not c.has(index):
        return 0.5
    node = c.x(index)
    return float(node.op.value.reshape(())) if isinstance(node.op, Const) else ops.reshape(node, ())


@onnx_op("Dropout", since=1)
def dropout_7(c: Call) -> Result:
    """training_mode is set by `import_trainable`."""
    rate = c.float("ratio", 0.5)
    if rate == 0.0 or not c.flag("training_mode"):
        return [c.x(), ops.full(c.shape(), True, T.boolean)]
    return list(sampling.dropout(_key(c), c.x(), rate))


@onnx_op("Dropout", since=12)
def dropout(c: Call) -> Result:
    rate = _rate(c, 1)
    if rate == 0.0 or not (c.has(2) and any(c.ints(2))):
        return [c.x(), ops.full(c.shape(), True, T.boolean)]
    return list(sampling.dropout(_key(c), c.x(), rate))


@onnx_op("BiasDropout", domain="com.microsoft")
def bias_dropout(c: Call) -> Result:
    y = ops.add(c.x(0), c.x(1))
    rate, is_kept = _rate(c, 3), ops.full(y.shape, True, T.boolean)
    if rate != 0.0 and c.has(4) and any(c.ints(4)):
        y, is_kept = sampling.dropout(_key(c), y, rate)
    return [ops.add(y, c.x(2)) if c.has(2) else y, is_kept]
