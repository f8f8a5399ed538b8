"""Random numbers: of the distributions that the operators name, not LiteRT's own sequence."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.tflite.call import Call, Table
from ingot.ir import types as T
from ingot.ir.node import Node
from ingot.ops import sampling

row = Table()


@row("RANDOM_UNIFORM")
def random_uniform(c: Call) -> Node:
    return sampling.uniform(c.importer.random_key(), c.dims(0), c.type())


@row("RANDOM_STANDARD_NORMAL")
def random_standard_normal(c: Call) -> Node:
    return sampling.normal(c.importer.random_key(), c.dims(0), c.type())


@row("MULTINOMIAL")
def multinomial(c: Call) -> Node:
    """Logarithms of weights [b, n] -> places [b, count]."""
    (count,) = c.ints(1)
    wide = ops.cast(c.x(), T.f64)
    weights = ops.Exp()(ops.sub(wide, ops.reduce_max(wide, -1, True)))
    return ops.cast(sampling.categorical(c.importer.random_key(), weights, count), c.type())
