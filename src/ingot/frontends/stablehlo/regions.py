"""Regions of scalars as functions: recognised as known combiners, or applied to whole tensors.

A region is built once on new inputs. Equal computations are one node, so `output is Add()(a, b)` tests whether it is a
sum; an unknown region is still elementwise, and is applied to tensors op by op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.syntax import Block
from ingot.frontends.stablehlo.values import AnyValue, Call, flatten, like, unflatten
from ingot.ir.node import Const, Graph, Input, Node, Op, topological
from ingot.ir.types import Shape, boolean
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Region:
    """arguments and results: values whose nodes are scalars."""

    arguments: tuple[AnyValue, ...]
    results: tuple[AnyValue, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return flatten(self.arguments)

    @property
    def outputs(self) -> tuple[Node, ...]:
        return flatten(self.results)

    def __call__(self, *values: AnyValue) -> tuple[AnyValue, ...]:
        """The region on each element of tensors of one shape."""
        arrays = flatten(values)
        nodes = elementwise(self.outputs, dict(zip(self.inputs, arrays, strict=True)), arrays[0].shape)
        return unflatten(self.results, nodes)

    def combiner(self) -> str | None:
        """The combination of two scalars: sum, prod, max, min, and, or; set for the second one; None for others."""
        if len(self.inputs) != 2 or len(self.outputs) != 1:
            return None
        (a, b), (output,) = self.inputs, self.outputs
        if output is b:
            return "set"
        for kind, op in _COMBINERS.items():
            if _is_defined_on(op, a) and (output is op(a, b) or output is op(b, a)):
                return kind
        return None


_COMBINERS: Mapping[str, Op] = {
    "sum": ops.Add(), "prod": ops.Mul(), "max": ops.Max(), "min": ops.Min(), "and": ops.And(), "or": ops.Or(),
}  # fmt: skip


def _is_defined_on(op: Op, x: Node) -> bool:
    return not isinstance(op, ops.And | ops.Or) or not x.dtype.is_float


def region(c: Call, index: int, likes: Sequence[AnyValue]) -> Region:
    """Region `index` of an operation on scalars of the types of `likes`."""
    return region_of(c, c.regions[index], likes)


def region_of(c: Call, block: Block, likes: Sequence[AnyValue]) -> Region:
    """A block that is a region, or the body of a function."""
    if len(block.arguments) != len(likes):
        raise Unsupported(f"a region of {len(block.arguments)} arguments, expected {len(likes)}")
    arguments = tuple(
        like(v, [Input(f"{name}.{i}", n.type.with_shape(()))() for i, n in enumerate(flatten((v,)))])
        for (name, _), v in zip(block.arguments, likes, strict=True)
    )
    return Region(arguments, c.importer.block(block, arguments, c.scope))


# ops that only affect gradients, and return their first operand
_IDENTITY_OPS = ops.Cotangent | ops.CustomGradient | ops.StopGradient | ops.UnknownGradient


def elementwise(roots: Sequence[Node], images: Mapping[Node, Node], shape: Shape) -> tuple[Node, ...]:
    """`roots`, a computation on scalars, with scalars replaced by tensors of `shape`."""
    values = dict(images)

    def wide(n: Node) -> Node:
        return values[n] if n in values else ops.broadcast_to(n, shape)

    # nodes that do not depend on a replaced scalar stay scalars
    for n in topological(roots, lambda n: () if n in images else n.inputs):
        if n in values or not any(i in values for i in n.inputs):
            continue
        if isinstance(n.op, ops.Elementwise | _IDENTITY_OPS) and len(n.types) == 1:
            values[n] = n.op(*map(wide, n.inputs), loc=n.loc)
        elif n.op.rearranges and n.type.size == 1 and n.inputs[0].type.rank == 0 and n.type.rank == 0:
            values[n] = values[n.inputs[0]]
        else:
            raise Unsupported(f"a region with {n.op.name}")
    return tuple(wide(r) for r in roots)


def identity(kind: str, node: Node) -> bool:
    """Whether `node` is the neutral constant of the combiner: 0 for a sum."""
    if not isinstance(node.op, Const) or node.op.array.splat is None:
        return False
    value = node.op.array.splat
    neutral = ops.identity_of(kind, node.dtype)
    return bool(value == node.dtype.numpy.type(neutral)) if node.dtype != boolean else bool(value) == bool(neutral)


def apply(kind: str, a: Node, b: Node) -> Node:
    """Two tensors combined by a kind that `Region.combiner` returns."""
    return _COMBINERS[kind](a, ops.broadcast_to(b, a.shape))


def graph(inputs: Sequence[Node], outputs: Sequence[Node], captures: Mapping[Node, Node]) -> Graph:
    """A graph whose captured values are inputs after its own."""
    return Graph((*inputs, *captures.values()), tuple(outputs))
