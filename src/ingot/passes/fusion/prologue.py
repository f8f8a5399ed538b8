"""Prologues: the operand of an anchor that its group computes itself.

    r = relu(x * scale + shift); dot(r, w)   ->   for a block of rows: scratch = relu(x * scale + shift)
                                                                       scratch . w, all columns

The rows of the first operand are not stored: this saves a write, a read and a kernel. In return each block of columns
recomputes them, and each block of rows streams the second operand again.

    e = relu(conv1x1(x)); depthwise(pad(e))   ->   for a strip of rows, a panel of channels: scratch = relu(conv1x1(x))
                                                                                             depthwise(scratch)

The expanded image is not stored; the rows that two strips share are computed twice.

    h = gelu(dot(x, v)); dot(h, w)   ->   for a block of rows: scratch = gelu(x . v)
                                                                scratch . w

x may be a norm of rows, which are then computed in scratch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from ingot import ops
from ingot.ir.dims import DimLike, estimate, is_static, product
from ingot.ir.node import Graph, Node
from ingot.ir.types import Shape, f32
from ingot.ops.core.base import Category, category
from ingot.ops.views import base_of, strided_base
from ingot.passes.fusion.channel_images import ChannelImages
from ingot.passes.fusion.groups import widens
from ingot.passes.fusion.policy import FusionPolicy


def panel_operand(anchor: Node, policy: FusionPolicy) -> Node | None:
    """The operand that `anchor` reads row by row, or each element once, and that it is worth computing itself; None:
    none."""
    if isinstance(anchor.op, ops.ReduceWindow):
        return anchor.inputs[0] if _windows_are_disjoint(anchor.op) else None
    loops = _loops(anchor)
    if loops is None or anchor.inputs[0] is anchor.inputs[1]:
        return None
    a, b = anchor.inputs
    if isinstance(b.op, ops.WEIGHT_FORMS):  # blocks are an axis of the reduction, or rows are turned
        return None
    rows, columns, k = loops
    long_columns = [d for d in columns if d != 1]
    if not isinstance(k, int) or k == 0 or len(long_columns) > 1:
        return None
    row_bytes, count = k * a.dtype.nbytes, estimate(product(rows))
    rows_fit = count * row_bytes <= policy.max_block_bytes
    # otherwise the second operand is streamed for each block of rows: from cache, if it is no larger than a few
    weights_fit = estimate(product(long_columns)) * k * b.dtype.nbytes <= policy.max_weights_bytes
    block_fits = row_bytes * policy.min_block_rows <= policy.max_block_bytes
    return a if count >= policy.min_shared_rows and block_fits and (rows_fit or weights_fit) else None


def _windows_are_disjoint(op: ops.ReduceWindow) -> bool:
    """Whether no two windows share an element."""
    spans = ((window - 1) * dilation + 1 for window, dilation in zip(op.window, op.dilation, strict=True))
    are_disjoint = all(span <= stride for span, stride in zip(spans, op.strides, strict=True))
    return are_disjoint and all(d == 1 for d in op.base_dilation)


def reason_stored(anchor: Node, policy: FusionPolicy) -> str:
    """Explain why `anchor` reads its first operand from memory instead of computing its rows."""
    loops, name = _loops(anchor), anchor.op.name
    if loops is None:
        return f"{name} reads it as memory, each element many times or in another order"
    rows, columns, k = loops
    weights_bytes = estimate(product(columns)) * estimate(k) * anchor.inputs[1].dtype.nbytes
    if weights_bytes > policy.max_weights_bytes:
        return f"{name} would stream its weights, {weights_bytes / 1e6:.1f} MB, for each block of rows that it computes"
    if estimate(product(rows)) * estimate(k) * anchor.inputs[0].dtype.nbytes <= policy.min_hidden_bytes:
        return f"{name} finds it in the caches: it is too small to be worth computing there"
    ways = "pointwise ops, or another contraction with the norm before it"
    return f"{name} computes rows only from {ways}, and if nothing else needs them"


def _loops(anchor: Node) -> tuple[Shape, Shape, DimLike] | None:
    """(rows, columns, reduction) of a contraction whose rows do not overlap and are contiguous along its reduction."""
    op = anchor.op
    if isinstance(op, ops.DotGeneral):
        a, b = anchor.inputs
        if op.contract[0] != (a.type.rank - 1,):
            return None
        free_a, free_b = op.free(a.type.rank, b.type.rank)
        return tuple(a.shape[d] for d in free_a), tuple(b.shape[d] for d in free_b), a.shape[-1]
    if not isinstance(op, ops.Convolution) or op.lhs_layout[-1] != "C" or op.feature_groups * op.batch_groups != 1:
        return None
    w = dict(zip(op.rhs_layout, anchor.inputs[1].shape, strict=True))
    if any(w[c] != 1 for c in op.spatial):
        return None
    rows = tuple(d for c, d in zip(op.out_layout, anchor.shape, strict=True) if c != "C")
    return rows, (w["O"],), w["I"]


def prologue_members(
    anchor: Node, users: Mapping[Node, list[Node]], graph: Graph, tails: Collection[Node], policy: FusionPolicy
) -> frozenset[Node]:
    """The nodes that compute the input of `anchor` from a contraction's rows, if it is large and nothing else needs it;
    else none.

    Of a depthwise convolution: zero padding, pointwise ops, and a 1x1 convolution. Of a contraction that reads row by
    row: pointwise ops, another such contraction, and the norm of the rows that this one reads. Weights of both are
    constants that a core streams from its caches.
    """
    x = anchor.inputs[0]
    if _is_depthwise(anchor):
        image = x.inputs[0] if isinstance(x.op, ops.Pad) else x
        if not _static_image(x) or (x is not image and not _pads_image(x)):
            return frozenset()
        is_large = estimate(product(image.shape[1:])) * image.dtype.nbytes > policy.min_image_bytes
        return _members_between(anchor, image, _is_expansion, users, graph) if is_large else frozenset()
    is_base = partial(_is_row_by_row, policy=policy)
    if not is_base(anchor) or x is anchor.inputs[1]:
        return frozenset()
    is_large = estimate(x.type.size) * x.dtype.nbytes > policy.min_hidden_bytes
    members = _members_between(anchor, x, is_base, users, graph) if is_large else frozenset[Node]()
    first = next(filter(is_base, members), None)
    if first is None:
        return members
    x = first.inputs[0]
    is_long = estimate(x.shape[-1]) > estimate(first.type.size) // estimate(product(x.shape[:-1]))
    return members if is_long else members | _norm_members([first], users, graph, tails, policy)


def is_single_row(anchor: Node, policy: FusionPolicy) -> bool:
    """Whether `anchor` is the product of a single row of floats, short enough for each program to read all of it: it
    contracts all dimensions of its first operand but those of size 1, in order."""
    op = anchor.op
    if not isinstance(op, ops.DotGeneral) or op.batch[0] or not anchor.inputs[0].dtype.is_float:
        return False
    x, contract = anchor.inputs[0], op.contract[0]
    contracts_all = all(x.shape[d] == 1 or d in contract for d in range(x.type.rank)) and list(contract) == sorted(
        contract
    )
    return contracts_all and isinstance(x.type.size, int) and 0 < x.type.size <= policy.max_single_row


def sibling_products(anchor: Node, users: Mapping[Node, list[Node]], graph: Graph, policy: FusionPolicy) -> list[Node]:
    """Other products of the single row of `anchor`, of the same types and layouts: one kernel may compute several."""
    if not is_single_row(anchor, policy):
        return []
    readers = users.get(anchor.inputs[0], ())
    return [u for u in readers if u is not anchor and u not in graph.outputs and _is_sibling(anchor, u)]


def _is_sibling(anchor: Node, other: Node) -> bool:
    if other.op != anchor.op or other.type != anchor.type or other.inputs[0] is not anchor.inputs[0]:
        return False
    (b, c) = anchor.inputs[1], other.inputs[1]
    if b.type != c.type or (b.constant is None) != (c.constant is None):
        return False
    if isinstance(b.op, ops.WEIGHT_FORMS) or isinstance(c.op, ops.WEIGHT_FORMS):
        return type(b.op) is type(c.op) and [i.type for i in b.inputs] == [i.type for i in c.inputs]
    views = strided_base(b, {}), strided_base(c, {})
    return None not in views and len({layout for _, layout in filter(None, views)}) == 1


def norm_of_row(
    anchor: Node, users: Mapping[Node, list[Node]], graph: Graph, tails: Collection[Node], policy: FusionPolicy
) -> frozenset[Node]:
    """The nodes that compute the single row of `anchor`, and of other products, from sums over it, as a norm does. A
    program that computes few columns reads the row once more for that: little compared to its columns."""
    x = anchor.inputs[0]
    base = base_of(x, (ops.Reshape,))
    is_plain_row = not isinstance(base.op, ops.Transpose) and base.shape[-1:] == (base.type.size,)
    anchors = [u for u in users[x] if u.inputs[0] is x and x not in u.inputs[1:] and is_single_row(u, policy)]
    if not is_plain_row or len(anchors) > policy.max_copies:
        return frozenset()
    return _norm_members(anchors, users, graph, tails, policy)


def _members_between(
    anchor: Node, start: Node, is_base: Callable[[Node], bool], users: Mapping[Node, list[Node]], graph: Graph
) -> frozenset[Node]:
    """The ops from one contraction to the first operand of `anchor`, inclusive, if nothing else needs them."""
    x = anchor.inputs[0]
    members, bases = {anchor} if start is x else {anchor, x}, set[Node]()
    pending = [start]
    while pending:
        n = pending.pop()
        if n in members:
            continue
        if n in graph.outputs or n.shape != start.shape or n.dtype != f32 or len(members) > 16:
            return frozenset()
        members.add(n)
        if is_base(n):
            bases.add(n)
        elif category(n.op) is Category.ELEMENTWISE:
            pending += [i for i in n.inputs if not _is_broadcast(i)]
        else:
            return frozenset()
    is_only_use = all(u in members for n in members if n is not anchor for u in users[n])
    return frozenset(members - {anchor}) if len(bases) == 1 and is_only_use else frozenset()


def _norm_members(
    anchors: Sequence[Node],
    users: Mapping[Node, list[Node]],
    graph: Graph,
    tails: Collection[Node],
    policy: FusionPolicy,
) -> frozenset[Node]:
    """The nodes that compute the rows of `anchors` from reductions along them, as norms do, if nothing else needs them;
    else none.

    They are pointwise ops on rows, reductions to one value per row, and pointwise ops on such values. Values that other
    nodes need, and `tails`, which belong to the preceding contraction, are read from memory.
    """
    views, base = list[Node](), anchors[0].inputs[0]
    while _preserves_rows(base):
        views.append(base)
        base = base.inputs[0]
    box = base.shape
    count = product(box[:-1])
    if not box or estimate(box[-1]) <= 1:
        return frozenset()
    members = set[Node]()

    def is_private(n: Node) -> bool:
        return n not in graph.outputs and members.union(anchors).issuperset(users[n])

    def belongs(n: Node) -> bool:
        if n in tails or not n.inputs:
            return False
        if isinstance(n.op, ops.Reduce):
            return n.inputs[0].shape == box and n.op.dims == (len(box) - 1,)
        if isinstance(n.op, ops.BroadcastInDim | ops.Reshape):
            return product(n.inputs[0].shape) == count and n.inputs[0].type.rank > 0
        return category(n.op) is Category.ELEMENTWISE and (n.shape == box or product(n.shape) == count)

    for view in views:
        if not is_private(view):
            return frozenset()
        members.add(view)
    pending = [base]
    while pending and len(members) <= policy.max_row_ops:  # a node joins behind the last of its users
        n = pending.pop()
        if n not in members and belongs(n) and is_private(n):
            members.add(n)
            pending += n.inputs
    has_norm = base in members and any(isinstance(n.op, ops.Reduce) for n in members)
    return frozenset(members) if has_norm and len(members) <= policy.max_row_ops else frozenset()


def _preserves_rows(n: Node) -> bool:
    """Whether `n` is a view that reorders or regroups rows without changing them, or splits a single row."""
    if isinstance(n.op, ops.Transpose):
        return n.op.permutation[-1] == n.type.rank - 1
    return isinstance(n.op, ops.Reshape) and n.inputs[0].shape[-1:] in (n.shape[-1:], (n.type.size,))


def _is_row_by_row(n: Node, policy: FusionPolicy) -> bool:
    """Whether row i of the result is row i of the first operand times a constant that fits a core's caches."""
    loops, op = _loops(n), n.op
    if loops is None or n.dtype != f32 or n.inputs[1].constant is None:
        return False
    if isinstance(op, ops.DotGeneral):
        is_plain = not op.batch[0] and n.inputs[1].type.rank == 2
    else:
        assert isinstance(op, ops.Convolution)
        is_plain = op.out_layout[-1] == "C" and not any(map(any, op.padding))
        is_plain = is_plain and all(s == 1 for s in (*op.strides, *op.lhs_dilation))
    _, columns, k = loops
    weights_bytes = estimate(product(columns)) * estimate(k) * n.inputs[1].dtype.nbytes
    return (
        is_plain and isinstance(k, int) and n.inputs[0].dtype == f32 and 0 < weights_bytes <= policy.max_weights_bytes
    )


def _is_depthwise(anchor: Node) -> bool:
    op = anchor.op
    if not ops.is_depthwise(anchor) or not isinstance(op, ops.Convolution) or op.lhs_layout != "NHWC":
        return False
    is_unpadded = not any(map(any, op.padding)) and all(d == 1 for d in op.lhs_dilation)
    return is_unpadded and anchor.inputs[1].constant is not None and anchor.dtype == f32


def _static_image(x: Node) -> bool:
    return is_static(x.shape[1:])


def _pads_image(pad: Node) -> bool:
    """Whether `pad` adds rows and columns of zeros around each image."""
    op, fill = pad.op, pad.inputs[1]
    assert isinstance(op, ops.Pad)
    zero = fill.constant is not None and not any(fill.constant.value.tobytes())
    ends = [op.low[0], op.high[0], op.low[3], op.high[3]]
    is_static = all(isinstance(d, int) and d >= 0 for i in (1, 2) for d in (op.low[i], op.high[i]))
    return zero and is_static and not any(op.interior) and all(d == 0 for d in ends)


def _is_expansion(n: Node) -> bool:
    loops, op = _loops(n), n.op
    if loops is None or not isinstance(op, ops.Convolution) or op.lhs_layout != "NHWC" or op.out_layout != "NHWC":
        return False
    _, _, k = loops
    is_plain = (
        all(s == 1 for s in op.strides) and not any(map(any, op.padding)) and all(d == 1 for d in op.lhs_dilation)
    )
    images = n.inputs[0].dtype == f32 and n.shape[1] != 1 and n.shape[2] != 1
    return is_plain and images and isinstance(k, int) and n.inputs[1].constant is not None


def _is_broadcast(node: Node) -> bool:
    """Whether `node` is a constant or a broadcast."""
    return node.constant is not None or isinstance(node.op, ops.BroadcastInDim)


def loaded_operand(anchor: Node, operand: Node, channels: ChannelImages, policy: FusionPolicy) -> Node:
    """The stored value that an anchor reads for `operand`: an image without its border; of a pool, 16-bit values that
    it widens as it loads them."""
    is_widened = policy.widens_values and isinstance(anchor.op, ops.ReduceWindow) and widens(operand)
    return operand.inputs[0] if is_widened else channels.unpadded.get(operand, operand)
