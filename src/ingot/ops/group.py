"""Group: a fused subgraph as one op. A group becomes one kernel."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op, Samples
from ingot.ir.types import TensorType, f32
from ingot.ops.core.base import Category, CoreOp, category
from ingot.ops.core.binary import Add, Mul, Sub
from ingot.ops.core.functions import Exp
from ingot.ops.core.reduce import Reduce, Reduction
from ingot.ops.core.shape import BroadcastInDim, Reshape
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Group(CoreOp):
    """body(inputs...). kind: the schedule's strategy, such as "pointwise" or "contraction".

    The body shares the symbols of the enclosing graph, so operand types must equal the body's input types.
    """

    name: ClassVar[str] = "group"
    category: ClassVar[Category] = Category.GROUP
    body: Graph
    kind: str

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        input_types = tuple(n.type for n in self.body.inputs)
        self.expect(
            len(input_types) == len(inputs), f"{self.kind}: expected {len(input_types)} operands, got {len(inputs)}"
        )
        for i, (expected, got) in enumerate(zip(input_types, inputs, strict=True)):
            self.expect(expected == got, f"{self.kind}: operand {i}: expected {expected} as in the body, got {got}")
        output_types = tuple(n.type for n in self.body.outputs)
        self.expect(len(output_types) > 0, f"{self.kind}: expected a body with outputs")
        return output_types[0] if len(output_types) == 1 else output_types

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        out = interpret(self.body, inputs)
        return out[0] if len(out) == 1 else out

    @classmethod
    def samples(cls) -> Samples:
        x, y = (Input(label, TensorType(f32, (2, 3)))() for label in "xy")
        total = Add()(x, y)
        operands = np.ones((2, 3), np.float32), np.full((2, 3), -0.5, np.float32)
        yield cls(Graph((x, y), (Exp()(total),)), "pointwise"), operands
        yield cls(Graph((x, y), (total, Reduce("sum", (1,))(total))), "reduction"), operands


@dataclass(frozen=True)
class Recomputed(Group):
    """A group that repeats a kernel because its results are read again much later. turn: distinguishes repetitions."""

    name: ClassVar[str] = "recomputed"
    turn: int = 1


def reads_same_element(body: Graph, p: Node, value: Node | None = None) -> bool:
    """Whether element i of parameter `p` is only used for element i of the results, which have its shape.

    value: a result that must depend on `p` as well, if given.
    """
    readers = elements_readers(body, p)
    return readers is not None and all(n.shape == p.shape for n in body.outputs) and (value is None or value in readers)


def is_used_by_element(body: Graph, p: Node) -> bool:
    """Whether element i of a value of the body is only used for element i of others, up to reductions of these."""
    return elements_readers(body, p, Reduction) is not None


def elements_readers(body: Graph, p: Node, ends: type[Op] | tuple[()] = ()) -> set[Node] | None:
    """The nodes that depend on a value of the body, itself included, if all of them need its element i for their
    element i only, in row-major order; else None. ends: ops that may need more, and whose users do not count."""
    users = body.uses()
    stack, visited = [p], {p}
    while stack:
        for u in users.get(stack.pop(), ()):
            if isinstance(u.op, ends):
                continue
            elementwise = category(u.op) is Category.ELEMENTWISE and all(i.shape == u.shape for i in u.inputs)
            if not elementwise and not isinstance(u.op, Reshape):
                return None
            if u not in visited:
                visited.add(u)
                stack.append(u)
    return visited


def centered_squares(node: Node) -> tuple[Node, Node] | None:
    """(x, center) of a variance's sum((x - center)^2), where the center is the same along the reduced dimensions; None
    for any other reduction."""
    if not isinstance(node.op, Reduce) or node.op.kind != "sum" or not node.dtype.is_float:
        return None
    square = node.inputs[0]
    if not isinstance(square.op, Mul) or square.inputs[0] is not square.inputs[1]:
        return None
    difference = square.inputs[0]
    if not isinstance(difference.op, Sub) or not isinstance(difference.inputs[1].op, BroadcastInDim):
        return None
    x, center = difference.inputs
    assert isinstance(center.op, BroadcastInDim)
    sized = [d for d, n in zip(center.op.dims, center.inputs[0].shape, strict=True) if n != 1]
    return (x, center) if x.shape == center.shape and not set(sized) & set(node.op.dims) else None


def label(node: Node) -> str:
    """A readable label of a group: its main ops and their location."""
    assert isinstance(node.op, Group)
    names: list[str] = []
    for n in node.op.body.nodes():
        if n.op.computes and n.op.name not in names:
            names.append(n.op.name)
    return "+".join(names[-6:]) + (f" @ {node.loc}" if node.loc else "")
