from __future__ import annotations

import pytest

from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Node, Project
from ingot.ir.types import TensorType, f32
from ingot.ir.verify import verify
from ingot.support.errors import ShapeError, VerifyError
from tests.ir.tiny import TAdd, TBroadcast, TCall, TNeg, TSplit, arg

S = symbol("s")


def forged(op, inputs: tuple[Node, ...], *types: TensorType, loc: str = "") -> Node:
    """A node whose types are not its op's."""
    n = object.__new__(Node)
    n.op, n.inputs, n.types, n.loc, n.id = op, inputs, types, loc, -1
    return n


def test_accepts_what_is_well_formed() -> None:
    x = arg("x", S, 4)
    inner = arg("p", S, 4)
    body = Graph((inner,), (TNeg()(inner),))
    a, b = TSplit()(TBroadcast((4, S, 4))(TCall(body)(x).results[0])).results
    verify(Graph((x, arg("unused", 3)), (TAdd()(a, b), x), ("sum", "x")), "p#1")


X, Y = arg("vx", S), arg("vy", 4)
FORGED = forged(TNeg(), (X,), TensorType(f32, (S + 1,)), loc="m.py:9")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph((TNeg()(X),), ()), r"after fuse#3: graph inputs: expected input nodes, got %\d+ = t.negate"),
        (Graph((X, arg("vx", 2)), ()), r"after fuse#3: two inputs are labelled 'vx'"),
        (Graph((Y,), (TNeg()(X),)), r"after fuse#3: input 'vx' is read but is none of the graph's inputs"),
        (Graph((X,), (X, X), ("a",)), r"output names: expected 2 distinct names or none, got \('a',\)"),
        (Graph((X,), (X, X), ("a", "a")), r"output names: expected 2 distinct"),
        (Graph((X,), (FORGED,)), r"after fuse#3: t.negate at m.py:9: types: expected f32\[s\], got \(f32\[s\+1\],\)"),
        (Graph((X,), (TSplit()(X),)), r"graph outputs: expected single results"),
        (Graph((X,), (forged(TNeg(), (TSplit()(X),), X.type),)), r"operand 0: expected a single result"),
        (Graph((X,), (forged(Project(3), (X,), X.type),)), r"project: result 3 of: got %"),
        (Graph((X, Y), (forged(TAdd(), (X, Y), X.type),)), r"t.add: its type rule refuses it: t.add: operands differ"),
        (
            Graph((Y,), (TBroadcast((symbol("q"), 4))(Y),)),
            r"t.broadcast: size q uses q, which no input has: expected static",
        ),
        (
            Graph((X,), (TCall(Graph((Y,), (FORGED,)))(Y).results[0],)),
            r"after fuse#3: input 'vy' is read but is none",
        ),
        (
            Graph((X, Y), (TCall(Graph((Y,), (FORGED,)))(Y).results[0],)),
            r"after fuse#3: in t.call: input 'vx' is read but is none",
        ),
    ],
)
def test_refuses_and_names_the_pass(graph: Graph, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(graph, "fuse#3")


def test_a_size_is_not_negative() -> None:
    """Of a product of two negative sizes the number of elements is right."""
    with pytest.raises(ShapeError, match="0 or more"):
        arg("x", 6).type.with_shape((-2, -3))
