"""Layout assignment: channels last inside, transposes only at the model's edges.

    conv(NCHW) -> relu -> conv(NCHW)   ->   transpose -> conv(NHWC) -> relu -> conv(NHWC) -> transpose

One traversal, operands first. Every value gets a new node and the permutation that maps the old dimensions to those of
the new node. Convolutions request channels last; pointwise ops, pads, slices, concats, windows and reductions follow
their operands (`CoreOp.permuted`); transposes only change the permutation. All other ops request the original order,
and so do ops that enlarge an output (a segmentation's resize), so that a small value is transposed, and updates of the
state, so that they are in place. Transposes of short rows before reductions of long ones are executed.

    reshape(transpose(rotate(transpose(attention_gradients(..)))))   ->   reshape(rotate(attention_gradients(..)))

Attention that is trained reads and writes its operands with the heads behind the rows, as projections have them, so
that the rotations of queries and keys, and the gradients of these, need no copies for products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import TypeGuard

from ingot import ops
from ingot.ir.dims import bounds, estimate, is_static
from ingot.ir.layout import reshape_groups
from ingot.ir.node import Graph, Input, Node, Op, Project, rebuild
from ingot.ops.core.base import Category, CoreOp, Pairs, Perm, category, inverse, permute

MAX_IMAGE_CHANNELS = 4  # an input of so few channels is not transposed
_MAX_SHORT_ROW = 8  # elements of half a vector
_TRAINED_ATTENTION = ops.AttentionWithSums, ops.AttentionGradients


class _Layouts:
    def __init__(self, original: frozenset[Node], transposed: frozenset[Node]) -> None:
        self.original, self.transposed = original, transposed
        self.placed: dict[Node, tuple[Node, Perm]] = {}
        self.converted: dict[tuple[Node, Perm], Node] = {}

    def get(self, node: Node, perm: Perm) -> Node:
        """Return the new node for `node` with its dimensions in the order `perm`."""
        new, present = self.placed[node]
        if present == perm or len(perm) < 2:
            return new
        key = (node, perm)
        if key not in self.converted:
            self.converted[key] = self._convert(node, new, present, perm)
        return self.converted[key]

    def _convert(self, node: Node, new: Node, present: Perm, perm: Perm) -> Node:
        op, step = new.op, tuple(present.index(p) for p in perm)
        direct = op.absorb_transpose(step) if isinstance(op, ops.CoreOp) else None
        if direct is not None:
            return direct(*new.inputs, loc=node.loc)
        # a pad that moves the channels last, or that gradients of kernels read so, is one copy; in other orders the
        # transpose is a view of the padded value
        if isinstance(op, ops.Pad) and perm in ((0, *range(2, len(perm)), 1), _identity(len(perm))):
            x, value = new.inputs
            low, high, interior = (permute(v, step) for v in (op.low, op.high, op.interior))
            return ops.Pad(low, high, interior)(transpose(x, step), value, loc=node.loc)
        return transpose(new, step)


def _identity(rank: int) -> Perm:
    return tuple(range(rank))


def transpose(x: Node, permutation: Perm) -> Node:
    """Return a transpose, or a reshape if only dimensions of size 1 move."""
    if permutation == _identity(len(permutation)):
        return x
    sized = [p for p in permutation if x.shape[p] != 1]
    if sized == sorted(sized):
        return ops.Reshape(permute(x.shape, permutation))(x, loc=x.loc)
    return ops.Transpose(permutation)(x, loc=x.loc)


def has_images(graph: Graph) -> bool:
    """Whether a graph has values that are best stored channels last: it has convolutions, or inputs that are stored so,
    as which they are transposed to the order of the model's dimensions."""
    return any(isinstance(n.op, ops.Convolution) or _is_channels_last_input(n) for n in graph.nodes())


def _is_channels_last_input(n: Node) -> bool:
    rank = n.type.rank if len(n.types) == 1 else 0
    if not isinstance(n.op, ops.Transpose) or rank < 4 or not isinstance(n.inputs[0].op, Input):
        return False
    return n.op.permutation == (0, rank - 1, *range(1, rank - 1))


def assign_layouts(graph: Graph) -> Graph:
    """Put convolutions, images that are stored channels last and the ops that follow them into this order, and what
    stands between projections and attention that is trained into the order of the projections (see module)."""
    if not has_images(graph) and not any(isinstance(n.op, _TRAINED_ATTENTION) for n in graph.nodes()):
        return graph
    w = _Layouts(_enlarging(graph) | _updating(graph), _row_transposes(graph))
    for n in graph.nodes():
        w.placed[n] = _place(n, w)
    outputs = tuple(w.get(o, _identity(o.type.rank)) for o in graph.outputs)
    return replace(graph, outputs=outputs)


def _enlarging(graph: Graph) -> frozenset[Node]:
    """The pointwise ops, gathers and views that compute an output from values of at most half its size; without nodes
    no larger than these values, as their kernels may compute them."""
    users, enlarging = graph.uses(), set[Node]()
    positions = {n: -i for i, n in enumerate(graph.nodes())}  # users before operands
    for o in graph.outputs:
        producers, visited, largest, heap = set[Node](), {o}, 0, [(positions[o], o)]
        while heap:
            _, n = heappop(heap)
            if n.constant is not None:
                continue
            if _follows_order(n) and producers.issuperset(users.get(n, ())):
                producers.add(n)
                for i in n.inputs:
                    if i not in visited:
                        visited.add(i)
                        heappush(heap, (positions[i], i))
            elif 2 * estimate(n.type.size) > estimate(o.type.size):
                break
            else:
                largest = max(largest, estimate(n.type.size))
        else:
            enlarging.update(n for n in producers if estimate(n.type.size) > largest)
    return frozenset(enlarging)


def _updating(graph: Graph) -> frozenset[Node]:
    """The elementwise ops that only compute new values of the state: in another order than the old values they could
    not be in place."""
    users, updating = graph.uses(), set[Node]()
    new_values = {new for _, new in graph.state_pairs}
    others = set(graph.outputs[len(graph.state) :])
    for n in reversed(graph.nodes()):
        is_live = n in new_values or n in users
        if (
            is_live
            and n not in others
            and category(n.op) is Category.ELEMENTWISE
            and updating.issuperset(users.get(n, ()))
        ):
            updating.add(n)
    return frozenset(updating)


def _row_transposes(graph: Graph) -> frozenset[Node]:
    """Transposes of short rows whose result is reduced along longer ones, perhaps after elementwise ops: scores
    `[n, n, heads]` before a softmax, where vectors would have only `heads` elements."""
    transposes, visited = set[Node](), set[Node]()
    for n in graph.nodes():
        if not isinstance(n.op, ops.Reduction) or n.inputs[0].type.rank - 1 not in n.op.reduced:
            continue
        stack = [n.inputs[0]]
        while stack:
            x = stack.pop()
            if x in visited or x.shape != n.inputs[0].shape:
                continue
            visited.add(x)
            if isinstance(x.op, ops.Transpose) and x.op.permutation[-1] != x.type.rank - 1:
                short = x.inputs[0].shape[-1]
                if isinstance(short, int) and 1 < short <= _MAX_SHORT_ROW < estimate(x.shape[-1]):
                    transposes.add(x)
            elif category(x.op) is Category.ELEMENTWISE:
                stack.extend(x.inputs)
    return frozenset(transposes)


def _follows_order(n: Node) -> bool:
    is_movable = category(n.op) in (Category.ELEMENTWISE, Category.GATHER, Category.VIEW)
    return is_movable and not isinstance(n.op, ops.Transpose) and len(n.types) == 1


def _place(n: Node, w: _Layouts) -> tuple[Node, Perm]:
    if n.is_leaf:
        return n, _identity(n.type.rank)
    if isinstance(n.op, Project):
        return n.op(w.placed[n.inputs[0]][0], loc=n.loc), _identity(n.type.rank)
    result = None if n in w.original else _relabel(n, w) or _convolution(n, w) or _following(n, w)
    if result is not None:
        return result
    new = n.op(*(w.get(i, _identity(i.type.rank)) for i in n.inputs), loc=n.loc)
    return new, _identity(n.type.rank) if len(n.types) == 1 else ()


def _relabel(n: Node, w: _Layouts) -> tuple[Node, Perm] | None:
    """A transpose moves no data; a reshape that merges or splits neighboring dimensions keeps its operand's order."""
    if isinstance(n.op, ops.Transpose):
        new, present = w.placed[n.inputs[0]]
        if n in w.transposed and present == _identity(n.type.rank):
            return None
        inverse_perm = inverse(n.op.permutation)
        return new, tuple(inverse_perm[d] for d in present)
    if not isinstance(n.op, ops.Reshape):
        return None
    x = n.inputs[0]
    new, present = w.placed[x]
    if present == _identity(x.type.rank):
        return None
    groups = reshape_groups(x.shape, n.shape)
    if groups is None:
        return None
    order: list[int] = []
    position = 0
    group_at = {olds[0]: (olds, news) for olds, news in groups if olds}
    ones = [d for olds, news in groups if not olds for d in news]
    while position < len(present):
        group = group_at.get(present[position])
        if group is None or tuple(present[position : position + len(group[0])]) != group[0]:
            return None
        order += group[1]
        position += len(group[0])
    order += ones
    return ops.Reshape(permute(n.shape, tuple(order)))(new, loc=n.loc), tuple(order)


def _convolution(n: Node, w: _Layouts) -> tuple[Node, Perm] | None:
    op = n.op
    if not isinstance(op, ops.Convolution):
        return None
    channels_last = f"N{op.spatial}C"
    x, k = n.inputs
    present = op.lhs_layout
    # images with too few channels for vectors are read in their order
    is_small = present[:2] == "NC" and isinstance(x.shape[1], int) and x.shape[1] <= MAX_IMAGE_CHANNELS
    keeps_order = is_small and w.placed[x][1] == _identity(x.type.rank)
    new = replace(op, lhs_layout=present if keeps_order else channels_last, out_layout=channels_last)
    order = _identity(x.type.rank) if keeps_order else tuple(map(present.index, channels_last))
    return new(w.get(x, order), w.get(k, _identity(k.type.rank)), loc=n.loc), tuple(
        map(op.out_layout.index, channels_last)
    )


def _following(n: Node, w: _Layouts) -> tuple[Node, Perm] | None:
    """Ops that support any order use that of their first permuted operand of full rank. A repeated value follows the
    others: it is the smaller one to transpose."""
    op = n.op
    if not isinstance(op, CoreOp) or len(n.types) != 1:
        return None
    full_rank_inputs = [i for i in n.inputs if i.type.rank and i.type.rank == max(j.type.rank for j in n.inputs)]
    leading = [i for i in full_rank_inputs if not _is_repeated(i)] or full_rank_inputs
    perms = [w.placed[i][1] for i in leading if w.placed[i][1] != _identity(i.type.rank)]
    if not perms:
        return None
    perm = perms[0]
    permuted = op.permuted(perm, *(i.types[0] for i in n.inputs))
    if permuted is None:
        return None
    new, result_perm = permuted
    inputs = [w.get(i, perm) if i.type.rank == len(perm) else w.get(i, _identity(i.type.rank)) for i in n.inputs]
    return new(*inputs, loc=n.loc), result_perm


def _is_repeated(n: Node) -> bool:
    """Whether a value is a smaller one, repeated: a bias of all windows."""
    return isinstance(n.op, ops.BroadcastInDim) and estimate(n.inputs[0].type.size) < estimate(n.type.size)


def explicit_padding(graph: Graph) -> Graph:
    """conv(x, padding) -> conv(pad(x)): padding becomes a value, which fusion computes for free in a halo.

    Convolutions that pad one image differently read slices of the one with the largest padding on each side:

        conv(x, (1, 0)), conv(x, (0, 1))   ->   conv(pad(x)[:-1]), conv(pad(x)[1:])      of one pad(x) by (1, 1)
    """
    widest: dict[tuple[Node, str], Pairs] = {}
    for n in graph.nodes():
        if _pads(n.op) and not _has_own_image(n.op):
            key, none = (n.inputs[0], n.op.lhs_layout), ((0, 0),) * len(n.op.padding)
            pairs = zip(widest.get(key, none), n.op.padding, strict=True)
            widest[key] = tuple((max(a, lo), max(b, hi)) for (a, b), (lo, hi) in pairs)

    def explicit(n: Node, inputs: Sequence[Node]) -> Node:
        if not _pads(n.op):
            return n.with_inputs(inputs)
        shared = n.op.padding if _has_own_image(n.op) else widest[n.inputs[0], n.op.lhs_layout]
        return _padded(n.op, inputs, shared, n.loc)

    return graph.with_outputs(rebuild(graph.outputs, rule=explicit))


def _pads(op: Op) -> TypeGuard[ops.Convolution]:
    if not isinstance(op, ops.Convolution):
        return False
    return any(p != 0 for pair in op.padding for p in pair) or any(d != 1 for d in op.lhs_dilation)


def _has_own_image(op: ops.Convolution) -> bool:
    """Whether the convolution needs its own padded image: it dilates, or the size of its padding is symbolic."""
    return any(d != 1 for d in op.lhs_dilation) or not all(map(is_static, op.padding))


def _padded(op: ops.Convolution, inputs: Sequence[Node], widest: Pairs, loc: str) -> Node:
    """The convolution on its part of the image that is padded by `widest`."""
    x, k = inputs
    zeros = tuple((max(bounds(lo)[0] or 0, 0), max(bounds(hi)[0] or 0, 0)) for lo, hi in op.padding)
    if op.of_signs:
        zeros = ()  # words of 0 differ from the weights
    plain, image = with_explicit_padding(replace(op, padding=widest), x, ops.scalar(0, x.dtype), loc)
    start, limit = [0] * x.type.rank, list(image.shape)
    for c, (lo, hi), (low, high) in zip(op.spatial, op.padding, widest, strict=True):
        d = op.lhs_layout.index(c)
        start[d], limit[d] = low - lo, limit[d] - (high - hi)
    if widest != op.padding:
        image = ops.Slice(tuple(start), tuple(limit), (1,) * x.type.rank)(image, loc=loc)
    return replace(plain, zeros=zeros)(image, k, loc=loc)


def with_explicit_padding(op: ops.Convolution, x: Node, value: Node, loc: str = "") -> tuple[ops.Convolution, Node]:
    """The convolution without padding and dilation, and x with both, filled with `value`."""
    spatial = [d for d, c in enumerate(op.lhs_layout) if c not in "NC"]
    low, high, interior = ([0] * x.type.rank for _ in range(3))
    for d, (lo, hi), hole in zip(spatial, op.padding, op.lhs_dilation, strict=True):
        low[d], high[d], interior[d] = lo, hi, hole - 1
    image = ops.Pad(tuple(low), tuple(high), tuple(interior))(x, value, loc=loc)
    return replace(op, padding=((0, 0),) * len(spatial), lhs_dilation=(1,) * len(spatial)), image


__all__ = ["assign_layouts", "explicit_padding", "has_images", "transpose", "with_explicit_padding"]
