"""Control flow: ops that contain graphs.

A graph reads only its own inputs and constants; other values must be passed as operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op, Samples, const
from ingot.ir.types import TensorType, boolean, f32, i64
from ingot.ops.core.base import Category, CoreOp
from ingot.ops.core.binary import Add, Compare, Mul
from ingot.ops.core.elementwise import Neg
from ingot.support.dataclass import dataclass


def _types(nodes: tuple[Node, ...]) -> tuple[TensorType, ...]:
    return tuple(n.type for n in nodes)


def _show(types: tuple[TensorType, ...]) -> str:
    return f"({', '.join(map(str, types))})"


# graph -> the graph with extra inputs after its own, and their values for the next iteration
ExtendGraph = Callable[[Graph], tuple[Graph, tuple[Node, ...]]]


class Control(CoreOp):
    """An op that contains graphs."""

    category: ClassVar[Category] = Category.CONTROL

    def with_extra_operands(self, extend: ExtendGraph) -> Op:
        """This op with extra operands after its own; `extend` adds them to its graphs as inputs.

        Extra results, if any, come after the op's own.
        """
        raise NotImplementedError(f"{type(self).__name__}.with_extra_operands")


@dataclass(frozen=True)
class While(Control):
    """values = body(values) while cond(values): the final values, of the operands' types (StableHLO while).

    cond: operands -> bool[]. body: operands -> values of the same types.
    """

    name: ClassVar[str] = "while"
    cond: Graph
    body: Graph

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        self.expect(len(inputs) > 0, "expected at least one operand, got none")
        for what, graph in (("cond", self.cond), ("body", self.body)):
            got = _types(graph.inputs)
            self.expect(got == inputs, f"{what}: expected inputs {_show(inputs)}, got {_show(got)}")
        cond_types, body_types = _types(self.cond.results), _types(self.body.results)
        self.expect(cond_types == (TensorType(boolean),), f"cond: expected the output bool[], got {_show(cond_types)}")
        self.expect(body_types == inputs, f"body: expected outputs {_show(inputs)}, got {_show(body_types)}")
        return inputs[0] if len(inputs) == 1 else inputs

    def with_extra_operands(self, extend: ExtendGraph) -> While:
        (cond, _), (body, next_values) = extend(self.cond), extend(self.body)
        extra_outputs = body.outputs[len(body.results) :]
        return While(cond, replace(body, outputs=(*body.results, *next_values, *extra_outputs)))

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        values = inputs
        while interpret(self.cond, values)[0]:
            values = interpret(self.body, values)
        return values[0] if len(values) == 1 else values

    @classmethod
    def samples(cls) -> Samples:
        i, x = Input("i", TensorType(i64))(), Input("x", TensorType(f32, (3,)))()
        for stop in (0, 4):
            cond = Graph((i, x), (Compare("LT")(i, const(stop, np.int64)),))
            body = Graph((i, x), (Add()(i, const(1, np.int64)), Mul()(x, x)))
            yield cls(cond, body), (np.asarray(0), np.asarray([1, -1.5, 0.5], np.float32))


@dataclass(frozen=True)
class Case(Control):
    """branches[index](operands...), for operands (index, operands...); see StableHLO case.

    An index out of range selects the last branch. All branches have the same input and result types.
    """

    name: ClassVar[str] = "case"
    branches: tuple[Graph, ...]

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        self.expect(len(self.branches) > 0, "expected at least one branch, got none")
        self.expect(len(inputs) > 0, "expected an index operand, got none")
        index, *operands = inputs
        self.expect(index.rank == 0 and index.dtype.is_integer, f"index: expected an integer scalar, got {index}")
        result = _types(self.branches[0].results)
        self.expect(len(result) > 0, "expected branches with outputs")
        for n, graph in enumerate(self.branches):
            input_types, output_types = _types(graph.inputs), _types(graph.results)
            self.expect(
                input_types == tuple(operands),
                f"branch {n}: expected inputs {_show(tuple(operands))}, got {_show(input_types)}",
            )
            self.expect(
                output_types == result, f"branch {n}: expected outputs {_show(result)}, got {_show(output_types)}"
            )
        return result[0] if len(result) == 1 else result

    def with_extra_operands(self, extend: ExtendGraph) -> Case:
        return Case(tuple(extend(branch)[0] for branch in self.branches))

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        index = int(inputs[0])
        chosen = index if 0 <= index < len(self.branches) else len(self.branches) - 1
        out = interpret(self.branches[chosen], inputs[1:])
        return out[0] if len(out) == 1 else out

    @classmethod
    def samples(cls) -> Samples:
        x = Input("x", TensorType(f32, (3,)))()
        branches = tuple(Graph((x,), (y,)) for y in (Neg()(x), x, Add()(x, x)))
        for index in (-1, 0, 1, 2, 7):
            yield cls(branches), (np.asarray(index, np.int32), np.asarray([1, -1.5, 0], np.float32))
