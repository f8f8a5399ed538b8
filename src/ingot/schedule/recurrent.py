"""A recurrent layer's step as a graph, for schedules that keep the layer whole."""

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
from ingot.ops.views import strided
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError


def anchor_of(body: Graph) -> tuple[Node, Recurrent]:
    """The layer of a group."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Recurrent))
    assert isinstance(anchor.op, Recurrent)
    return anchor, anchor.op


@dataclass(frozen=True)
class Cell:
    """The graph of one step of one direction, over its own inputs. products: those with rows of R, in the order in
    which they can be computed, and of each the first such row."""

    at: Pass
    row: Node
    states: tuple[Node, ...]
    valid: Node | None
    results: tuple[Node, ...]
    products: tuple[tuple[Node, int], ...]

    @staticmethod
    def of(anchor: Node, d: Pass, dtype: DType) -> Cell:
        """dtype: what is computed in."""
        op, batch = anchor.op, anchor.inputs[0].shape[1]
        assert isinstance(op, Recurrent)
        width, h = op.gates * op.hidden, op.hidden
        given = op.parameters(anchor.inputs, d.index)
        row = Input("row", TensorType(dtype, (batch, width)))()
        r = Input("r", TensorType(dtype, (width, h)))()
        states = tuple(Input(f"state{i}", TensorType(dtype, (batch, h)))() for i in range(op.states))
        valid = Input("valid", TensorType(boolean, (batch, 1)))() if op.has_lengths else None
        inner = Parameters(given.w, Term(r), given.b, tuple(map(Term, states)), given.peephole)
        results = op.step(d.index, Term(row), inner, None if valid is None else Term(valid))
        nodes = tuple(t.node for t in results)
        products = tuple((n, _first(n, r) // h) for n in topological(nodes) if isinstance(n.op, ops.DotGeneral))
        return Cell(d, row, states, valid, nodes, products)


def _first(product: Node, r: Node) -> int:
    """Where the rows of R that a product reads begin."""
    found = strided(product.inputs[1], {r: Layout.contiguous(r.shape)})
    if found is None or found[0] is not r or not isinstance(found[1].offset, int):
        raise CompileError("a recurrent cell", expected="products with rows of R", got=str(product))
    return found[1].offset


def projected(op: Recurrent, inputs: Sequence[Node], d: Pass, dtype: DType) -> Term:
    """What every step of a direction adds that does not depend on the state, as a contraction of x as it is."""
    x, w = inputs[:2]
    width = op.gates * op.hidden
    own = ops.Slice((d.index, 0, 0), (d.index + 1, *w.shape[1:]), (1, 1, 1))(w)
    flat = ops.Reshape(w.shape[1:])(own)
    product = Term(ops.DotGeneral(((), ()), ((2,), (1,)), dtype)(x, flat))
    given = op.parameters(inputs, d.index)
    return product + (given.b.slice(0, 0, width) + op.outer_bias(given))


def part_of(body: Graph, value: Node) -> tuple[Graph, list[int]]:
    """A graph of `value` over the body's inputs that it reads, and their positions."""
    nodes = set(topological([value]))
    used = [i for i, n in enumerate(body.inputs) if n in nodes]
    return Graph(tuple(body.inputs[i] for i in used), (value,)), used


def offset_from(index: Expr, j: Var) -> int:
    """What was added to the column j: the gate's first row of R."""
    base = index.base if isinstance(index, Ramp) else index
    if base == j:
        return 0
    if isinstance(base, k.Binary) and base.fn == "add" and base.a == j and isinstance(base.b, Lit):
        return int(base.b.value)
    raise CompileError("a recurrent cell", expected="gates at fixed offsets", got=type(base).__name__)


__all__ = ["Cell", "anchor_of", "offset_from", "part_of", "projected"]
