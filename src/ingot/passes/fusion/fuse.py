"""Fusion: every op joins a group; one group is one kernel (or a few).

    dot -> add bias -> gelu -> dot            =>   group{dot, add, gelu} -> group{dot}
    x -> max, sub, exp, sum, div              =>   group{max, sub, exp, sum, div}
    conv -> relu -> pad -> conv               =>   group{conv, relu} -> pad (storage) -> group{conv}

The graph is walked from its outputs. An op whose users all lie in one group joins it where the group's kind allows;
otherwise it is the root of a group of its own. So a group has one result, and groups never form a cycle.

- Views (reshape, transpose, slice, broadcast), iota and scalars are free: each group that reads one has its own copy.
- An anchor (contraction, window, scan, sort, ...) is a group's main loop. It takes the pointwise ops behind it;
  what it reads is memory, seen through strided views; a contraction may compute its rows in front of it (`prologue`).
- Reductions over the same dimensions of the same box share a group with all pointwise work around them.
- At last a global pool joins the group that makes its image, as a second result (`pool_epilogue`), and pointwise groups
  whose results are the model's join the one that reads them (`several_results`).
- Concat and Pad of computed values are storage: their operands are written straight into the result's buffer.

What is left outside groups: inputs, constants, and storage ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ingot import ops
from ingot.ir.dims import bounds, estimate, is_found, product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, Project, mentions
from ingot.ir.types import Shape
from ingot.ops.core.base import Category, category, held_operands, is_contraction
from ingot.ops.core.elementwise import Elementwise
from ingot.ops.group import Group
from ingot.ops.views import pull_back, strided, strided_view
from ingot.passes.fusion.computed_updates import compute_updates
from ingot.passes.fusion.cost import gathers_rows, is_cheap, reads_leaves, sized, turns_rows
from ingot.passes.fusion.epilogue import anchor_tails
from ingot.passes.fusion.groups import (
    PATHS,
    Axes,
    OpenGroup,
    is_free,
    is_pointwise,
)
from ingot.passes.fusion.policy import DEFAULT, FusionPolicy
from ingot.passes.fusion.pool_epilogue import pool_in_producers
from ingot.passes.fusion.prologue import is_single_row, made_within, normed_row, panel_operand, twins_of, why_stored
from ingot.passes.fusion.several_results import join_results

_LOADED = (-2, -1, 0, 1, 2)  # steps of vectors that are loads and shuffles
_LINE = 64  # bytes of a cache line
_FEW = 8  # channels: half a vector at most


def _source(node: Node) -> Node:
    """The value under a chain of views."""
    while node.op.duplicable and node.inputs:
        node = node.inputs[0]
    return node


class _Fusion:
    def __init__(self, graph: Graph, policy: FusionPolicy):
        self.graph, self.policy = graph, policy
        self.order = graph.nodes()
        self.users = graph.uses()
        self.outputs = set(graph.outputs)
        self.homes: dict[Node, list[OpenGroup]] = {}  # groups that compute a node (free nodes: several)
        self.readers: dict[OpenGroup, list[Node]] = {}  # of the node that is being placed: its users, by group
        self.forced: set[Node] = set()  # read by an anchor or a storage op: must be memory
        self.panels: set[Node] = set()  # read by an anchor that may compute them itself; forced, if it does not
        self.storage: set[Node] = set()
        self.apart: dict[Node, str] = {}  # roots of groups: why they are
        self.reasons: dict[Node, str] = {}  # the same, of the groups that were built
        self.tails = anchor_tails(graph)

    def run(self) -> Graph:
        for node in reversed(self.order):
            if not node.is_leaf and (node in self.outputs or node in self.users):
                self._place(node)
        return self._build()

    def _place(self, node: Node) -> None:
        users = self.users.get(node, [])
        self.readers = {}
        for u in users:
            for g in self.homes.get(u, ()):
                self.readers.setdefault(g, []).append(u)
        homes = list(self.readers)
        if len(homes) == 1 and self._join_front(homes[0], node):
            return
        if node in self.panels:
            self.forced.add(node)
        must = node in self.outputs or node in self.forced
        if self._is_storage(node):
            self.storage.add(node)
            self.forced.update(x for x, _ in held_operands(node))
            return
        if isinstance(node.op, Project):
            self.forced.add(node.inputs[0])
            self.storage.add(node)
            return
        if is_free(node):
            self._place_free(node, homes, must)
            return
        if not must and homes and all(self.homes.get(u) for u in users) and not any(map(self._is_full, homes)):
            if len(homes) == 1 and self._join(homes[0], node):
                return
            if len(homes) > 1 and self._join_all(homes, node):
                return
        self.apart[node] = self._why_apart(node, homes)
        self._open(node)

    def _is_full(self, g: OpenGroup) -> bool:
        return len(g.members) >= self.policy.members

    def _why_apart(self, node: Node, homes: list[OpenGroup]) -> str:
        """For people: why `node` is the root of a group, and so stored, and no part of the group that reads it."""
        readers = self.users.get(node, [])
        if node in self.outputs:
            return "an output of the model"
        if node in self.forced:
            told = {why_stored(u, self.policy) for u in readers if self._is_anchor(u)}
            told |= {f"{u.op.name} keeps a place for it" for u in readers if u in self.storage}
            return "; ".join(sorted(told)) or "it is read as memory, through a view"
        if len(homes) != 1 or not all(self.homes.get(u) for u in readers):
            return f"{len(homes)} kernels read it: each would have to compute it again"
        (g,) = homes
        if self._is_full(g):
            return f"the kernel of {g.root.op.name} has {self.policy.members} ops already"
        if isinstance(node.op, ops.Reduction):
            return f"its sum runs over other dimensions than the loop of {g.root.op.name}, or behind another main loop"
        if not is_pointwise(node):
            return f"the kernel of {g.root.op.name} has a main loop already, or reads its operand in another order"
        if node in self.tails:
            return f"it is the epilogue of {node.inputs[0].op.name} before it"
        return f"the loop of {g.root.op.name} needs each of its elements several times"

    def _is_anchor(self, node: Node) -> bool:
        return any(g.anchor is node for g in self.homes.get(node, ()))

    def _place_free(self, node: Node, homes: list[OpenGroup], must: bool) -> None:
        only_read_as_memory = node in self.forced and node not in self.outputs
        in_place = isinstance(node.op, ops.WEIGHT_FORMS) or strided_view(node)
        if only_read_as_memory and not any(u in self.storage for u in self.users[node]) and in_place:
            for i in node.inputs:
                self.forced.add(i)
            must = False
        if must or not homes or any(self._looked_up_again(g, node) for g in homes):
            self.apart[node] = self._why_apart(node, homes)
            self._open(node)
            return
        for g in homes:
            self._add(g, node, self._axes_in(g, node))
        self.homes[node] = homes

    def _looked_up_again(self, g: OpenGroup, node: Node) -> bool:
        """Whether vectors along the group's rows would look up each element of a view on its own, and its elements many
        times: stored in the order of the rows, they are loaded."""
        axes = self._axes_in(g, node)
        dims, rows = sized(node.shape), sized(g.box)
        many = max(self.policy.lookups, self.policy.lookups_each * estimate(node.type.size))
        if g.anchor is not None or axes is None or estimate(product(g.box)) < many:
            return False
        if not dims or axes[dims[-1]] != rows[-1]:
            return False
        found = strided(node, {})
        return found is not None and found[0].constant is None and found[1].strides[dims[-1]] not in _LOADED

    def _is_storage(self, node: Node) -> bool:
        """Concats and pads whose operands are computed and which are read as memory."""
        if node in self.outputs and not isinstance(node.op, ops.Concat):
            return False
        if isinstance(node.op, ops.Concat):
            made = [i for i in node.inputs if not i.is_leaf and not self._is_cheap_chain(i)]
            return bool(made) and (len(node.inputs) > 3 or node in self.forced or any(map(self._has_anchor, made)))
        if not isinstance(node.op, ops.Pad) or any(node.op.interior) or not self._widens(node.op):
            return False
        if any(map(is_found, mentions(node))):
            return False  # its halo would lie elsewhere in each run
        return ops.fill_byte(node) is not None and node in self.forced

    def _widens(self, op: ops.Pad) -> bool:
        limits = {name: (low, high) for name, low, high in self.graph.bounds}
        least = [bounds(d, limits)[0] for d in (*op.low, *op.high)]
        return all(n is not None and n >= 0 for n in least)

    def _is_cheap_chain(self, node: Node, depth: int = 4) -> bool:
        """A few plain pointwise steps from memory: cheaper to compute in place than to store."""
        if node.is_leaf or (is_free(node) and not node.inputs):
            return True
        if depth == 0 or not (is_pointwise(node) or is_free(node)) or node.op.costly or isinstance(node.op, ops.Concat):
            return False
        return all(self._is_cheap_chain(i, depth - 1) for i in node.inputs)

    def _has_anchor(self, node: Node, depth: int = 8) -> bool:
        if depth == 0 or node.is_leaf:
            return False
        if not is_pointwise(node) and not is_free(node):
            return True
        return len(self.users.get(node, ())) <= 1 and any(self._has_anchor(i, depth - 1) for i in node.inputs)

    def _open(self, node: Node) -> None:
        g = OpenGroup(node, _box(node))
        self._add(g, node, tuple(range(len(g.box))) if len(node.types) > 1 or node.shape == g.box else None)
        self.homes[node] = [g]
        if isinstance(node.op, ops.Reduction):
            self._start_rows(g, node)
        elif not is_pointwise(node) and not is_free(node):
            self._anchor(g, node)

    def _anchor(self, g: OpenGroup, node: Node) -> None:
        g.anchor = node
        within = frozenset[Node]()
        if self.policy.computed_rows:
            within = made_within(node, self.users, self.graph, self.tails, self.policy)
        elif is_single_row(node, self.policy):
            within = normed_row(node, self.users, self.graph, self.tails, self.policy)
        g.within = frozenset() if any(map(self._has_front, within)) else within
        g.panel = node.inputs[0] if g.within else self._panel(node)
        self.forced.update(i for i in node.inputs if i is not g.panel)
        if g.panel is not None:
            self.panels.add(g.panel)

    def _panel(self, anchor: Node) -> Node | None:
        """The operand that `anchor` may compute. What comes from row reductions or gathers stays with them: apart, they
        and what is left of the rows would be kernels of their own."""
        panel = panel_operand(anchor, self.policy) if self.policy.computed_rows else None
        stack, budget = [panel] if panel is not None else [], 32
        while stack and budget:
            n, budget = stack.pop(), budget - 1
            if category(n.op) in (Category.REDUCTION, Category.GATHER):
                return None
            if (is_pointwise(n) or is_free(n)) and len(self.users.get(n, ())) == 1:
                stack.extend(n.inputs)
        return panel

    def _has_front(self, node: Node) -> bool:
        """Whether a contraction computes its rows, and so is no part of what another's are computed from."""
        panel = self._panel(node) if is_contraction(node) else None
        source = None if panel is None else _source(panel)
        return source is not None and is_pointwise(source) and source not in self.tails and len(self.users[source]) == 1

    def _join_front(self, g: OpenGroup, node: Node) -> bool:
        """Add `node`, which only the rows of the group's anchor need, to what is computed in front of it."""
        if g.panel is None or node in self.outputs or node in self.forced:
            return False
        anchors = (g.anchor, *g.twins) if node is g.panel else ()
        if not all(u in g.front or u in anchors for u in self.users[node]):
            return False
        if node in g.within:
            if is_contraction(node):
                self.forced.update(i for i in node.inputs if i not in g.within)
        elif is_free(node):
            if node in self.panels:
                if not strided_view(node) or turns_rows(node):
                    return False
                self.panels.update(node.inputs)
        else:
            whole = product(node.shape) == product(g.panel.shape) and category(node.op) is Category.ELEMENTWISE
            if node in self.tails or not (whole or is_cheap(node)):
                return False
        self._add(g, node, None)
        g.front.add(node)
        self.homes[node] = [g]
        return True

    def _join(self, g: OpenGroup, node: Node) -> bool:
        """Add `node`, all of whose users are in `g`, if the group's kind allows it."""
        axes = self._axes_in(g, node)
        if isinstance(node.op, ops.Reduction):
            joined = self._join_reduction(g, node, axes)
        elif is_pointwise(node):
            joined = self._accepts_pointwise(g, node, axes)
        elif g.anchor is not None and node in twins_of(g.anchor, self.users, self.graph, self.policy):
            joined = self._aligned(g, node, moved=True)
            if joined:
                g.twins.append(node)
                self.forced.update(i for i in node.inputs if i is not g.panel)
        else:
            free = g.anchor is None and not g.reductions and len(node.types) == 1
            behind = node.op.takes_epilogue and self._aligned(g, node, moved=True)
            joined = free and (behind or pull_back(g.root, node, Layout.contiguous(g.root.shape)) is not None)
            joined = joined and not self._scattered(g, node)
            if joined:
                self._anchor(g, node)
        if joined:
            self._add(g, node, self._axes_in(g, node))
            self.homes[node] = [g]
        return joined

    def _scattered(self, g: OpenGroup, node: Node) -> bool:
        """Whether the group would store a large image of `node` element by element: vectors run along its channels."""
        if not isinstance(node.op, ops.Convolution) or estimate(node.shape[-1]) <= _FEW:
            return False
        if estimate(node.type.size) < self.policy.scattered:
            return False
        way = [node]
        while way[-1] is not g.root:
            way.append(next(u for u in self.users[way[-1]] if u in g.members))
        lay = Layout.contiguous(g.root.shape)
        for below, u in reversed([*pairwise(way)]):
            moved = pull_back(u, below, lay) if is_free(u) else lay
            if moved is None:  # a part of the channels is innermost here
                break
            lay = moved
        return lay.strides[-1] != 1

    def _join_all(self, homes: list[OpenGroup], node: Node) -> bool:
        """Compute `node` in each of the groups that read it, where that costs no more than reading it would: plain
        arithmetic on at most one value as large."""
        if len(homes) > self.policy.copies or node in self.tails or not self._is_stored_or_plain(homes, node):
            return False
        sources = {_source(i) for i in node.inputs}
        large = [x for x in sources if len(x.types) == 1 and 2 * estimate(x.type.size) > estimate(node.type.size)]
        if len(large) > 1:
            return False
        axes = [self._axes_in(g, node) for g in homes]
        if not all(self._accepts_pointwise(g, node, a) for g, a in zip(homes, axes, strict=True)):
            return False
        for g, a in zip(homes, axes, strict=True):
            self._add(g, node, a)
        self.homes[node] = homes
        return True

    def _is_stored_or_plain(self, homes: list[OpenGroup], node: Node, depth: int = 4) -> bool:
        """Plain arithmetic on values that lie in memory whatever happens to `node`: reductions that run over the box of
        one of the groups do not, they join it."""
        if depth == 0 or not isinstance(node.op, Elementwise) or node.op.costly:
            return False
        for x in map(_source, node.inputs):
            if isinstance(x.op, ops.Reduction) and any(g.box == x.inputs[0].shape for g in homes):
                return False
            stored = x.is_leaf or is_free(x) or x in self.forced or not is_pointwise(x)
            if not (stored or len(self.users[x]) > 1 or self._is_stored_or_plain(homes, x, depth - 1)):
                return False
        return True

    def _accepts_pointwise(self, g: OpenGroup, node: Node, axes: Axes | None) -> bool:
        if node in self.tails:
            free = g.anchor is None or self.tails[node] in twins_of(g.anchor, self.users, self.graph, self.policy)
            if not free or g.reductions or not self._aligned(g, node):
                return False
        if node.op.holds_operands and (g.anchor is not None or g.reductions):
            return False
        if len(g.paths_to(node, self.readers[g])) > PATHS:
            return False
        if any(map(turns_rows, self.users.get(node, ()))) and self._made_of_rows(node):
            return False
        again = estimate(product(max(1, estimate(d)) for d in g.box)) > 2 * estimate(node.type.size)
        cheap = is_cheap(node) or (gathers_rows(node) and g.anchor is None and reads_leaves(node))
        if again and not (cheap or node.type.size == 1 or self._once_a_row(g, node, axes)):
            return False
        return g.anchor is None or self._aligned(g, node, moved=True) or cheap

    def _made_of_rows(self, node: Node, depth: int = 8) -> bool:
        """Whether a loop along the innermost dimension of `node` reads gathered rows as they lie, and one along another
        would look up each element."""
        if gathers_rows(node):
            return True
        computed = depth and is_pointwise(node) and not node.op.holds_operands
        return bool(computed) and any(self._made_of_rows(i, depth - 1) for i in node.inputs if len(self.users[i]) == 1)

    def _once_a_row(self, g: OpenGroup, node: Node, axes: Axes | None) -> bool:
        """A small value that loops over the box compute outside their innermost loop: it does not follow the innermost
        dimension, or it comes from a reduction that can join the group."""
        if axes is None or g.anchor is not None:
            return False
        follows = tuple(sorted(a for a in axes if a is not None))
        spread = [d for d in range(len(g.box)) if g.box[d] != 1]
        if spread and spread[-1] not in follows:
            return True
        stack, budget = list(node.inputs), 16
        while stack and budget:
            n, budget = stack.pop(), budget - 1
            if isinstance(n.op, ops.Reduction) and n.inputs[0].shape == g.box:
                kept = tuple(d for d in range(len(g.box)) if d not in ops.reduced_dims(n) and g.box[d] != 1)
                return kept == tuple(d for d in follows if g.box[d] != 1)
            if (is_pointwise(n) or is_free(n)) and len(self.users.get(n, ())) == 1:
                stack.extend(n.inputs)
        return False

    def _join_reduction(self, g: OpenGroup, node: Node, axes: Axes | None) -> bool:
        """A reduction joins behind its full-box users (softmax) or before its row-shaped epilogue (a mean)."""
        if g.anchor is not None or axes is None or node in self.outputs:
            return False
        box, reduced = node.inputs[0].shape, ops.reduced_dims(node)
        kept = tuple(d for d in range(len(box)) if d not in reduced)
        if g.reductions:
            same = g.reductions[0].inputs[0].shape == box and ops.reduced_dims(g.reductions[0]) == reduced
            fits = same and _follows(axes, kept, box)
            if fits:
                g.reductions.append(node)
            return fits
        if g.box == box and _follows(axes, kept, box) and not self._tall(node.inputs[0], reduced):
            g.reductions.append(node)
            return True
        row_like = tuple(d for d in g.box if d != 1) == tuple(box[d] for d in kept if box[d] != 1)
        if not row_like or not self._aligned(g, node):
            return False
        g.reductions.append(node)
        g.rebase(box, kept)
        return True

    def _tall(self, x: Node, reduced: Sequence[int]) -> bool:
        """Whether a loop over columns, a vector each, would fetch them anew in each pass, a few lines of each page: the
        passes go through memory as it lies if they are apart, and are cut between the cores by rows as well."""
        sized = [d for d in range(len(x.shape)) if x.shape[d] != 1]
        if not sized or sized[-1] in reduced or estimate(x.shape[sized[-1]]) * x.dtype.nbytes <= 4 * _LINE:
            return False
        return estimate(product([x.shape[d] for d in reduced])) * _LINE > self.policy.column_bytes

    def _start_rows(self, g: OpenGroup, node: Node) -> None:
        box = node.inputs[0].shape
        g.reductions.append(node)
        g.rebase(box, tuple(d for d in range(len(box)) if d not in ops.reduced_dims(node)))

    def _add(self, g: OpenGroup, node: Node, axes: Axes | None) -> None:
        g.add(node, axes, self.readers.get(g, ()))

    def _aligned(self, g: OpenGroup, node: Node, moved: bool = False) -> bool:
        """Whether each element of `node` is needed for one element of the result alone: the same in row-major order, or
        with `moved` any, by transposes."""
        order = g.order_of(node, self.readers.get(g, ()))
        return order == () or (moved and order is not None)

    def _axes_in(self, g: OpenGroup, node: Node) -> Axes | None:
        """How the node's dimensions follow the group's box, agreed by all its users in the group."""
        found: Axes | None = None
        for u in self.readers.get(g, ()):
            axes = g.operand_axes(u, node)
            if axes is None or (found is not None and found != axes):
                return None
            found = axes
        return found if node is not g.root else g.axes.get(node, found)

    def _build(self) -> Graph:
        """The graph of groups and storage ops, from the outputs' view."""
        memo: dict[Node, Node] = {}
        for n in self.order:
            if n.is_leaf:
                memo[n] = n
            elif n in self.storage:
                memo[n] = self._build_storage(n, memo)
            elif n in self.homes and self.homes[n][0].root is n and len(self.homes[n]) == 1:
                memo[n] = self.homes[n][0].built(memo)
                self.reasons[memo[n]] = self.apart[n]
        outputs: list[Node] = []
        lasting = dict(enumerate(self.graph.lasting))
        for i, n in enumerate(self.graph.outputs):
            # an output is written by a group of its own, but what lasts as it is by none
            own = not n.is_leaf and memo[n] not in outputs and isinstance(memo[n].op, Group)
            stays = i in lasting and lasting[i][0] is n
            outputs.append(memo[n] if own or stays else _copy(f"out{i}", memo[n]))
        return self.graph.with_outputs(outputs)

    def _build_storage(self, node: Node, memo: dict[Node, Node]) -> Node:
        """A storage op on built groups; operands that no group of this graph writes get a copying group."""
        return node.op(*(memo.get(i, i) for i in node.inputs), loc=node.loc)


def _box(root: Node) -> Shape:
    """What the loops of a group run over: its result, or what that is a reshape of: rows of reductions lie there."""
    if len(root.types) > 1:
        return ()
    return root.inputs[0].shape if isinstance(root.op, ops.Reshape) else root.shape


def _follows(axes: Axes, kept: tuple[int, ...], box: Shape) -> bool:
    """Whether a reduction's result dimensions follow the kept dimensions of the box, in order."""
    if len(axes) != len(kept):
        return False
    return all(a == d or (a is None and box[d] == 1) for a, d in zip(axes, kept, strict=True))


def _copy(label: str, value: Node) -> Node:
    """A group that copies `value`; the label keeps copies of one value apart."""
    p = Input(label, value.type)()
    return Group(Graph((p,), (p,)), "pointwise")(value, loc=value.loc)


def fuse(graph: Graph, policy: FusionPolicy = DEFAULT, reasons: dict[Node, str] | None = None) -> Graph:
    """A CORE graph (and kept composite ops) -> a graph of Group nodes, storage ops, inputs and constants.

    `reasons`, if given, is filled with why each group is not part of the one that reads it; policy: the target's.
    """
    fusion = _Fusion(graph, policy)
    fused, became = fusion.run(), dict[Node, Node]()
    if policy.pooled_images:
        fused, became = pool_in_producers(fused)
    fused, within = compute_updates(fused, policy)
    became = {n: within.get(g, g) for n, g in became.items()} | within
    fused, joined = join_results(fused, policy)
    if reasons is not None:
        moved = {n: became.get(n, n) for n in fusion.reasons}
        reasons |= {joined.get(moved[n], moved[n]): text for n, text in fusion.reasons.items()}
    return fused
