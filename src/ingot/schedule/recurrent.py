"""The time step of a recurrent layer as a graph, for schedules that lower the layer as one loop."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Lit, Ramp, Var
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, topological
from ingot.ir.types import DType, TensorType, boolean
from ingot.ops.nn.recurrent import Parameters, Pass, Recurrent
from ingot.ops.nn.terms import Term
from ingot.ops.views import strided_base
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError


def anchor_of(body: Graph) -> tuple[Node, Recurrent]:
    """The recurrent layer of a group."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Recurrent))
    assert isinstance(anchor.op, Recurrent)
    return anchor, anchor.op


@dataclass(frozen=True)
class Cell:
    """The graph of one time step in one direction, over its own inputs.

    row: the projected input. states, results: before and after the step. valid: whether a sequence has not ended.
    products: the products with rows of R in topological order, each with its first row, in units of the hidden size.
    """

    at: Pass
    row: Node
    states: tuple[Node, ...]
    valid: Node | None
    results: tuple[Node, ...]
    products: tuple[tuple[Node, int], ...]

    @staticmethod
    def of(anchor: Node, d: Pass, dtype: DType) -> Cell:
        """The cell of a layer in direction `d`, computed in `dtype`."""
        op, batch = anchor.op, anchor.inputs[0].shape[1]
        assert isinstance(op, Recurrent)
        width, h = op.gates * op.hidden, op.hidden
        parameters = op.parameters(anchor.inputs, d.index)
        row = Input("row", TensorType(dtype, (batch, width)))()
        r = Input("r", TensorType(dtype, (width, h)))()
        states = tuple(Input(f"state{i}", TensorType(dtype, (batch, h)))() for i in range(op.states))
        valid = Input("valid", TensorType(boolean, (batch, 1)))() if op.has_lengths else None
        inner = Parameters(parameters.w, Term(r), parameters.b, tuple(map(Term, states)), parameters.peephole)
        results = op.step(d.index, Term(row), inner, None if valid is None else Term(valid))
        nodes = tuple(t.node for t in results)
        products = tuple((n, _first_row(n, r) // h) for n in topological(nodes) if isinstance(n.op, ops.DotGeneral))
        return Cell(d, row, states, valid, nodes, products)


def _first_row(product: Node, r: Node) -> int:
    """The offset in R of the rows that a product reads."""
    match = strided_base(product.inputs[1], {r: Layout.contiguous(r.shape)})
    if match is None or match[0] is not r or not isinstance(match[1].offset, int):
        raise CompileError("a recurrent cell", expected="products with rows of R", got=str(product))
    return match[1].offset


def input_projection(op: Recurrent, inputs: Sequence[Node], d: Pass, dtype: DType) -> Term:
    """The terms of every time step that do not depend on the state, as one contraction of the full sequence x."""
    x, w = inputs[:2]
    width = op.gates * op.hidden
    weights = ops.Slice((d.index, 0, 0), (d.index + 1, *w.shape[1:]), (1, 1, 1))(w)
    weights2d = ops.Reshape(w.shape[1:])(weights)
    product = Term(ops.DotGeneral(((), ()), ((2,), (1,)), dtype)(x, weights2d))
    parameters = op.parameters(inputs, d.index)
    return product + (parameters.b.slice(0, 0, width) + op.outer_bias(parameters))


def subgraph(body: Graph, value: Node) -> tuple[Graph, list[int]]:
    """A graph of `value` over the body's inputs that it reads, and their positions."""
    nodes = set(topological([value]))
    positions = [i for i, n in enumerate(body.inputs) if n in nodes]
    return Graph(tuple(body.inputs[i] for i in positions), (value,)), positions


def gate_offset(index: Expr, j: Var) -> int:
    """The constant that `index` adds to the column j: the first row of R of a gate."""
    base = index.base if isinstance(index, Ramp) else index
    if base == j:
        return 0
    if isinstance(base, k.Binary) and base.fn == "add" and base.a == j and isinstance(base.b, Lit):
        return int(base.b.value)
    raise CompileError("a recurrent cell", expected="gates at fixed offsets", got=type(base).__name__)


__all__ = ["Cell", "anchor_of", "gate_offset", "input_projection", "subgraph"]
