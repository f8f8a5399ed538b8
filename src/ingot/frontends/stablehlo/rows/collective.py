"""Collectives, ids and shardings. On a single device, collectives are identities."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo import regions
from ingot.frontends.stablehlo.shardings import annotated, manual_shardings
from ingot.frontends.stablehlo.syntax import Dense
from ingot.frontends.stablehlo.types import tensor_type
from ingot.frontends.stablehlo.values import AnyValue, Call, Table
from ingot.ir.dims import DimLike, exact_quotient
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType, u32
from ingot.ops.core.collective import REDUCTIONS, Groups

row = Table()
_MAX_DEVICES = 1 << 16


def _groups(c: Call) -> Groups | None:
    """The groups of devices; None for a single device."""
    if not c.has("replica_groups"):
        return None
    ids = c.ints("replica_groups")
    if all(i in (0, -1) for i in ids):
        return None
    value = c.attributes["replica_groups"]
    shape = tensor_type(value.type).shape if isinstance(value, Dense) else ()
    if len(shape) != 2 or not shape[1] or len(ids) % int(shape[1]) or min(ids) < 0 or len(ids) > _MAX_DEVICES:
        raise Unsupported(f"replica_groups = {list(ids)[:20]}: groups of one size")
    size = int(shape[1])
    return tuple(tuple(ids[i : i + size]) for i in range(0, len(ids), size))


def _tensors(c: Call, xs: tuple[AnyValue, ...]) -> list[Node]:
    """The operands of a collective of several devices."""
    if not all(isinstance(x, Node) for x in xs):
        raise Unsupported("complex numbers or levels of several devices")
    return [x for x in xs if isinstance(x, Node)]


@row("all_reduce", "reduce_scatter")
def reduced(c: Call, *xs: AnyValue) -> tuple[AnyValue, ...]:
    groups = _groups(c)
    if groups is None:
        return xs
    nodes = _tensors(c, xs)
    zeros = [ops.scalar(0, x.dtype) for x in nodes[:1]]
    kind = regions.region(c, 0, (*zeros, *zeros)).combiner()
    if kind not in REDUCTIONS:
        raise Unsupported("a collective that combines otherwise than by sum, product, maximum or minimum")
    if c.op.name == "stablehlo.all_reduce":
        return tuple(ops.AllReduce(groups, kind)(x, loc=c.loc) for x in nodes)
    axis = c.int("scatter_dimension")
    return tuple(ops.ReduceScatter(groups, kind, axis)(x, loc=c.loc) for x in nodes)


@row("all_gather", "all_to_all")
def all_gather_or_all_to_all(c: Call, *xs: AnyValue) -> tuple[AnyValue, ...]:
    groups, is_gather = _groups(c), c.op.name == "stablehlo.all_gather"
    count = 1 if groups is None else len(groups[0])
    if not is_gather and c.int("split_count", count) != count:
        raise Unsupported(f"split_count = {c.int('split_count')} for groups of {count} devices")
    if groups is None:
        return xs
    if is_gather:
        op: ops.Collective = ops.AllGather(groups, c.int("all_gather_dim"))
    else:
        op = ops.AllToAll(groups, c.int("split_dimension"), c.int("concat_dimension"))
    return tuple(op(x, loc=c.loc) for x in _tensors(c, xs))


@row("collective_permute")
def permuted(c: Call, x: AnyValue) -> AnyValue:
    ids = c.ints("source_target_pairs")
    targets = dict(zip(ids[::2], ids[1::2], strict=False))
    if not targets:
        raise Unsupported("a device that nothing is sent to")
    if targets == {0: 0}:
        return x
    (node,) = _tensors(c, (x,))
    return ops.Permute(_rings(targets))(node, loc=c.loc)


def _rings(targets: Mapping[int, int]) -> Groups:
    """Groups in which each device sends to the next one. Raises Unsupported for other pairs."""
    if sorted(targets) != sorted(targets.values()):
        raise Unsupported("a device that nothing is sent to")
    rings: list[tuple[int, ...]] = []
    remaining = dict(targets)
    while remaining:
        ring = [min(remaining)]
        while (following := remaining.pop(ring[-1])) != ring[0]:
            ring.append(following)
        rings.append(tuple(ring))
    if len({len(ring) for ring in rings}) != 1:
        raise Unsupported(f"rings of several lengths: {rings[:4]}")
    return tuple(rings)


@row("collective_broadcast", "cross-replica-sum")
def single_device_value(c: Call, *xs: AnyValue) -> tuple[AnyValue, ...]:
    if _groups(c) is not None:
        raise Unsupported(f"more than one device: replica_groups = {list(c.ints('replica_groups'))[:20]}")
    return xs


@row("partition_id", "replica_id")
def identity(c: Call) -> Node:
    rank = c.importer.rank if c.op.name == "stablehlo.partition_id" else None
    return ops.scalar(0, c.dtype) if rank is None else ops.cast(rank, c.dtype)


def _part(x: Node, axes: ops.Axes, counts: Mapping[str, int]) -> tuple[DimLike, ...]:
    """The shape of a device's part."""
    sizes = [exact_quotient(d, math.prod(counts[a] for a in split)) for d, split in zip(x.shape, axes, strict=True)]
    parts = tuple(d for d in sizes if d is not None)
    if len(parts) != len(sizes):
        raise Unsupported(f"parts of {x.type} that are not equal")
    return parts


@row("sdy.manual_computation")
def per_device(c: Call, *xs: AnyValue) -> tuple[AnyValue, ...]:
    """JAX's shard_map: the region applied to parts of the operands."""
    nodes = _tensors(c, xs)
    mesh, in_axes = manual_shardings(c, "in_shardings")
    _, out_axes = manual_shardings(c, "out_shardings")
    manual = re.findall(r'"([^"]+)"', getattr(c.attributes.get("manual_axes"), "text", ""))
    if automatic_axes := [name for name, size in mesh if size > 1 and name not in manual]:
        raise Unsupported(f"shard_map over some of the mesh's axes, without {', '.join(automatic_axes)}")
    rank, captures = Input("rank", TensorType(u32, ()))(), dict[Node, Node]()
    parts = [
        Input(name, x.type.with_shape(_part(x, axes, dict(mesh))))()
        for (name, _), x, axes in zip(c.regions[0].arguments, nodes, in_axes, strict=True)
    ]
    outer, c.importer.rank = c.importer.rank, rank
    try:
        results = c.importer.block(c.regions[0], parts, c.scope, captures)
    finally:
        c.importer.rank = outer
    body = regions.graph((rank, *parts), _tensors(c, results), captures)
    replicated = tuple(tuple(() for _ in n.shape) for n in captures)
    op = ops.PerDevice(mesh, (*in_axes, *replicated), out_axes, body)
    return op(*nodes, *captures, loc=c.loc).results


@row("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
def sharded(c: Call, x: AnyValue) -> AnyValue:
    return annotated(x, c.attributes)
