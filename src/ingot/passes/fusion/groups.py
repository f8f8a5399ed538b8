"""A group during fusion: its members, the axes of its box that their dimensions follow, and its body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import islice

from ingot import ops
from ingot.ir.layout import Layout, identity_axes
from ingot.ir.node import Graph, Input, Node, topological
from ingot.ir.types import Shape, bf16, f16, f32
from ingot.ops.core.base import Category, category, is_contraction
from ingot.ops.core.shape import View
from ingot.ops.group import Group
from ingot.ops.views import BIJECTIVE_VIEWS, base_of, strided_base
from ingot.support.dataclass import dataclass

Axes = tuple[int | None, ...]  # per dimension: the dimension of the group's box that it follows; None: none (size 1)
Path = tuple[tuple[int, int], ...]  # (reader, operand) of each view and gather between a group's loops and a value
MAX_PATHS = 16  # to one value in a group that are told apart


def is_free(node: Node) -> bool:
    """Whether each group may have its own copy: a view, an iota, a scalar constant, or the value of a weight form."""
    return node.op.duplicable or (node.constant is not None and node.type.size == 1)


def widens(node: Node) -> bool:
    """Whether `node` is a computed value of 16 bits in f32."""
    is_narrow = isinstance(node.op, ops.Convert) and node.dtype == f32 and node.inputs[0].dtype in (f16, bf16)
    return is_narrow and not node.inputs[0].is_leaf


def is_pointwise(node: Node) -> bool:
    """Whether any loop can compute it by element: elementwise ops, gathers, and views that are not free."""
    return category(node.op) in (Category.ELEMENTWISE, Category.GATHER, Category.VIEW)


def _view_axes(op: View, user: Node, node: Node, axes: Axes) -> Axes | None:
    places = op.index_map(node.shape, user.shape)
    view_axes = identity_axes(places, node.shape, user.shape)
    # an axis that is sliced, reversed or merged is not an axis of the view
    is_complete = all(d is not None or size == 1 for d, size in zip(view_axes, node.shape, strict=True))
    if not is_complete or any(place.is_padded for place in places):
        return None
    return tuple(None if d is None else axes[d] for d in view_axes)


def _index_axes(op: ops.Gather, user: Node, node: Node, axes: Axes) -> Axes | None:
    """The axes of a gather's scalar indices: those of the result's dimensions outside the slices."""
    x, indices = user.inputs
    if node is x or op.index_vector_dim < indices.type.rank - 1:
        return None
    batch = tuple(axes[d] for d in range(user.type.rank) if d not in op.offset_dims)
    if op.index_vector_dim == indices.type.rank:
        return batch
    return (*batch, None) if indices.shape[-1] == 1 else None


def _follows_elements(user: Node, node: Node) -> bool:
    return category(user.op) is Category.ELEMENTWISE and user.shape == node.shape


@dataclass(eq=False)
class OpenGroup:
    """A group that grows from its root towards its operands. All users of a node are placed before it joins.

    orders: of a member each of whose elements is needed for one element of the result only, the views that move it
    there; () in row-major order, None for other members. paths: from the loops to each member, which is computed once
    for each path.
    """

    root: Node
    box: Shape
    members: set[Node] = field(default_factory=set)
    axes: dict[Node, Axes | None] = field(default_factory=dict)
    orders: dict[Node, Path | None] = field(default_factory=dict)
    paths: dict[Node, frozenset[Path]] = field(default_factory=dict)
    anchor: Node | None = None
    siblings: list[Node] = field(default_factory=list)  # other contractions of the anchor's first operand
    panel: Node | None = None  # the operand of the anchor that the group may compute
    prologue: set[Node] = field(default_factory=set)  # members that only `panel` needs
    required: frozenset[Node] = frozenset()  # nodes that must join `prologue`, a contraction among them
    reductions: list[Node] = field(default_factory=list)

    @property
    def kind(self) -> str:
        if self.reductions:
            return "rows"
        if self.anchor is None:
            return "pointwise"
        if self.required and ops.is_depthwise(self.anchor):
            return "inverted_bottleneck"
        if is_contraction(self.anchor):
            return "contraction"
        anchor_category = category(self.anchor.op)
        # a model-level op that was kept whole has a strategy of its own
        return self.anchor.op.name if anchor_category is Category.OPAQUE else anchor_category.value

    def is_prologue_reader(self, user: Node, node: Node) -> bool:
        """Whether `user` needs `node` for the anchor's rows."""
        return user in self.prologue or (node is self.panel and user in (self.anchor, *self.siblings))

    def add(self, node: Node, axes: Axes | None, readers: Sequence[Node]) -> None:
        """Add `node`. readers: its users in the group."""
        self.members.add(node)
        self.axes[node] = axes
        self.paths[node] = self.paths_to(node, readers)
        self.orders[node] = self.order_of(node, readers)

    def paths_to(self, node: Node, readers: Sequence[Node]) -> frozenset[Path]:
        """The paths to `node` if it joined; a part of them if there are more than MAX_PATHS."""
        paths: set[Path] = set() if readers else {()}
        for u in readers:
            if len(paths) > MAX_PATHS:
                break
            if category(u.op) is Category.ELEMENTWISE:
                paths |= self.paths[u]
            elif is_pointwise(u) or is_free(u):
                paths.update(((u.id, i), *p) for i, x in enumerate(u.inputs) if x is node for p in self.paths[u])
            else:
                paths.add(())
        return frozenset(islice(paths, MAX_PATHS + 1))

    def order_of(self, node: Node, readers: Sequence[Node]) -> Path | None:
        """The order of `node` if it joined; None also where its readers disagree, as in x + transpose(x)."""
        common: Path | None = None
        for u in readers:
            order = self.orders[u]
            if order is None:
                return None
            if isinstance(u.op, ops.Transpose) or (order and isinstance(u.op, ops.Reshape)):
                order = ((u.id, 0), *order)
            elif not isinstance(u.op, ops.Reshape) and not _follows_elements(u, node):
                return None
            if common is not None and common != order:
                return None
            common = order
        return common or ()

    def rebase(self, box: Shape, result_dims: tuple[int, ...]) -> None:
        """Express the axes of a group over its result's box in the larger box that its reduction reads."""
        long = [d for d in range(len(self.box)) if self.box[d] != 1]
        target = dict(zip(long, [d for d in result_dims if box[d] != 1], strict=False))
        for m, axes in self.axes.items():
            self.axes[m] = None if axes is None else tuple(None if a is None else target.get(a) for a in axes)
        self.box = box

    def operand_axes(self, user: Node, node: Node) -> Axes | None:
        """Axes of `node` as an operand of `user`, from the user's axes."""
        axes = self.axes.get(user)
        op = user.op
        if (isinstance(op, ops.Reduction) and user in self.reductions) or (user is self.root and axes is None):
            return tuple(range(len(node.shape))) if node.shape == self.box else None
        if axes is None:
            return None
        if category(op) is Category.ELEMENTWISE and node.shape == user.shape:
            return axes
        if isinstance(op, ops.Gather):
            return _index_axes(op, user, node, axes)
        # the value of a pad has no axes in the view
        return _view_axes(op, user, node, axes) if isinstance(op, View) and node is user.inputs[0] else None

    def build(self, memo: Mapping[Node, Node]) -> Node:
        """Build the group. Its body has canonical inputs, so that equal groups have equal bodies."""
        images: dict[Node, Node] = {}
        inputs: list[Node] = []
        outer: list[Node] = []

        def leaf(n: Node) -> Node:
            p = Input(f"p{len(inputs)}", n.type)()
            inputs.append(p)
            outer.append(memo[n])
            return p

        # the operands of an anchor are in memory, even scalar constants
        memory = set() if self.anchor is None else {base_of(i) for i in self.anchor.inputs}
        for n in topological([self.root], lambda n: n.inputs if n in self.members else ()):
            if n in self.members:
                images[n] = n.op(*(images[i] for i in n.inputs), loc=n.loc)
            elif n.constant is not None and n.type.size == 1 and n not in memory:
                images[n] = n
            else:
                images[n] = leaf(n)
        root = images[self.root]
        outputs = root.results if len(root.types) > 1 else (root,)
        # of the root, or of the last member before it with a location
        loc = next((n.loc for n in reversed(images) if n in self.members and n.loc), "")
        return Group(Graph(tuple(inputs), outputs), self.kind)(*outer, loc=loc)


def iteration_box(root: Node) -> Shape:
    """The iteration space of a group: the shape of its root, or of the operand of a reshape, which has the rows of
    reductions."""
    if len(root.types) > 1:
        return ()
    return root.inputs[0].shape if isinstance(root.op, ops.Reshape) else root.shape


def follows(axes: Axes, result_dims: tuple[int, ...], box: Shape) -> bool:
    """Whether a reduction's result dimensions follow the kept dimensions of the box, in order."""
    if len(axes) != len(result_dims):
        return False
    return all(a == d or (a is None and box[d] == 1) for a, d in zip(axes, result_dims, strict=True))


def copy_group(label: str, value: Node) -> Node:
    """Return a group that copies `value`. label: distinguishes copies of one value."""
    p = Input(label, value.type)()
    return Group(Graph((p,), (p,)), "pointwise")(value, loc=value.loc)


def body_of(group: Node) -> Graph:
    assert isinstance(group.op, Group)
    return group.op.body


def kind_of(group: Node) -> str:
    assert isinstance(group.op, Group)
    return group.op.kind


def source_of(node: Node) -> Node:
    """The value under a chain of views."""
    while node.op.duplicable and node.inputs:
        node = node.inputs[0]
    return node


def stored_views(graph: Graph) -> dict[Node, Layout]:
    """The views that are stored, as contractions read them or they are outputs, and strides do not express them as
    views of other stored values; with their layouts."""
    users, outputs, stored = graph.uses(), set(graph.outputs), dict[Node, Layout]()
    for n in graph.nodes():
        is_read = n in outputs or any(map(is_contraction, users.get(n, ())))
        if is_read and isinstance(n.op, BIJECTIVE_VIEWS) and strided_base(n, stored) is None:
            stored[n] = Layout.contiguous(n.shape)
    return stored
