"""Prologues: the operand of an anchor that its own group may compute.

    r = relu(x * scale + shift); dot(r, w)   ->   for a block of rows: scratch = relu(x * scale + shift)
                                                                       scratch . w, all columns

The rows of the first operand never reach memory: they are written and read once less, and there is one kernel less.
In return each block of columns computes them again, and each block of rows streams the second operand again.

    e = relu(conv1x1(x)); depthwise(pad(e))   ->   for a strip of rows, a panel of channels: scratch = relu(conv1x1(x))
                                                                                             depthwise(scratch)

The widened image is not stored; the rows that two strips share are computed twice.

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
from ingot.ops.views import base_of
from ingot.passes.fusion.policy import FusionPolicy


def panel_operand(anchor: Node, policy: FusionPolicy) -> Node | None:
    """The operand that `anchor` reads row by row, or each element once, and could compute so itself, where that pays;
    None: none."""
    if isinstance(anchor.op, ops.ReduceWindow):
        return anchor.inputs[0] if _reads_once(anchor.op) else None
    loops = _loops(anchor)
    if loops is None or anchor.inputs[0] is anchor.inputs[1]:
        return None
    a, b = anchor.inputs
    if isinstance(b.op, ops.WEIGHT_FORMS):  # blocks are an axis of the reduction, or rows are turned
        return None
    rows, columns, k = loops
    sized = [d for d in columns if d != 1]
    if not isinstance(k, int) or k == 0 or len(sized) > 1:
        return None
    row, count = k * a.dtype.nbytes, estimate(product(rows))
    small = count * row <= policy.block_bytes
    # otherwise the second operand is streamed for each block of rows: from cache, if it is no larger than a few
    again = estimate(product(sized)) * k * b.dtype.nbytes <= policy.weights_bytes
    fits = row * policy.block_rows <= policy.block_bytes
    return a if count >= policy.shared_rows and fits and (small or again) else None


def _reads_once(op: ops.ReduceWindow) -> bool:
    """Whether no two windows share an element."""
    spans = ((window - 1) * dilation + 1 for window, dilation in zip(op.window, op.dilation, strict=True))
    apart = all(span <= stride for span, stride in zip(spans, op.strides, strict=True))
    return apart and all(d == 1 for d in op.base_dilation)


def why_stored(anchor: Node, policy: FusionPolicy) -> str:
    """For people: why `anchor` reads its first operand from memory and does not compute its rows."""
    loops, name = _loops(anchor), anchor.op.name
    if loops is None:
        return f"{name} reads it as memory, each element many times or in another order"
    rows, columns, k = loops
    weights = estimate(product(columns)) * estimate(k) * anchor.inputs[1].dtype.nbytes
    if weights > policy.weights_bytes:
        return f"{name} would stream its weights, {weights / 1e6:.1f} MB, for each block of rows that it computes"
    if estimate(product(rows)) * estimate(k) * anchor.inputs[0].dtype.nbytes <= policy.hidden_bytes:
        return f"{name} finds it in the caches: it is too small to be worth computing there"
    ways = "pointwise ops, or another contraction with the norm before it"
    return f"{name} computes rows only from {ways}, and if nothing else needs them"


def _loops(anchor: Node) -> tuple[Shape, Shape, DimLike] | None:
    """(rows, columns, reduction) of a contraction whose rows do not overlap and lie along its reduction."""
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


def made_within(
    anchor: Node, users: Mapping[Node, list[Node]], graph: Graph, tails: Collection[Node], policy: FusionPolicy
) -> frozenset[Node]:
    """What computes the input of `anchor` from a contraction's rows, where nothing else needs it and it is large.
    Empty: nothing does.

    Of a depthwise convolution: zero padding, pointwise ops, and a 1x1 convolution. Of a contraction that reads row by
    row: pointwise ops, another such contraction, and the norm of the rows that this one reads. Weights of both are
    constants that a core streams from its caches.
    """
    x = anchor.inputs[0]
    if _is_depthwise(anchor):
        made = x.inputs[0] if isinstance(x.op, ops.Pad) else x
        if not _static_image(x) or (x is not made and not _pads_image(x)):
            return frozenset()
        large = estimate(product(made.shape[1:])) * made.dtype.nbytes > policy.image_bytes
        return _between(anchor, made, _is_expansion, users, graph) if large else frozenset()
    is_base = partial(_is_row_by_row, policy=policy)
    if not is_base(anchor) or x is anchor.inputs[1]:
        return frozenset()
    large = estimate(x.type.size) * x.dtype.nbytes > policy.hidden_bytes
    members = _between(anchor, x, is_base, users, graph) if large else frozenset[Node]()
    first = next(filter(is_base, members), None)
    if first is None:
        return members
    x = first.inputs[0]
    long = estimate(x.shape[-1]) > estimate(first.type.size) // estimate(product(x.shape[:-1]))
    return members if long else members | _normed([first], users, graph, tails, policy)


def is_single_row(anchor: Node, policy: FusionPolicy) -> bool:
    """Whether `anchor` is the product of one row of floats, alone, short enough for each program to see all of it: all
    dimensions of its first operand but those of size 1 are multiplied away, in their order."""
    op = anchor.op
    if not isinstance(op, ops.DotGeneral) or op.batch[0] or not anchor.inputs[0].dtype.is_float:
        return False
    x, contract = anchor.inputs[0], op.contract[0]
    whole = all(x.shape[d] == 1 or d in contract for d in range(x.type.rank)) and list(contract) == sorted(contract)
    return whole and isinstance(x.type.size, int) and 0 < x.type.size <= policy.single_row


def twins_of(anchor: Node, users: Mapping[Node, list[Node]], graph: Graph, policy: FusionPolicy) -> list[Node]:
    """Products of the same single row as `anchor`, and alike in all but values: one kernel may have several."""
    if not is_single_row(anchor, policy):
        return []
    readers = users.get(anchor.inputs[0], ())
    return [u for u in readers if u is not anchor and u not in graph.outputs and _is_twin(anchor, u)]


def _is_twin(anchor: Node, other: Node) -> bool:
    if other.op != anchor.op or other.type != anchor.type or other.inputs[0] is not anchor.inputs[0]:
        return False
    (b, c) = anchor.inputs[1], other.inputs[1]
    if b.constant is not None and c.constant is not None:
        return b.type == c.type
    alike = type(b.op) is type(c.op) and [i.type for i in b.inputs] == [i.type for i in c.inputs]
    return alike and isinstance(b.op, ops.WEIGHT_FORMS) and b.type == c.type


def normed_row(
    anchor: Node, users: Mapping[Node, list[Node]], graph: Graph, tails: Collection[Node], policy: FusionPolicy
) -> frozenset[Node]:
    """What computes the single row of `anchor`, and of its twins, from sums over it, as a norm does. A program that
    computes few columns reads the row once more for that, which is little beside its columns."""
    base = base_of(anchor.inputs[0], (ops.Reshape,))
    alone = not isinstance(base.op, ops.Transpose) and base.shape[-1:] == (base.type.size,)
    anchors = [anchor, *twins_of(anchor, users, graph, policy)]
    return _normed(anchors, users, graph, tails, policy) if alone else frozenset()


def _between(
    anchor: Node, made: Node, is_base: Callable[[Node], bool], users: Mapping[Node, list[Node]], graph: Graph
) -> frozenset[Node]:
    """The ops from one contraction, that too, to the first operand of `anchor`, if they serve nothing else."""
    x = anchor.inputs[0]
    members, bases = {anchor} if made is x else {anchor, x}, set[Node]()
    waiting = [made]
    while waiting:
        n = waiting.pop()
        if n in members:
            continue
        if n in graph.outputs or n.shape != made.shape or n.dtype != f32 or len(members) > 16:
            return frozenset()
        members.add(n)
        if is_base(n):
            bases.add(n)
        elif category(n.op) is Category.ELEMENTWISE:
            waiting += [i for i in n.inputs if not _is_spread(i)]
        else:
            return frozenset()
    alone = all(u in members for n in members if n is not anchor for u in users[n])
    return frozenset(members - {anchor}) if len(bases) == 1 and alone else frozenset()


def _normed(
    anchors: Sequence[Node],
    users: Mapping[Node, list[Node]],
    graph: Graph,
    tails: Collection[Node],
    policy: FusionPolicy,
) -> frozenset[Node]:
    """What computes the rows of `anchors` from reductions along them, as norms do, where nothing else needs them.
    Empty: nothing does.

    Pointwise ops on whole rows, reductions to one value a row, and pointwise ops on such values. What others need of
    that, and `tails`, which belong to the contraction before them, is read from memory.
    """
    x = anchors[0].inputs[0]
    found, base = {x}, x
    while _keeps_rows(base):
        base = base.inputs[0]
        found.add(base)
    box = base.shape
    count = product(box[:-1])
    if not box or estimate(box[-1]) <= 1:
        return frozenset()

    def belongs(n: Node) -> bool:
        if n in tails or not n.inputs:
            return False
        if isinstance(n.op, ops.Reduce):
            return n.inputs[0].shape == box and n.op.dims == (len(box) - 1,)
        if isinstance(n.op, ops.BroadcastInDim | ops.Reshape):
            return product(n.inputs[0].shape) == count and n.inputs[0].type.rank > 0
        return category(n.op) is Category.ELEMENTWISE and (n.shape == box or product(n.shape) == count)

    waiting = [base] if belongs(base) else []
    while waiting:
        new = [i for i in waiting.pop().inputs if i not in found and belongs(i)]
        found.update(new)
        waiting += new
        if len(found) > policy.row_ops:
            return frozenset()
    while True:
        inside = found.union(anchors)
        kept = {n for n in found if n not in graph.outputs and all(u in inside for u in users[n])}
        if kept == found:
            break
        found = kept
    return frozenset(found) if x in found and any(isinstance(n.op, ops.Reduce) for n in found) else frozenset()


def _keeps_rows(n: Node) -> bool:
    """A view that orders or groups rows anew, and leaves each as it is; or cuts a single one."""
    if isinstance(n.op, ops.Transpose):
        return n.op.permutation[-1] == n.type.rank - 1
    return isinstance(n.op, ops.Reshape) and n.inputs[0].shape[-1:] in (n.shape[-1:], (n.type.size,))


def _is_row_by_row(n: Node, policy: FusionPolicy) -> bool:
    """Whether row i of the result is row i of the first operand times a constant, which stays in a core's caches."""
    loops, op = _loops(n), n.op
    if loops is None or n.dtype != f32 or n.inputs[1].constant is None:
        return False
    if isinstance(op, ops.DotGeneral):
        plain = not op.batch[0] and n.inputs[1].type.rank == 2
    else:
        assert isinstance(op, ops.Convolution)
        plain = op.out_layout[-1] == "C" and not any(map(any, op.padding))
        plain = plain and all(s == 1 for s in (*op.strides, *op.lhs_dilation))
    _, columns, k = loops
    weights = estimate(product(columns)) * estimate(k) * n.inputs[1].dtype.nbytes
    return plain and isinstance(k, int) and n.inputs[0].dtype == f32 and 0 < weights <= policy.weights_bytes


def _is_depthwise(anchor: Node) -> bool:
    op = anchor.op
    if not ops.is_depthwise(anchor) or not isinstance(op, ops.Convolution) or op.lhs_layout != "NHWC":
        return False
    whole = not any(map(any, op.padding)) and all(d == 1 for d in op.lhs_dilation)
    return whole and anchor.inputs[1].constant is not None and anchor.dtype == f32


def _static_image(x: Node) -> bool:
    return is_static(x.shape[1:])


def _pads_image(pad: Node) -> bool:
    """Rows and columns of zeros around each image."""
    op, fill = pad.op, pad.inputs[1]
    assert isinstance(op, ops.Pad)
    zero = fill.constant is not None and not any(fill.constant.value.tobytes())
    ends = [op.low[0], op.high[0], op.low[3], op.high[3]]
    around = all(isinstance(d, int) and d >= 0 for i in (1, 2) for d in (op.low[i], op.high[i]))
    return zero and around and not any(op.interior) and all(d == 0 for d in ends)


def _is_expansion(n: Node) -> bool:
    loops, op = _loops(n), n.op
    if loops is None or not isinstance(op, ops.Convolution) or op.lhs_layout != "NHWC" or op.out_layout != "NHWC":
        return False
    _, _, k = loops
    plain = all(s == 1 for s in op.strides) and not any(map(any, op.padding)) and all(d == 1 for d in op.lhs_dilation)
    images = n.inputs[0].dtype == f32 and n.shape[1] != 1 and n.shape[2] != 1
    return plain and images and isinstance(k, int) and n.inputs[1].constant is not None


def _is_spread(node: Node) -> bool:
    """A broadcast of something small, or a scalar."""
    return node.constant is not None or isinstance(node.op, ops.BroadcastInDim)
