"""Collectives, ids and shardings on one device: what all devices have together is what this one has."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.shardings import annotated
from ingot.frontends.stablehlo.values import AnyValue, Call, Table
from ingot.ir.node import Node

row = Table()


def _alone(c: Call) -> None:
    """Raise Unsupported where groups have more than one device."""
    for name in ("replica_groups", "source_target_pairs"):
        value = c.attributes.get(name)
        if value is None:
            continue
        ids = c.ints(name)
        if any(i not in (0, -1) for i in ids):
            raise Unsupported(f"more than one device: {name} = {list(ids)}")


@row("all_reduce", "all_gather", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter")
def collective(c: Call, *xs: AnyValue) -> tuple[AnyValue, ...]:
    _alone(c)
    if c.op.name == "stablehlo.collective_permute" and not c.ints("source_target_pairs"):
        raise Unsupported("a device that nothing is sent to")
    if c.op.name == "stablehlo.all_to_all" and c.int("split_count", 1) != 1:
        raise Unsupported("more than one device")
    return xs


@row("cross-replica-sum")
def cross_replica_sum(c: Call, x: AnyValue) -> AnyValue:
    _alone(c)
    return x


@row("partition_id", "replica_id")
def identity(c: Call) -> Node:
    return ops.scalar(0, c.dtype)


@row("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
def sharded(c: Call, x: AnyValue) -> AnyValue:
    return annotated(x, c.attributes)
