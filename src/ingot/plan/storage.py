"""Storage assignment: the buffer of each value of a fused graph, and its layout in it.

    c = concat(a, b)   ->   a and b are slices of c's buffer; no copy
    p = pad(x)         ->   x is the inside of p's buffer, whose halo is zero from the start
    y = relu(x)        ->   y is written over x if nothing reads x afterwards (`in_place`)

Only groups write memory. An operand of a storage op that cannot be stored inside the op's buffer (it has another place
already, or a reader cannot read it with these strides) is copied by a separate group.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd

from ingot import ops
from ingot.ir.dims import estimate, is_computed, product, symbols_of
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, Project, free_symbols, rebuild, topological
from ingot.ir.types import static_shape
from ingot.ops.core.base import Category, category, is_contraction, operands_in_result
from ingot.ops.group import Group
from ingot.ops.views import base_of, strided_base
from ingot.plan.in_place import Pairs, can_overwrite, in_place, updated_operand
from ingot.plan.order import overlap_exchanges, results_of_inputs_first, shortest_lifetimes
from ingot.support.dataclass import dataclass

_STRIDED_RESULTS = ("attention_gradients",)  # kinds of groups that store each of several results by its layout
CACHE_LINE_BYTES = 64
CONFLICT_STRIDE_BYTES = 1024  # rows at multiples of it share at most 4 of the 64 sets of a first-level cache


@dataclass(frozen=True)
class Place:
    """A value's buffer, named by the value that owns it, and the value's layout in it."""

    owner: Node
    layout: Layout


@dataclass(frozen=True)
class Storage:
    """The storage of a fused graph.

    places: of all values. halos: buffers that must be initialized, each with a key that equal geometries share and the
    byte to fill it with. order: the execution order; a value comes after its operands, and after the sizes that its
    shape or place depends on. copy_reasons: inputs whose new values have their own memory, and why.
    """

    graph: Graph
    places: dict[Node, Place]
    halos: dict[Node, tuple[str, int]]
    order: tuple[Node, ...]
    copy_reasons: dict[Node, str]

    def updates(self, group: Node) -> bool:
        """Whether a group's result is written over the operand that it updates."""
        operand = updated_operand(group)
        return operand in self.places and self.places[operand] == self.places[group]


@dataclass(frozen=True)
class Arena:
    """nbytes: of all intermediate values. temp_bytes: for each group, the peak of its own temporaries."""

    nbytes: int
    temp_bytes: dict[Node, int]


def assign(graph: Graph, pairs: Pairs = ()) -> Storage:
    """Assign a place to every value of a fused graph, adding copies where needed (see the module docstring).

    pairs: inputs, and the outputs to write over them if possible.
    """
    max_copies = sum(len(n.inputs) for n in graph.nodes() if n.op.holds_operands)
    for _ in range(max_copies + 1):
        attempt = _Assignment(graph, pairs)
        misfits = attempt.run()
        if not misfits:
            return Storage(graph, attempt.places, attempt.halos, attempt.order, attempt.in_place.copy_reasons)
        old_graph, graph = graph, _with_copies(graph, misfits)
        new_output = dict(zip(old_graph.outputs, graph.outputs, strict=True))
        pairs = [(old, new_output[new]) for old, new in pairs]
    raise AssertionError("each copy settles one operand")


def _stores_by_layout(value: Node) -> bool:
    """Whether what computes a value can store it in memory of another one."""
    if isinstance(value.op, Project):
        group = value.inputs[0].op
        return isinstance(group, Group) and group.kind in _STRIDED_RESULTS
    return isinstance(value.op, Group) or value.op.holds_operands


class _Assignment:
    def __init__(self, graph: Graph, pairs: Pairs):
        self.graph = graph
        self.users = graph.uses()
        self.outputs = set(graph.outputs)
        self.in_place = in_place(graph, pairs)
        self.places = {n: Place(old, Layout.contiguous(old.shape)) for n, old in self.in_place.memory_of.items()}
        self.halos: dict[Node, tuple[str, int]] = {}
        self.order: tuple[Node, ...] = ()
        self.size_ancestors = {s: frozenset(topological(nodes)) for s, nodes in graph.size_requirements.items()}

    def run(self) -> dict[Node, set[int]]:
        """Fill `places`; return the positions of the operands of storage ops that need a copy."""
        misfits: dict[Node, set[int]] = {}
        for node in reversed(self.graph.nodes()):
            if isinstance(node.op, Group) and len(node.types) > 1:
                for result in node.results:
                    self.places.setdefault(result, Place(result, Layout.contiguous(result.shape)))
                continue
            if node not in self.places:
                self.places[node] = Place(node, self._default_layout(node))
            place = self.places[node]
            if not node.op.holds_operands:
                continue
            for i, (operand, inner) in enumerate(_operand_layouts(node, place.layout)):
                is_movable = _stores_by_layout(operand) and operand not in self.places
                is_unfit = not is_movable or operand in self.outputs or not self._is_readable(operand, inner)
                sizes = _runtime_sizes(inner)
                # the halo would be at a different offset in each run
                has_moving_halo = bool(sizes) and isinstance(operand.op, ops.Pad)
                # an ancestor of a size cannot be stored at an offset that depends on the size
                if is_unfit or has_moving_halo or any(operand in self.size_ancestors.get(s, ()) for s in sizes):
                    misfits.setdefault(node, set()).add(i)
                else:
                    self.places[operand] = Place(place.owner, inner)
            if isinstance(node.op, ops.Pad):
                fill = ops.fill_byte(node)
                assert fill is not None
                inner, outer_fill = self.halos.get(place.owner, ("", fill))
                if outer_fill != fill:
                    outer = next(u for u in self.users[node] if u.op.holds_operands)
                    misfits.setdefault(outer, set()).add(outer.inputs.index(node))
                    continue
                self.halos[place.owner] = f"{place.owner.type}:{inner}{node.op}@{place.layout}", fill
        if not misfits:
            self.order = self._execution_order()
            self._write_in_place()
        return misfits

    def _execution_order(self) -> tuple[Node, ...]:
        requirements, predecessors = self.graph.size_requirements, self.in_place.predecessors
        roots = (*self.graph.inputs, *self.graph.outputs)

        def needs(n: Node) -> tuple[Node, ...]:
            names = free_symbols(n).union(
                *(_runtime_sizes(self.places[r].layout) for r in n.results if r in self.places)
            )
            required = (r for s in sorted(names) for r in requirements.get(s, ()))
            return (*n.inputs, *required, *predecessors.get(n, ()))

        if requirements or predecessors:
            order = shortest_lifetimes(roots, needs)
        elif len(self.graph.outputs) > 1:
            order = min((self.graph.nodes(), shortest_lifetimes(roots, needs)), key=self._peak_bytes)
        else:
            order = self.graph.nodes()
        outputs = {*self.graph.outputs}
        order = results_of_inputs_first(order, needs, outputs.__contains__)
        return tuple(overlap_exchanges(order, needs, _is_exchange) if any(map(_is_exchange, order)) else order)

    def _peak_bytes(self, order: Sequence[Node]) -> int:
        """The peak of live bytes of intermediate values, without those stored in results."""
        position = {n: i for i, n in enumerate(order)}
        results = {self.places[y].owner for y in self.graph.outputs if y in self.places}
        lifetimes: dict[Node, tuple[int, int]] = {}
        for value, place in self.places.items():
            if place.owner not in results and not place.owner.is_leaf and value in position:
                uses = [position[value], *(position[u] for u in self.users.get(value, ()) if u in position)]
                first, last = lifetimes.get(place.owner, (uses[0], uses[0]))
                lifetimes[place.owner] = min(first, *uses), max(last, *uses)
        byte_deltas = [0] * (len(order) + 1)
        for owner, (first, last) in lifetimes.items():
            nbytes = estimate(owner.type.nbytes)
            byte_deltas[first] += nbytes
            byte_deltas[last + 1] -= nbytes
        return max(accumulate(byte_deltas))

    def _write_in_place(self) -> None:
        """Write elementwise groups and updates over an operand that nothing reads later. The operand of an update that
        is a result is computed in the result's memory."""
        order = {n: i for i, n in enumerate(self.order)}
        for node, position in order.items():
            place = self.places.get(node)
            if not isinstance(node.op, Group) or len(node.types) != 1:
                continue
            if place is None or place.owner is not node:
                continue
            is_result = node in self.outputs
            for value in [updated_operand(node)] if is_result else node.inputs:
                if value is None:
                    continue
                operand_place = self.places.get(value)
                is_last_use = all(order[u] <= position for u in self.users[value]) and value not in self.outputs
                if (
                    operand_place is None
                    or not is_last_use
                    or value.type != node.type
                    or operand_place.layout != place.layout
                ):
                    continue
                is_plain_buffer = isinstance(operand_place.owner.op, Group) and operand_place.owner not in self.halos
                if is_plain_buffer and can_overwrite(
                    node, value, {value: operand_place.layout, node: operand_place.layout}
                ):
                    self._merge(*((operand_place.owner, node) if is_result else (node, operand_place.owner)))
                    break

    def _merge(self, owner: Node, other: Node) -> None:
        """Store the values of one buffer in another."""
        self.places |= {n: Place(other, p.layout) for n, p in self.places.items() if p.owner is owner}

    def _default_layout(self, node: Node) -> Layout:
        """The row-major layout, with a gap after each row if the rows of a contraction's tile, or the pixels that a
        depthwise convolution reads repeatedly, would fall into few cache sets."""
        dense = Layout.contiguous(node.shape)
        if node.is_leaf or node in self.outputs or node.type.rank < 2:
            return dense
        width, anchors = node.shape[-1], self._contraction_readers(node)
        if not isinstance(width, int) or width == 0 or width * node.dtype.nbytes % CACHE_LINE_BYTES:
            return dense
        is_depthwise = anchors and all(map(ops.is_depthwise, anchors))
        if not (
            _has_set_conflicts(node)
            if is_depthwise
            else anchors and width * node.dtype.nbytes % CONFLICT_STRIDE_BYTES == 0
        ):
            return dense
        row_elements = width + CACHE_LINE_BYTES // node.dtype.nbytes
        outer = Layout.contiguous((*node.shape[:-1], row_elements))
        gapped = Layout(node.shape, outer.strides)
        return gapped if self._is_readable(node, gapped) else dense

    def _contraction_readers(self, node: Node) -> list[Node]:
        """The contractions that read `node` as their first operand, row by row."""
        readers: list[Node] = []
        for user in self.users.get(node, ()):
            if not isinstance(user.op, Group):
                continue
            params = {p for p, outer in zip(user.op.body.inputs, user.inputs, strict=True) if outer is node}
            contractions = (n for n in user.op.body.nodes() if is_contraction(n))
            readers += [n for n in contractions if base_of(n.inputs[0]) in params]
        return readers

    def _is_readable(self, value: Node, layout: Layout) -> bool:
        """Whether all groups that read `value` as strided memory can read it with `layout`."""
        if layout.is_contiguous:
            return True
        for user in self.users.get(value, ()):
            if not isinstance(user.op, Group):
                continue
            body = user.op.body
            params = {p: layout for p, outer in zip(body.inputs, user.inputs, strict=True) if outer is value}
            for n in body.nodes():
                if reads_memory(n) and not all(_has_strides(i, params) for i in n.inputs):
                    return False
        return True


def _is_exchange(n: Node) -> bool:
    return isinstance(n.op, Group) and any(category(m.op) is Category.COLLECTIVE for m in n.op.body.nodes())


def _runtime_sizes(layout: Layout) -> frozenset[str]:
    """The sizes found at run time that a layout depends on."""
    names = frozenset[str]().union(*map(symbols_of, (*layout.strides, layout.offset)))
    return frozenset(filter(is_computed, names))


def _has_set_conflicts(node: Node) -> bool:
    """Whether a vector of channels of each pixel of an image that fits into half of a first-level cache overflows the
    cache sets that it maps to, and pixels are large enough for a gap to cost little."""
    lines = static_shape(node.shape[-1:])[0] * node.dtype.nbytes // CACHE_LINE_BYTES
    positions = min(512, estimate(product(node.shape[1:-1])))
    return lines >= 8 and positions > 12 * 64 // gcd(lines, 64)


def reads_memory(node: Node) -> bool:
    """Whether an op reads its operands as strided memory, not element by element."""
    inline = (Category.ELEMENTWISE, Category.GATHER, Category.VIEW, Category.SOURCE, Category.REDUCTION)
    return category(node.op) not in inline and not node.is_leaf


def _has_strides(operand: Node, params: dict[Node, Layout]) -> bool:
    return base_of(operand) not in params or strided_base(operand, params) is not None


def _operand_layouts(node: Node, layout: Layout) -> list[tuple[Node, Layout]]:
    """The operands that a storage op holds in its buffer, with their layouts there."""
    return [(x, layout.slice(start, x.shape)) for x, start in operands_in_result(node)]


def _with_copies(graph: Graph, misfits: dict[Node, set[int]]) -> Graph:
    """The graph with copies of some operands of storage ops."""

    def with_copies(n: Node, inputs: Sequence[Node]) -> Node:
        misfit_operands = misfits.get(n, ())
        return n.with_inputs([_unique_copy(x, n, i) if i in misfit_operands else x for i, x in enumerate(inputs)])

    return graph.with_outputs(rebuild(graph.outputs, rule=with_copies))


def _unique_copy(value: Node, user: Node, position: int) -> Node:
    """A copy of a value that interning does not merge with other copies of it."""
    p = Input(f"copy{user.id}_{position}", value.type)()
    return Group(Graph((p,), (p,)), "pointwise")(value, loc=value.loc)
