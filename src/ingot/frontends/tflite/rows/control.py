"""Branches, loops and variables."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Missing, Resource, Table, Value
from ingot.ir.node import Graph, Node
from ingot.ir.types import i32

row = Table()


@row("IF", moves=True)
def if_(c: Call) -> Sequence[Value]:
    then, other = c.int("then_subgraph_index"), c.int("else_subgraph_index")
    known = c.importer.sizes.decided(c.x(0))
    if known is not None:
        return c.importer.run(then if known else other, [v for v in c.values[1:] if v is not None])
    names = c.importer.touched(then, other)
    values = [*c.xs()[1:], *(c.importer.variables[n].node for n in names)]
    branches = tuple(c.importer.body(i, values, names) for i in (then, other))
    shapes = [tuple(n.type for n in b.results) for b in branches]
    if shapes[0] != shapes[1]:
        raise Unsupported(f"branches that give {_show(shapes[0])} and {_show(shapes[1])}")
    index = ops.cast(ops.Not()(ops.reshape(c.x(0), ())), i32)
    return _stored(c, ops.Case(branches)(index, *values, loc=c.loc).results, names)


@row("WHILE", moves=True)
def while_(c: Call) -> Sequence[Value]:
    cond, body = c.int("cond_subgraph_index"), c.int("body_subgraph_index")
    names = c.importer.touched(cond, body)
    values = [*c.xs(), *(c.importer.variables[n].node for n in names)]
    test, step = (c.importer.body(i, values, names) for i in (cond, body))
    (going,) = test.results[: len(test.results) - len(names)]
    given, made = (tuple(n.type for n in nodes) for nodes in (values, step.results))
    if given != made:
        raise Unsupported(f"a loop that takes {_show(given)} and gives {_show(made)}")
    test = Graph(test.inputs, (ops.reshape(going, ()),))
    return _stored(c, ops.While(test, step)(*values, loc=c.loc).results, names)


def _show(types: Sequence[object]) -> str:
    return f"({', '.join(map(str, types))})"


def _stored(c: Call, results: Sequence[Node], names: Sequence[str]) -> Sequence[Node]:
    count = len(results) - len(names)
    for name, node in zip(names, results[count:], strict=True):
        c.importer.variables[name].node = node
    return results[:count]


@row("CALL_ONCE")
def call_once(c: Call) -> Sequence[Value]:
    """What it assigns is what variables hold at first."""
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


@row("READ_VARIABLE", moves=True)
def read_variable(c: Call) -> Node:
    name = _resource(c).name
    variable = c.importer.variables.get(name)
    if variable is None:
        raise Unsupported(f"variable {name!r}, which nothing gives a first value")
    return variable.node


@row("ASSIGN_VARIABLE", moves=True)
def assign_variable(c: Call) -> Sequence[Value]:
    c.importer.assign(_resource(c).name, c.x(1))
    return ()
