"""Variables: read as the constants that a checkpoint gives them, and as state where the model writes them."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Missing, Result, Strings, Table, Value, Variable, expect
from ingot.ir.node import Node, const

row = Table()


@row("VarHandleOp")
def handle(c: Call) -> Value:
    return Variable(f"{c.str('container')}/{_name(c)}".lstrip("/"))


@row("VariableV2", "Variable")
def ref(c: Call) -> Value:
    return Variable(_name(c), ref=True)


def _name(c: Call) -> str:
    return c.str("shared_name") or c.node.name


@row("ReadVariableOp", any_kind=True)
def read(c: Call, variable: Value) -> Node:
    return c.walk.read(expect(variable, Variable, "variable"))


@row("VarIsInitializedOp", "IsVariableInitialized", any_kind=True)
def is_initialized(c: Call, variable: Value) -> Node:
    return const(True)


@row("AssignVariableOp", "Assign", any_kind=True)
def assign(c: Call, variable: Value, value: Value) -> Result:
    _write(c, variable, value)
    return (variable,) if c.op == "Assign" else ()


@row("AssignAddVariableOp", "AssignSubVariableOp", any_kind=True)
def assign_more(c: Call, variable: Value, value: Value) -> Result:
    by = ops.add if c.op == "AssignAddVariableOp" else ops.sub
    if isinstance(value, Node):
        value = by(c.walk.read(expect(variable, Variable, "variable")), value)
    _write(c, variable, value)
    return ()


def _write(c: Call, variable: Value, value: Value) -> None:
    if isinstance(value, Missing) or isinstance(variable, Missing):
        c.walk.lost |= not c.walk.restoring
        raise Unsupported("")
    c.walk.write(expect(variable, Variable, "variable"), expect(value, Node, "tensor"))


@row("ResourceGather", any_kind=True)
def gather(c: Call, variable: Value, indices: Value) -> Node:
    if c.int("batch_dims", 0):
        raise Unsupported("of batches")
    table = c.walk.read(expect(variable, Variable, "variable"))
    return ops.Take(0)(table, expect(indices, Node, "tensor"))


@row("ResourceGatherNd", any_kind=True)
def gather_nd(c: Call, variable: Value, indices: Value) -> Node:
    table = c.walk.read(expect(variable, Variable, "variable"))
    return ops.GatherND(0)(table, expect(indices, Node, "tensor"))


@row("RestoreV2", any_kind=True)
def restore(c: Call, prefix: Value, names: Value, slices: Value) -> Result:
    """Tensors of the model's own checkpoint, whatever file `prefix` names."""
    bundle = c.walk.bundle
    if bundle is None or not isinstance(names, Strings):
        raise Unsupported("of a checkpoint that is not there")
    out: list[Value] = []
    for name in names.items.reshape(-1):
        text = bytes(name).decode(errors="surrogateescape")
        try:
            out.append(const(bundle.array(text), loc=text))
        except Unsupported:  # of strings: it is missing where it is read
            out.append(Missing())
    return out
