"""Combine small all-reduces: an exchange takes microseconds however few bytes it carries.

    all_reduce(a[3]), all_reduce(b[2, 2])   ->   c = all_reduce(concat(a, flat b)): c[0:3], c[3:7] as [2, 2]

Only sums on whose results no other collective depends are combined, such as those of gradients, so that none waits for
another. Operands are computed directly into the buffer of the concat, and results are views of the sum.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import is_static
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import replace_nodes

MAX_BYTES = 1 << 20  # of a sum to be combined
BUCKET_BYTES = 4 << 20  # of one exchange; later work overlaps with it


def combine_sums(graph: Graph) -> Graph:
    buckets: dict[tuple[object, ...], list[list[Node]]] = {}
    sizes: dict[tuple[object, ...], int] = {}
    for n in _last_sums(graph):
        assert isinstance(n.op, ops.AllReduce)
        key, nbytes = (n.op, n.dtype), n.type.nbytes
        assert isinstance(nbytes, int)
        if key not in buckets or sizes[key] + nbytes > BUCKET_BYTES:
            buckets.setdefault(key, []).append([])
            sizes[key] = 0
        buckets[key][-1].append(n)
        sizes[key] += nbytes
    images: dict[Node, Node] = {}
    for nodes in (bucket for buckets_of_key in buckets.values() for bucket in buckets_of_key if len(bucket) > 1):
        images |= _combine(nodes)
    return replace_nodes(graph, images)


def _last_sums(graph: Graph) -> list[Node]:
    """Small sums of static size on whose results no other collective depends."""
    feeds_collective: set[Node] = set()  # nodes on which a collective depends
    sums: list[Node] = []
    for n in reversed(graph.nodes()):
        is_collective = isinstance(n.op, ops.Collective)
        if isinstance(n.op, ops.AllReduce) and n not in feeds_collective and is_static(n.shape):
            nbytes = n.type.nbytes
            sums += [n] if isinstance(nbytes, int) and 0 < nbytes <= MAX_BYTES else []
        if is_collective or n in feeds_collective:
            feeds_collective.update(n.inputs)
    return sums[::-1]


def _combine(nodes: list[Node]) -> dict[Node, Node]:
    operands = [n.inputs[0] for n in nodes]
    combined = nodes[0].op(ops.concat([ops.reshape(x, (x.type.size,)) for x in operands], 0), loc=nodes[0].loc)
    images: dict[Node, Node] = {}
    start = 0
    for n in nodes:
        size = n.type.size
        assert isinstance(size, int)
        images[n] = ops.reshape(ops.slice_axis(combined, 0, start, start + size), n.shape)
        start += size
    return images
