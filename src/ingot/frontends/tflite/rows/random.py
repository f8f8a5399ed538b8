"""Random numbers: of the distributions that the operators name, not LiteRT's own sequence."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.tflite.call import Call, Table
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
    drawn = sampling.categorical_of_logits(c.importer.random_key(), c.x(), c.ints(1)[0])
    return ops.cast(drawn, c.type())
