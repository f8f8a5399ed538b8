"""Branches, loops and variables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Missing, Resource, Table, Value
from ingot.ir.node import Input, Node
from ingot.ir.types import i32

row = Table()


@row("IF", is_movement=True)
def if_(c: Call) -> Sequence[Value]:
    then, other = c.int("then_subgraph_index"), c.int("else_subgraph_index")
    is_then = c.importer.sizes.decided(c.x(0))
    if is_then is not None:
        return called(c, then if is_then else other, c.values[1:])
    return branches(c, (then, other), ops.cast(ops.Not()(ops.reshape(c.x(0), ())), i32))


def called(c: Call, index: int, values: Sequence[Value | None]) -> Sequence[Value]:
    """The results of an inlined subgraph."""
    return c.importer.run(index, [v for v in values if v is not None])


def branches(c: Call, subgraphs: Sequence[int], index: Node) -> Sequence[Value]:
    """The results of the subgraph with the number `index`, called with the operands after the first."""
    names = c.importer.touched(*subgraphs)
    values = [*c.xs()[1:], *(c.importer.variables[n].node for n in names)]
    inner = [Input(f"{c.loc}.{i}", n.type)() for i, n in enumerate(values)]
    outcomes = [partial(c.importer.inside, i, inner, names) for i in subgraphs]
    return _stored(
        c, bodies.case(c.importer.computed_sizes, ops.reshape(index, ()), outcomes, inner, values, c.loc), names
    )


@row("WHILE", is_movement=True)
def loop(c: Call) -> Sequence[Value]:
    cond, body = c.int("cond_subgraph_index"), c.int("body_subgraph_index")
    names = c.importer.touched(cond, body)
    values = [*c.xs(), *(c.importer.variables[n].node for n in names)]

    def cond_graph(inner: Sequence[Node]) -> Node:
        return ops.reshape(c.importer.inside(cond, inner, names)[0], ())

    step = partial(c.importer.inside, body, names=names)
    return _stored(c, bodies.loop(c.importer.computed_sizes, values, cond_graph, step, c.loc), names)


def _stored(c: Call, results: Sequence[Node], names: Sequence[str]) -> Sequence[Node]:
    count = len(results) - len(names)
    for name, node in zip(names, results[count:], strict=True):
        c.importer.variables[name].node = node
    return results[:count]


@row("CALL_ONCE")
def call_once(c: Call) -> Sequence[Value]:
    """Run the subgraph at import, for the initial values of variables."""
    c.importer.initialise(c.int("init_subgraph_index"))
    return ()


@row("VAR_HANDLE")
def var_handle(c: Call) -> Resource:
    options = c.op.options
    return Resource(f"{options.get('container', '')}/{options.get('shared_name', '')}".lstrip("/"))


def _resource(c: Call) -> Resource:
    value = c.values[0]
    if not isinstance(value, Resource):
        raise Unsupported("" if isinstance(value, Missing) else "a handle that is no variable's")
    return value


@row("READ_VARIABLE", is_movement=True)
def read_variable(c: Call) -> Node:
    name = _resource(c).name
    variable = c.importer.variables.get(name)
    if variable is None:
        raise Unsupported(f"variable {name!r}, which nothing gives a first value")
    return variable.node


@row("ASSIGN_VARIABLE", is_movement=True)
def assign_variable(c: Call) -> Sequence[Value]:
    c.importer.assign(_resource(c).name, c.x(1))
    return ()
