"""Storage: which buffer each value of a fused graph lies in, and where.

    c = concat(a, b)   ->   a and b are slices of c's buffer; no copy
    p = pad(x)         ->   x is the inside of p's buffer, whose halo is zero from the start
    y = relu(x)        ->   y is written over x, where nothing reads x afterwards (`in_place`)

Only groups write. A storage op's operand that cannot lie in its place (it has another place already, or a reader needs
strides that the place does not give) is copied by a group of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd

from ingot import ops
from ingot.ir.dims import estimate, is_found, product, symbols_of
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, mentions, rebuilt, topological
from ingot.ir.types import static_shape
from ingot.ops.core.base import Category, category, held_operands, is_contraction
from ingot.ops.group import Group
from ingot.ops.views import base_of, strided
from ingot.plan.in_place import Pairs, in_place, overwrites, updated
from ingot.plan.order import shortest_lives
from ingot.support.dataclass import dataclass

LINE = 64  # bytes of a cache line
SETS = 1024  # rows a multiple of so many bytes apart meet in at most four of the 64 sets of a first-level cache


@dataclass(frozen=True)
class Place:
    """A value's buffer, named by the value that it was made for, and the value's layout in it."""

    owner: Node
    layout: Layout


@dataclass(frozen=True)
class Storage:
    """Places of all values; `halos`: buffers that must start with all bytes alike, with a key that
    equal geometries share and the byte; `order`: one in which values are made before what reads them, is of their size
    or lies behind something of their size; `copied`: inputs whose new values have memory of their own, and why."""

    graph: Graph
    places: dict[Node, Place]
    halos: dict[Node, tuple[str, int]]
    order: tuple[Node, ...]
    copied: dict[Node, str]

    def updates(self, group: Node) -> bool:
        """Whether a group finds the operand that it updates where its result lies."""
        held = updated(group)
        return held in self.places and self.places[held] == self.places[group]


@dataclass(frozen=True)
class Arena:
    """Bytes that all intermediate values need; of each group, those of its own temporaries at once."""

    nbytes: int
    own: dict[Node, int]


def assign(graph: Graph, pairs: Pairs = ()) -> Storage:
    """Places for every value of a fused graph, after copies are added where no place serves (see module).

    pairs: inputs, and the outputs that are to lie where these lie, if they can.
    """
    operands = sum(len(n.inputs) for n in graph.nodes() if n.op.holds_operands)
    for _ in range(operands + 1):
        attempt = _Assignment(graph, pairs)
        misfits = attempt.run()
        if not misfits:
            return Storage(graph, attempt.places, attempt.halos, attempt.order, attempt.lasting.copied)
        was, graph = graph, _with_copies(graph, misfits)
        became = dict(zip(was.outputs, graph.outputs, strict=True))
        pairs = [(old, became[new]) for old, new in pairs]
    raise AssertionError("each copy settles one operand")


class _Assignment:
    def __init__(self, graph: Graph, pairs: Pairs):
        self.graph = graph
        self.users = graph.uses()
        self.outputs = set(graph.outputs)
        self.lasting = in_place(graph, pairs)
        self.places = {n: Place(old, Layout.contiguous(old.shape)) for n, old in self.lasting.over.items()}
        self.halos: dict[Node, tuple[str, int]] = {}
        self.order: tuple[Node, ...] = ()
        self.sizing = {s: frozenset(topological((n,))) for s, n in graph.found.items()}  # what sizes are made of

    def run(self) -> dict[Node, set[int]]:
        """Fill `places`; the operands of storage ops that do not fit, by position."""
        misfits: dict[Node, set[int]] = {}
        for node in reversed(self.graph.nodes()):
            if isinstance(node.op, Group) and len(node.types) > 1:
                for unread in node.results:
                    self.places.setdefault(unread, Place(unread, Layout.contiguous(unread.shape)))
                continue
            if node not in self.places:
                self.places[node] = Place(node, self._own_layout(node))
            place = self.places[node]
            if not node.op.holds_operands:
                continue
            for i, (operand, inner) in enumerate(_parts(node, place.layout)):
                movable = (isinstance(operand.op, Group) or operand.op.holds_operands) and operand not in self.places
                unfit = not movable or operand in self.outputs or not self._readable(operand, inner)
                found = _found(inner)
                moves = bool(found) and isinstance(operand.op, ops.Pad)  # its halo would lie elsewhere in each run
                # among what sizes are made of, it would lie behind what is made of it
                if unfit or moves or any(operand in self.sizing.get(s, ()) for s in found):
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
            self.order = self._ordered()
            self._in_place()
        return misfits

    def _ordered(self) -> tuple[Node, ...]:
        found, before = self.graph.found, self.lasting.before
        roots = (*self.graph.inputs, *self.graph.outputs)
        if not found and not before:
            own = tuple(self.graph.nodes())
            several = len(self.graph.outputs) > 1
            return min((own, tuple(shortest_lives(roots, lambda n: n.inputs))), key=self._peak) if several else own

        def needs(n: Node) -> tuple[Node, ...]:
            names = mentions(n).union(*(_found(self.places[r].layout) for r in n.results if r in self.places))
            return (*n.inputs, *(found[s] for s in sorted(names) if s in found), *before.get(n, ()))

        return tuple(shortest_lives(roots, needs))

    def _peak(self, order: Sequence[Node]) -> int:
        """The most bytes that are alive at once, of what groups make and no result holds."""
        at = {n: i for i, n in enumerate(order)}
        results = {self.places[y].owner for y in self.graph.outputs if y in self.places}
        lives: dict[Node, tuple[int, int]] = {}
        for value, place in self.places.items():
            if place.owner not in results and not place.owner.is_leaf and value in at:
                ends = [at[value], *(at[u] for u in self.users.get(value, ()) if u in at)]
                first, last = lives.get(place.owner, (ends[0], ends[0]))
                lives[place.owner] = min(first, *ends), max(last, *ends)
        change = [0] * (len(order) + 1)
        for owner, (first, last) in lives.items():
            nbytes = estimate(owner.type.nbytes)
            change[first] += nbytes
            change[last + 1] -= nbytes
        return max(accumulate(change))

    def _in_place(self) -> None:
        """Write groups over an operand that they are the last to read: element by element, or but for some of them."""
        order = {n: i for i, n in enumerate(self.order)}
        for node, at in order.items():
            place = self.places.get(node)
            if not isinstance(node.op, Group) or len(node.types) != 1:
                continue
            if place is None or place.owner is not node or node in self.outputs:
                continue
            for value in node.inputs:
                held = self.places.get(value)
                last = all(order[u] <= at for u in self.users[value]) and value not in self.outputs
                if held is None or not last or value.type != node.type or held.layout != place.layout:
                    continue
                whole = isinstance(held.owner.op, Group) and held.owner not in self.halos
                if whole and overwrites(node, value, {value: held.layout, node: held.layout}):
                    self.places[node] = Place(held.owner, held.layout)
                    break

    def _own_layout(self, node: Node) -> Layout:
        """Row-major; with a gap after each row where the rows of a contraction's tile, or the places of an image that a
        depthwise convolution reads again, would share a few cache sets."""
        dense = Layout.contiguous(node.shape)
        if node.is_leaf or node in self.outputs or node.type.rank < 2:
            return dense
        width, anchors = node.shape[-1], self._anchors(node)
        if not isinstance(width, int) or width == 0 or width * node.dtype.nbytes % LINE:
            return dense
        windows = anchors and all(map(ops.is_depthwise, anchors))
        if not (_share_sets(node) if windows else anchors and width * node.dtype.nbytes % SETS == 0):
            return dense
        row = width + LINE // node.dtype.nbytes
        outer = Layout.contiguous((*node.shape[:-1], row))
        gapped = Layout(node.shape, outer.strides)
        return gapped if self._readable(node, gapped) else dense

    def _anchors(self, node: Node) -> list[Node]:
        """Contractions that read `node` as their first operand, row by row."""
        found: list[Node] = []
        for user in self.users.get(node, ()):
            if not isinstance(user.op, Group):
                continue
            params = {p for p, outer in zip(user.op.body.inputs, user.inputs, strict=True) if outer is node}
            contractions = (n for n in user.op.body.nodes() if is_contraction(n))
            found += [n for n in contractions if base_of(n.inputs[0]) in params]
        return found

    def _readable(self, value: Node, layout: Layout) -> bool:
        """Whether all loops that read `value` as memory can do so by `layout`."""
        if layout.is_contiguous:
            return True
        for user in self.users.get(value, ()):
            if not isinstance(user.op, Group):
                continue
            body = user.op.body
            params = {p: layout for p, outer in zip(body.inputs, user.inputs, strict=True) if outer is value}
            for n in body.nodes():
                if reads_memory(n) and not all(_fits(i, params) for i in n.inputs):
                    return False
        return True


def _found(layout: Layout) -> frozenset[str]:
    """The sizes that the run finds, of those that say where the elements lie."""
    names = frozenset[str]().union(*map(symbols_of, (*layout.strides, layout.offset)))
    return frozenset(filter(is_found, names))


def _share_sets(node: Node) -> bool:
    """Whether the places of an image, a vector of channels of each, do not fit the sets that they fall into of a
    first-level cache, as far as they fit its half; and lie far enough apart for a gap to cost little."""
    lines = static_shape(node.shape[-1:])[0] * node.dtype.nbytes // LINE
    places = min(512, estimate(product(node.shape[1:-1])))
    return lines >= 8 and places > 12 * 64 // gcd(lines, 64)


def reads_memory(node: Node) -> bool:
    """Anchors: ops that read their operands as strided memory, not element by element."""
    inline = (Category.ELEMENTWISE, Category.GATHER, Category.VIEW, Category.SOURCE, Category.REDUCTION)
    return category(node.op) not in inline and not node.is_leaf


def _fits(operand: Node, params: dict[Node, Layout]) -> bool:
    return base_of(operand) not in params or strided(operand, params) is not None


def _parts(node: Node, layout: Layout) -> list[tuple[Node, Layout]]:
    """The operands of a storage op that lie in it, with their layouts."""
    return [(x, layout.slice(start, x.shape)) for x, start in held_operands(node)]


def _with_copies(graph: Graph, misfits: dict[Node, set[int]]) -> Graph:
    """The graph with storage ops reading some of their operands through copies."""

    def copied(n: Node, inputs: Sequence[Node]) -> Node:
        at = misfits.get(n, ())
        return n.with_inputs([_unique_copy(x, n, i) if i in at else x for i, x in enumerate(inputs)])

    return graph.with_outputs(rebuilt(graph.outputs, rule=copied))


def _unique_copy(value: Node, user: Node, position: int) -> Node:
    """A copy that interning keeps apart from other copies of the same value."""
    p = Input(f"copy{user.id}_{position}", value.type)()
    return Group(Graph((p,), (p,)), "pointwise")(value, loc=value.loc)
