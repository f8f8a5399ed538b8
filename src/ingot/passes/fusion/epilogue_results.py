"""Values by element of a stored result, and reductions of its rows, computed by the kernel that stores it.

    y = contraction{dot + bias};  z = group{gelu}(y)      ->   y, z = contraction{dot + bias, gelu}
    g = rows{norm backward};      h = group{convert}(g)   ->   g, h = rows{norm backward, convert}
    c = contraction{conv};        m, v = rows{moments of channels}(c)   ->   c, m, v = contraction{conv, moments}

In training y is stored for the backward pass, and g is read by residuals in float32 and by products in 16 bits: z and h
then cost a store, and no load and no launch. A batch norm's moments need no read of c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.dims import estimate, product
from ingot.ir.node import Graph, Node, topological
from ingot.ops import ArgReduce, Convolution, DotGeneral
from ingot.ops.core.base import is_contraction
from ingot.ops.group import centered_squares, elements_readers, is_used_by_element
from ingot.passes.fusion.groups import body_of, kind_of
from ingot.passes.fusion.merge import Merge, boxes_of, is_group, merge_groups, op_count, producer_of, reductions_of
from ingot.passes.fusion.policy import FusionPolicy

_PRODUCERS = ("contraction", "rows")


def join_epilogues(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph with pointwise groups, and then reductions of rows, merged into the groups whose results
    they read, and the image of each node."""
    if not policy.joins_epilogues:
        return graph, {}
    graph, joined = _join_readers(graph, "pointwise", policy)
    graph, images = _join_readers(graph, "rows", policy)
    return graph, images | {n: images.get(g, g) for n, g in joined.items()}


def _join_readers(graph: Graph, kind: str, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Merge the groups of a kind into the groups whose results they read."""
    users = graph.uses()
    readers: dict[Node, list[Node]] = {}  # by producer
    for n in graph.nodes():
        producers = (group for i in n.inputs if (group := _producer(i, n, users)) is not None)
        producer = next(producers, None) if is_group(n, kind) else None
        if producer is None:
            continue
        members = readers.get(producer, [])
        results = {producer, *producer.results}
        # operands of others are computed before the producer, so that they do not depend on it
        is_independent = all(i in results or i.is_leaf or i in producer.inputs for i in n.inputs)
        if is_independent and op_count((producer, *members, n)) <= policy.max_ops:
            readers.setdefault(producer, []).append(n)
    return merge_readers(graph, readers)


def merge_readers(
    graph: Graph, readers: Mapping[Node, Sequence[Node]], kind: str = ""
) -> tuple[Graph, dict[Node, Node]]:
    """Merge groups into others whose results or operands they read. readers: by the group that they join. kind: of the
    new groups; "": that of the group they join."""
    users, outputs = graph.uses(), set(graph.outputs)

    def merge(producer: Node, members: Sequence[Node]) -> Merge:
        stored = [r for r in producer.results if r in outputs or any(u not in members for u in users.get(r, ()))]
        results = (*stored, *(r for m in members for r in m.results))
        return Merge((producer, *members), results, kind or kind_of(producer), producer.loc)

    return merge_groups(graph, (merge(producer, members) for producer, members in readers.items()))


def _producer(value: Node, reader: Node, users: Mapping[Node, Sequence[Node]]) -> Node | None:
    """The group whose result `value` is, if `reader` is pointwise work on elements of it or reduces its rows, and
    neither is part of another value's memory."""
    group = producer_of(value)
    if not is_group(group, *_PRODUCERS):
        return None
    if any(u.op.holds_operands for x in (*group.results, *reader.results) for u in users.get(x, ())):
        return None
    if is_group(reader, "rows"):
        row_readers = [u for u in users[value] if is_group(u, "rows")]
        joins_all = all(_reads_no_other_image(group, value, u) for u in row_readers)
        return group if joins_all and _reduces_rows(group, value, reader) else None
    if len(reader.types) > 1:
        return None
    body = body_of(reader)
    # products wait for such an epilogue: a gate's gradient there takes longer than in a kernel of its own
    reads_others = any(_is_as_large(i, value) and i not in group.results for i in reader.inputs)
    if is_group(group, "contraction") and reads_others and any(n.op.costly for n in body.nodes()):
        return None
    for p, i in zip(body.inputs, reader.inputs, strict=True):
        if i is value or i in group.results:
            nodes = elements_readers(body, p)
            if nodes is None or body.outputs[0] not in nodes:
                return None
    return group


def _reads_no_other_image(producer: Node, value: Node, reader: Node) -> bool:
    """Whether all operands of `reader` as large as `value` are results of the producer. The epilogue of a product waits
    for what it loads: the sums of a batch norm's gradient, which read its operand, take longer there than apart."""
    return all(not _is_as_large(i, value) or i in (value, *producer.results) for i in reader.inputs)


def _is_as_large(operand: Node, value: Node) -> bool:
    """Whether an operand may be an image of the size of `value`: of a larger one, a part may be read."""
    return operand.type.size == value.type.size or estimate(operand.type.size) > estimate(value.type.size)


def _reduces_rows(producer: Node, value: Node, reader: Node) -> bool:
    """Whether all results of `reader` are reductions over the rows of `value`, a result of the contraction `producer`,
    with what is computed of these, and a single kernel of tiles can have the reductions: none depends on another, but
    for the center of a sum of squares. Epilogues of costly ops have none: they lack the registers (a gradient of GELU
    with the sums of its rows spills 1.4 kB a thread)."""
    anchor = _anchor_of_channels(producer)
    body = body_of(reader)
    reductions, boxes = reductions_of(reader), boxes_of(reader)
    if anchor is None or len(boxes) != 1:
        return False
    ((box, reduced),) = boxes
    sized = [d for d, n in enumerate(box) if n != 1]
    if product(box) != product(anchor.shape) or len(sized) < 2 or [d for d in sized if d not in reduced] != sized[-1:]:
        return False
    columns = box[sized[-1]]
    if columns != anchor.shape[-1] or any(n.type.size != columns for n in body.outputs):
        return False
    own = body_of(producer)
    if any(n.op.costly for n in own.nodes()):
        return False
    aligned = elements_readers(own, anchor)
    if aligned is None or own.outputs[producer.results.index(value)] not in aligned:
        return False
    for r in reductions:
        squares = centered_squares(r)
        source = r.inputs[0] if squares is None else squares[0]
        if isinstance(r.op, ArgReduce) or any(n in reductions for n in topological([source])):
            return False
    return all(
        is_used_by_element(body, p)
        for p, i in zip(body.inputs, reader.inputs, strict=True)
        if i is value or i in producer.results
    )


def _anchor_of_channels(producer: Node) -> Node | None:
    """The contraction of a group whose result has its rows in front of its columns, each in one tile of the kernel."""
    anchors = [n for n in body_of(producer).nodes() if is_contraction(n)]
    if len(anchors) != 1 or not isinstance(anchors[0].shape[-1], int) or not anchors[0].dtype.is_float:
        return None
    (anchor,) = anchors
    if isinstance(anchor.op, Convolution):
        op = anchor.op
        ends_in_channels = op.out_layout[0] == "N" and op.out_layout[-1] == "C"
        return anchor if ends_in_channels and op.feature_groups == op.batch_groups == 1 else None
    return anchor if isinstance(anchor.op, DotGeneral) and not anchor.op.batch[0] and anchor.type.rank == 2 else None


__all__ = ["join_epilogues", "merge_readers"]
