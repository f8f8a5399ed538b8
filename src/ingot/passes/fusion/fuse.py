"""Fusion: every op joins a group; one group is one kernel (or a few).

    dot -> add bias -> gelu -> dot            =>   group{dot, add, gelu} -> group{dot}
    x -> max, sub, exp, sum, div              =>   group{max, sub, exp, sum, div}
    conv -> relu -> pad -> conv               =>   group{conv, relu} -> pad (storage) -> group{conv}

The graph is visited from its outputs. An op whose users are all in one group joins it where the group's kind allows;
otherwise it becomes the root of a new group. So a group has one result, and groups never form a cycle.

- Views (reshape, transpose, slice, broadcast), iota and scalars are free: each group that reads one gets its own copy.
- An anchor (contraction, window, scan, sort, ...) is the main loop of a group. The pointwise ops that follow it join as
  its epilogue; its operands are in memory, seen through strided views; a contraction may compute its rows (`prologue`).
- Reductions over the same dimensions of the same box share a group with all pointwise work around them.
- Finally groups merge into groups with several results (`merge`, and the modules that decide which).
- Concat and Pad of computed values are storage ops: their operands are computed directly into the result's buffer.

Inputs, constants and storage ops are not in groups.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

from ingot import ops
from ingot.ir.dims import bounds, estimate, is_computed, product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, Project, free_symbols
from ingot.ops.core.base import Category, category, is_contraction, operands_in_result
from ingot.ops.group import Group
from ingot.ops.views import is_strided_view, pull_back, strided_base
from ingot.passes.fusion.channel_images import ChannelImages
from ingot.passes.fusion.column_sums import join_column_sums
from ingot.passes.fusion.computed_updates import compute_updates
from ingot.passes.fusion.cost import (
    depends_on_gathered_rows,
    gathers_rows,
    has_anchor,
    has_tall_columns,
    is_cheap,
    is_cheap_chain,
    is_long_chain,
    is_row_transpose,
    long_dims,
    operands_within,
    outlasts_product,
    reads_leaves,
    repeats_cheaply,
    widens_table,
)
from ingot.passes.fusion.epilogue import anchor_tails
from ingot.passes.fusion.epilogue_results import join_epilogues
from ingot.passes.fusion.groups import (
    Axes,
    OpenGroup,
    copy_group,
    follows,
    is_free,
    is_pointwise,
    iteration_box,
    source_of,
    stored_views,
    widens,
)
from ingot.passes.fusion.merge import producer_of
from ingot.passes.fusion.policy import DEFAULT, FusionPolicy
from ingot.passes.fusion.pool_epilogue import pool_in_producers
from ingot.passes.fusion.prologue import (
    is_single_row,
    loaded_operand,
    norm_of_row,
    panel_operand,
    prologue_members,
    reason_stored,
    sibling_products,
)
from ingot.passes.fusion.several_results import join_results
from ingot.passes.fusion.sibling_sums import join_siblings

_CHEAP_STRIDES = (-2, -1, 0, 1, 2)  # strides of vectors that loads and shuffles read
_READ_IN_PLACE = (*ops.WEIGHT_FORMS, ops.RoundToBytes)
_MAX_NARROW_CHANNELS = 8  # half a vector
_MAX_LOADS = 8  # of a repeated value, at all places that need it


class _Fusion:
    def __init__(self, graph: Graph, policy: FusionPolicy):
        self.graph, self.policy = graph, policy
        self.order = graph.nodes()
        self.users = graph.uses()
        self.outputs = set(graph.outputs)
        self.groups_of: dict[Node, list[OpenGroup]] = {}  # groups that compute a node (free nodes: several)
        self.readers: dict[OpenGroup, list[Node]] = {}  # users of the current node, by group
        self.in_memory: set[Node] = set()  # operands of anchors and storage ops: must be stored
        self.optional_memory: set[Node] = set()  # operands that an anchor may compute itself, else `in_memory`
        self.storage: set[Node] = set()
        self.root_reasons: dict[Node, str] = {}  # why a node is the root of a group
        self.reasons: dict[Node, str] = {}  # the same, by the groups that were built
        self.tails = anchor_tails(graph, policy)
        self.stored_views = stored_views(graph)
        self.channels = ChannelImages.of(graph) if policy.loads_channels else ChannelImages()

    def run(self) -> Graph:
        for node in reversed(self.order):
            if not node.is_leaf and (node in self.outputs or node in self.users):
                self._place(node)
        return self._build()

    def _place(self, node: Node) -> None:
        users = self.users.get(node, [])
        self.readers = {}
        for u in users:
            for g in self.groups_of.get(u, ()):
                self.readers.setdefault(g, []).append(u)
        groups = list(self.readers)
        if self._join_prologue(groups, node):
            return
        if node in self.optional_memory:
            self.in_memory.add(node)
        needs_memory = node in self.outputs or node in self.in_memory
        if self._is_storage(node):
            self.storage.add(node)
            self.in_memory.update(x for x, _ in operands_in_result(node))
            return
        if isinstance(node.op, Project):
            self.in_memory.add(node.inputs[0])
            self.storage.add(node)
            return
        if is_free(node) or node in self.channels.unpadded or (self.policy.widens_values and widens(node)):
            self._place_free(node, groups, needs_memory)
            return
        is_read_by_groups = bool(groups) and all(self.groups_of.get(u) for u in users)
        if not needs_memory and is_read_by_groups and not any(map(self._is_full, groups)):
            if len(groups) == 1 and self._join(groups[0], node):
                return
            if len(groups) > 1 and self._join_all(groups, node):
                return
        self.root_reasons[node] = self._root_reason(node, groups)
        self._open(node)

    def _is_full(self, g: OpenGroup) -> bool:
        """Whether a group has enough ops: where it still reads several values that are in no group (a round of
        Threefry's reads two), each would become a kernel, so it goes on to three times the number."""
        if len(g.members) < self.policy.max_ops or len(g.members) >= 3 * self.policy.max_ops:
            return len(g.members) >= self.policy.max_ops
        sources = {source_of(i) for n in g.members for i in n.inputs}
        return sum(not (x.is_leaf or x in self.groups_of or x in self.in_memory) for x in sources) <= 1

    def _root_reason(self, node: Node, groups: list[OpenGroup]) -> str:
        """Explain why `node` is the root of a group, and so stored, instead of a member of the group that reads it."""
        readers = self.users.get(node, [])
        if node in self.outputs:
            return "an output of the model"
        if node in self.in_memory:
            reasons = {reason_stored(u, self.policy) for u in readers if self._is_anchor(u)}
            reasons |= {f"{u.op.name} keeps a place for it" for u in readers if u in self.storage}
            return "; ".join(sorted(reasons)) or "it is read as memory, through a view"
        if len(groups) != 1 or not all(self.groups_of.get(u) for u in readers):
            return f"{len(groups)} kernels read it: each would have to compute it again"
        (g,) = groups
        if self._is_full(g):
            return f"the kernel of {g.root.op.name} has {self.policy.max_ops} ops already"
        if isinstance(node.op, ops.Reduction):
            return f"its sum runs over other dimensions than the loop of {g.root.op.name}, or behind another main loop"
        if not is_pointwise(node):
            return f"the kernel of {g.root.op.name} has a main loop already, or reads its operand in another order"
        if node in self.tails:
            return f"it is the epilogue of {node.inputs[0].op.name} before it"
        return f"the loop of {g.root.op.name} needs each of its elements several times"

    def _is_anchor(self, node: Node) -> bool:
        return any(g.anchor is node for g in self.groups_of.get(node, ()))

    def _place_free(self, node: Node, groups: list[OpenGroup], needs_memory: bool) -> None:
        in_place = isinstance(node.op, _READ_IN_PLACE) or is_strided_view(node, self.stored_views)
        in_place &= not self.channels.is_scattered(node) and self.storage.isdisjoint(self.users.get(node, ()))
        if in_place and node in self.in_memory and node not in self.outputs:
            self.in_memory.update(node.inputs)
            needs_memory = False
        if needs_memory or not groups or any(self._repeats_lookups(g, node) for g in groups):
            self.root_reasons[node] = self._root_reason(node, groups)
            self._open(node)
            return
        for g in groups:
            self._add(g, node, self._axes_in(g, node))
        self.groups_of[node] = groups

    def _repeats_lookups(self, g: OpenGroup, node: Node) -> bool:
        """Whether vectors along the group's rows would gather the elements of a view, each several times, and divide
        their positions where strides do not express it: a copy stored in the order of the rows is loaded instead."""
        axes, dims, rows = self._axes_in(g, node), long_dims(node.shape), long_dims(g.box)
        min_elements = max(self.policy.min_gathered_elements, self.policy.min_gathers_each * estimate(node.type.size))
        if g.anchor is not None or axes is None or estimate(product(g.box)) < min_elements:
            return False
        if not dims or axes[dims[-1]] != rows[-1]:
            return False
        if (source := strided_base(node, {})) is None:
            return isinstance(node.op, ops.Reshape) and not self.policy.repeats_vectors
        return source[0].constant is None and source[1].strides[dims[-1]] not in _CHEAP_STRIDES

    def _is_storage(self, node: Node) -> bool:
        """Whether `node` is a concat or pad of computed operands that is read from memory."""
        if node in self.outputs and not isinstance(node.op, ops.Concat):
            return False
        if isinstance(node.op, ops.Concat):
            computed = [i for i in node.inputs if not i.is_leaf and not is_cheap_chain(i)]
            return bool(computed) and (
                len(node.inputs) > 3 or node in self.in_memory or any(has_anchor(i, self.users) for i in computed)
            )
        if not isinstance(node.op, ops.Pad) or any(node.op.interior) or not self._only_widens(node.op):
            return False
        pads_input_rows = node.inputs[0].is_leaf and (node.op.low[-1:], node.op.high[-1:]) != ((0,), (0,))
        if (self.policy.computes_padded_rows and pads_input_rows) or any(map(is_computed, free_symbols(node))):
            return False  # the position of a halo of computed size would change from run to run
        return ops.fill_byte(node) is not None and node in self.in_memory

    def _only_widens(self, op: ops.Pad) -> bool:
        limits = {name: (low, high) for name, low, high in self.graph.bounds}
        lows = [bounds(d, limits)[0] for d in (*op.low, *op.high)]
        return all(n is not None and n >= 0 for n in lows)

    def _open(self, node: Node) -> None:
        g = OpenGroup(node, iteration_box(node))
        self._add(g, node, tuple(range(len(g.box))) if len(node.types) > 1 or node.shape == g.box else None)
        self.groups_of[node] = [g]
        if isinstance(node.op, ops.Reduction):
            self._start_rows(g, node)
        elif not is_pointwise(node) and not is_free(node):
            self._anchor(g, node)

    def _anchor(self, g: OpenGroup, node: Node) -> None:
        g.anchor = node
        required = frozenset[Node]()
        if self.policy.computes_rows:
            required = prologue_members(node, self.users, self.graph, self.tails, self.policy)
        elif is_single_row(node, self.policy):
            required = norm_of_row(node, self.users, self.graph, self.tails, self.policy)
        g.required = frozenset() if any(map(self._has_prologue, required)) else required
        g.panel = node.inputs[0] if g.required else self._panel(node)
        operands = (i for i in node.inputs if i is not g.panel)
        self.in_memory.update(loaded_operand(node, i, self.channels, self.policy) for i in operands)
        if g.panel is not None:
            self.optional_memory.add(g.panel)

    def _panel(self, anchor: Node) -> Node | None:
        """The operand that `anchor` may compute. Values of row reductions or gathers stay in their group: otherwise
        both would need a kernel of their own."""
        panel = panel_operand(anchor, self.policy) if self.policy.computes_rows else None
        stack, budget = [panel] if panel is not None else [], 32
        while stack and budget:
            n, budget = stack.pop(), budget - 1
            if category(n.op) in (Category.REDUCTION, Category.GATHER):
                return None
            if (is_pointwise(n) or is_free(n)) and len(self.users.get(n, ())) == 1:
                stack.extend(n.inputs)
        return panel

    def _has_prologue(self, node: Node) -> bool:
        """Whether `node` is a contraction that computes its rows, so it cannot be in the prologue of another one."""
        panel = self._panel(node) if is_contraction(node) else None
        source = None if panel is None else source_of(panel)
        return source is not None and is_pointwise(source) and source not in self.tails and len(self.users[source]) == 1

    def _join_prologue(self, groups: list[OpenGroup], node: Node) -> bool:
        """Add `node`, which only the rows of the groups' anchors need, to their prologues: of one group, or of several
        that require it."""
        is_required = bool(groups) and all(node in g.required for g in groups)
        if not (is_required or len(groups) == 1) or node in self.outputs or node in self.in_memory:
            return False
        panel = groups[0].panel
        if panel is None or not all(any(g.is_prologue_reader(u, node) for g in groups) for u in self.users[node]):
            return False
        if is_required:
            if is_contraction(node):
                self.in_memory.update(i for i in node.inputs if i not in groups[0].required)
        elif is_free(node):
            if node in self.optional_memory:
                if not is_strided_view(node) or is_row_transpose(node):
                    return False
                self.optional_memory.update(node.inputs)
        else:
            is_full_size = product(node.shape) == product(panel.shape) and category(node.op) is Category.ELEMENTWISE
            if node in self.tails or not (is_full_size or is_cheap(node)):
                return False
        for g in groups:
            self._add(g, node, None)
            g.prologue.add(node)
        self.groups_of[node] = groups
        return True

    def _join(self, g: OpenGroup, node: Node) -> bool:
        """Add `node`, all of whose users are in `g`, if the group's kind allows it."""
        axes = self._axes_in(g, node)
        if isinstance(node.op, ops.Reduction):
            can_join = self._join_reduction(g, node, axes)
        elif is_pointwise(node):
            can_join = self._accepts_pointwise(g, node, axes)
        elif g.anchor is not None and node in sibling_products(g.anchor, self.users, self.graph, self.policy):
            can_join = self._is_aligned(g, node, allows_transposes=True)
            if can_join:
                g.siblings.append(node)
                self.in_memory.update(i for i in node.inputs if i is not g.panel)
        else:
            has_no_loop = g.anchor is None and not g.reductions and len(node.types) == 1
            is_epilogue = node.op.takes_epilogue and self._is_aligned(g, node, allows_transposes=True)
            is_view = is_epilogue or pull_back(g.root, node, Layout.contiguous(g.root.shape)) is not None
            can_join = has_no_loop and is_view and not self._stores_scattered(g, node)
            can_join = can_join and not outlasts_product(g.members, node, self.policy)
            if can_join:
                self._anchor(g, node)
        if can_join:
            self._add(g, node, self._axes_in(g, node))
            self.groups_of[node] = [g]
        return can_join

    def _stores_scattered(self, g: OpenGroup, node: Node) -> bool:
        """Whether the group would store a large image of `node` element by element, as vectors run along its
        channels."""
        if not isinstance(node.op, ops.Convolution) or estimate(node.shape[-1]) <= _MAX_NARROW_CHANNELS:
            return False
        if estimate(node.type.size) < self.policy.min_scattered_elements:
            return False
        chain = [node]
        while chain[-1] is not g.root:
            chain.append(next(u for u in self.users[chain[-1]] if u in g.members))
        layout = Layout.contiguous(g.root.shape)
        for operand, u in reversed([*pairwise(chain)]):
            source_layout = pull_back(u, operand, layout) if is_free(u) else layout
            if source_layout is None:  # only a part of the channels is innermost
                break
            layout = source_layout
        return layout.strides[-1] != 1

    def _join_all(self, groups: list[OpenGroup], node: Node) -> bool:
        """Add `node` to each of the groups that read it, if recomputing costs no more than reading: plain arithmetic on
        at most one value of its size."""
        too_many = len(groups) > self.policy.max_copies and not widens_table(node)
        if too_many or node in self.tails or self._large_sources(groups, node) > 1:
            return False
        axes = [self._axes_in(g, node) for g in groups]
        if not all(self._accepts_pointwise(g, node, a) for g, a in zip(groups, axes, strict=True)):
            return False
        for g, a in zip(groups, axes, strict=True):
            self._add(g, node, a)
        self.groups_of[node] = groups
        return True

    def _large_sources(self, groups: list[OpenGroup], node: Node) -> float:
        """How many stored values of its size `node` is plain arithmetic on."""
        sources = self._stored_sources(groups, node)
        return inf if sources is None else sum(2 * estimate(x.type.size) > estimate(node.type.size) for x in sources)

    def _stored_sources(
        self, groups: list[OpenGroup], node: Node, depth: int = 0, own: set[Node] | None = None
    ) -> set[Node] | None:
        """The stored values that `node` is plain arithmetic on; None if it is not. Reductions over the box of one of
        the groups are not stored: they join it. own: what is not stored although several of these read it."""
        stored, own = set[Node](), own or operands_within(node, self.policy.max_repeated)
        if depth == self.policy.max_repeated or not repeats_cheaply(node, self.policy):
            return None
        for x in map(source_of, node.inputs):
            if isinstance(x.op, ops.Reduction) and any(g.box == x.inputs[0].shape for g in groups):
                return None
            is_shared = len(self.users[x]) > 1 and not own.issuperset(self.users[x])
            is_stored = x.is_leaf or is_free(x) or x in self.in_memory or not is_pointwise(x) or is_shared
            sources = {x} if is_stored else self._stored_sources(groups, x, depth + 1, own)
            if sources is None:
                return None
            stored |= sources
        return stored

    def _accepts_pointwise(self, g: OpenGroup, node: Node, axes: Axes | None) -> bool:
        if node in self.tails:
            is_free_tail = g.anchor is None or self.tails[node] in sibling_products(
                g.anchor, self.users, self.graph, self.policy
            )
            if not is_free_tail or g.reductions or not self._is_aligned(g, node):
                return False
        if node.op.holds_operands and (g.anchor is not None or g.reductions):
            return False
        paths = len(g.paths_to(node, self.readers[g]))
        if paths > self.policy.max_paths:
            return False
        if any(map(is_row_transpose, self.users.get(node, ()))) and depends_on_gathered_rows(node, self.users):
            return False
        repeats = estimate(product(max(1, estimate(d)) for d in g.box)) > 2 * estimate(node.type.size)
        cheap = (is_cheap(node) and not (repeats and is_long_chain(node, self.policy.max_row_ops))) or (
            gathers_rows(node) and g.anchor is None and reads_leaves(node)
        )
        if repeats and self.policy.repeats_vectors:
            cheap |= isinstance(node.op, ops.Pad) or paths * self._large_sources([g], node) <= _MAX_LOADS
        if repeats and not (cheap or node.type.size == 1 or self._is_computed_once_a_row(g, node, axes)):
            return False
        return g.anchor is None or self._is_aligned(g, node, allows_transposes=True) or cheap

    def _is_computed_once_a_row(self, g: OpenGroup, node: Node, axes: Axes | None) -> bool:
        """Whether the loops over the box compute a small value outside their innermost loop: it does not follow the
        innermost dimension, or it depends on a reduction that can join the group."""
        if axes is None or g.anchor is not None:
            return False
        follows = tuple(sorted(a for a in axes if a is not None))
        long = [d for d in range(len(g.box)) if g.box[d] != 1]
        if long and long[-1] not in follows:
            return not is_long_chain(node, self.policy.max_row_ops)
        stack, budget = list(node.inputs), 16
        while stack and budget:
            n, budget = stack.pop(), budget - 1
            if isinstance(n.op, ops.Reduction) and n.inputs[0].shape == g.box:
                result_dims = tuple(d for d in range(len(g.box)) if d not in ops.reduced_dims(n) and g.box[d] != 1)
                return result_dims == tuple(d for d in follows if g.box[d] != 1)
            if (is_pointwise(n) or is_free(n)) and len(self.users.get(n, ())) == 1:
                stack.extend(n.inputs)
        return False

    def _join_reduction(self, g: OpenGroup, node: Node, axes: Axes | None) -> bool:
        """Whether a reduction can join: as the operand of full-box users (softmax), or before a row-shaped epilogue
        (mean)."""
        if g.anchor is not None or axes is None or node in self.outputs:
            return False
        box, reduced = node.inputs[0].shape, ops.reduced_dims(node)
        result_dims = tuple(d for d in range(len(box)) if d not in reduced)
        if g.reductions:
            is_same_reduction = g.reductions[0].inputs[0].shape == box and ops.reduced_dims(g.reductions[0]) == reduced
            can_join = is_same_reduction and follows(axes, result_dims, box)
            if can_join:
                g.reductions.append(node)
            return can_join
        if (
            g.box == box
            and follows(axes, result_dims, box)
            and not has_tall_columns(node.inputs[0], reduced, self.policy)
        ):
            g.reductions.append(node)
            return True
        row_like = tuple(d for d in g.box if d != 1) == tuple(box[d] for d in result_dims if box[d] != 1)
        if not row_like or not self._is_aligned(g, node):
            return False
        g.reductions.append(node)
        g.rebase(box, result_dims)
        return True

    def _start_rows(self, g: OpenGroup, node: Node) -> None:
        box = node.inputs[0].shape
        g.reductions.append(node)
        g.rebase(box, tuple(d for d in range(len(box)) if d not in ops.reduced_dims(node)))

    def _add(self, g: OpenGroup, node: Node, axes: Axes | None) -> None:
        g.add(node, axes, self.readers.get(g, ()))

    def _is_aligned(self, g: OpenGroup, node: Node, allows_transposes: bool = False) -> bool:
        """Whether each element of `node` is needed for one element of the result only: the same in row-major order, or
        with `allows_transposes` any, by transposes."""
        order = g.order_of(node, self.readers.get(g, ()))
        return order == () or (allows_transposes and order is not None)

    def _axes_in(self, g: OpenGroup, node: Node) -> Axes | None:
        """The axes of the box that the node's dimensions follow; None if its users in the group disagree."""
        common: Axes | None = None
        for u in self.readers.get(g, ()):
            axes = g.operand_axes(u, node)
            if axes is None or (common is not None and common != axes):
                return None
            common = axes
        return common if node is not g.root else g.axes.get(node, common)

    def _build(self) -> Graph:
        """Build the graph of groups and storage ops."""
        memo: dict[Node, Node] = {}
        for n in self.order:
            if n.is_leaf:
                memo[n] = n
            elif n in self.storage:
                memo[n] = n.op(*(memo.get(i, i) for i in n.inputs), loc=n.loc)
            elif n in self.groups_of and self.groups_of[n][0].root is n and len(self.groups_of[n]) == 1:
                memo[n] = self.groups_of[n][0].build(memo)
                self.reasons[memo[n]] = self.root_reasons[n]
        outputs: list[Node] = []
        state = dict(enumerate(self.graph.state_pairs))
        for i, n in enumerate(self.graph.outputs):
            # each output is written by its own group, except unchanged values of the state
            group = producer_of(memo[n])
            is_written = not n.is_leaf and memo[n] not in outputs and isinstance(group.op, Group)
            is_unchanged_state = i in state and state[i][0] is n
            outputs.append(memo[n] if is_written or is_unchanged_state else copy_group(f"out{i}", memo[n]))
        return self.graph.with_outputs(outputs)


def fuse(graph: Graph, policy: FusionPolicy = DEFAULT, reasons: dict[Node, str] | None = None) -> Graph:
    """Turn a CORE graph, with composite ops that the target keeps, into groups, storage ops, inputs and constants.
    reasons: receives why each group is not part of the one that reads it."""
    fusion = _Fusion(graph, policy)
    fused, reason_of = fusion.run(), fusion.reasons
    for join in (pool_in_producers, compute_updates, join_results, join_epilogues, join_siblings, join_column_sums):
        fused, images = join(fused, policy)
        reason_of = {images.get(n, n): text for n, text in reason_of.items()}
    if reasons is not None:
        reasons |= reason_of
    return fused
