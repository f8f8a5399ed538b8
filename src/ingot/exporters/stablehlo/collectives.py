"""StableHLO for collectives."""

from __future__ import annotations

from ingot import ops
from ingot.exporters.stablehlo.emitter import Emitter, row, type_of
from ingot.exporters.stablehlo.folds import combiner
from ingot.exporters.stablehlo.rows import pairs
from ingot.frontends.stablehlo.syntax import Attribute, Dense, Number
from ingot.ir.node import Node


def _groups(op: ops.Collective) -> dict[str, Attribute]:
    body = ", ".join(f"[{', '.join(map(str, group))}]" for group in op.groups)
    return {"replica_groups": Dense(f"[{body}]", f"tensor<{len(op.groups)}x{op.size}xi64>")}


@row(ops.AllReduce, ops.ReduceScatter)
def reduced(e: Emitter, n: Node, xs: list[str]) -> str:
    op = n.op
    assert isinstance(op, ops.AllReduce | ops.ReduceScatter)
    attributes = _groups(op)
    if isinstance(op, ops.ReduceScatter):
        attributes["scatter_dimension"] = Number(str(op.axis), "i64")
    (y,) = e.add(op.name, xs, [type_of(n)], attributes, [combiner(e, op.kind, n.dtype)])
    return y


@row(ops.AllGather)
def all_gather(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.AllGather)
    return e.one("all_gather", xs, type_of(n), {**_groups(n.op), "all_gather_dim": Number(str(n.op.axis), "i64")})


@row(ops.AllToAll)
def all_to_all(e: Emitter, n: Node, xs: list[str]) -> str:
    op = n.op
    assert isinstance(op, ops.AllToAll)
    numbers = {"split_dimension": op.split_axis, "concat_dimension": op.concat_axis, "split_count": op.size}
    return e.one(
        "all_to_all", xs, type_of(n), {**_groups(op), **{k: Number(str(v), "i64") for k, v in numbers.items()}}
    )


@row(ops.Permute)
def permuted(e: Emitter, n: Node, xs: list[str]) -> str:
    op = n.op
    assert isinstance(op, ops.Permute)
    sent = [(source, group[(i + op.shift) % op.size]) for group in op.groups for i, source in enumerate(group)]
    return e.one("collective_permute", xs, type_of(n), {"source_target_pairs": pairs(sent)})
