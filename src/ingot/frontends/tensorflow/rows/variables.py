"""Variables: read as the constants that a checkpoint gives them, and as state where the model writes them."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows.index import strided_update
from ingot.frontends.tensorflow.values import Call, Missing, Result, Strings, Table, Value, Variable, expect
from ingot.ir.node import Node, const
from ingot.ir.types import i64

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
    store(c, variable, value)
    return (variable,) if c.op == "Assign" else ()


@row("AssignAddVariableOp", "AssignSubVariableOp", any_kind=True)
def assign_more(c: Call, variable: Value, value: Value) -> Result:
    by = ops.add if c.op == "AssignAddVariableOp" else ops.sub
    if isinstance(value, Node):
        value = by(c.walk.read(expect(variable, Variable, "variable")), value)
    store(c, variable, value)
    return ()


def store(c: Call, variable: Value, value: Value) -> None:
    if isinstance(value, Missing) or isinstance(variable, Missing):
        c.walk.has_lost_writes |= not c.walk.is_restoring
        raise Unsupported("")
    c.walk.write(expect(variable, Variable, "variable"), expect(value, Node, "tensor"))


_SCATTER_KINDS = {"Update": "none", "Add": "add", "Sub": "add", "Mul": "mul", "Min": "min", "Max": "max"}


@row(*(f"ResourceScatter{kind}" for kind in _SCATTER_KINDS), any_kind=True)
def scatter(c: Call, variable: Value, indices: Value, updates: Value) -> Result:
    """Rows of a variable."""
    return _scattered(c, variable, indices, updates, by_rows=True)


@row(*(f"ResourceScatterNd{kind}" for kind in ("Update", "Add", "Sub", "Min", "Max")), any_kind=True)
def scatter_nd(c: Call, variable: Value, indices: Value, updates: Value) -> Result:
    return _scattered(c, variable, indices, updates, by_rows=False)


def _scattered(c: Call, variable: Value, indices: Value, updates: Value, *, by_rows: bool) -> Result:
    if not isinstance(indices, Node) or not isinstance(updates, Node):
        store(c, variable, Missing())
        return ()
    now = c.walk.read(expect(variable, Variable, "variable"))
    kind = c.op.removeprefix("ResourceScatter").removeprefix("Nd")
    places = ops.cast(indices, i64)
    if by_rows:
        updates = ops.broadcast_to(updates, (*indices.shape, *now.shape[1:]))
        places = ops.expand_dims(places, -1)
    if kind == "Sub":
        updates = ops.Neg()(updates)
    store(c, variable, ops.ScatterND(_SCATTER_KINDS[kind])(now, places, updates))
    return ()


@row("ResourceStridedSliceAssign", any_kind=True)
def strided_assign(c: Call, variable: Value, begin: Value, end: Value, strides: Value, value: Value) -> Result:
    parts = [v for v in (begin, end, strides, value) if isinstance(v, Node)]
    if len(parts) < 4:
        store(c, variable, Missing())
        return ()
    now = c.walk.read(expect(variable, Variable, "variable"))
    store(c, variable, strided_update(c, now, *parts))
    return ()


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
