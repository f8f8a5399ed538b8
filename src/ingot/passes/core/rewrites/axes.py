"""The axes of graphs of sums, products and views, and small sizes of them that speak for all sizes.

    dot(x, c0): [n, 768], [768, 3072] -> [n, 3072]        has three axes:  x [a, b], c0 [b, c], the result [a, c]

Most ops treat all positions of an axis alike: to permute an input's rows is to permute the result's. An axis that only
such ops read is *uniform*. Concatenated axes are a `Sum` of axes, merged ones a `Product`, and each part is uniform by
itself; what else an op does to an axis (a stride, a window, a reversal) fixes it at its own size.

Lemma. Two graphs are equal for all sizes of a uniform axis if they are at the sizes k, k + 1, ..., k + c, where k is
the largest number of coordinates on the axis that an element of a result and one monomial of it have, and c the number
of sums over the axis of which no factor depends on the position.
Proof. As ops commute with permutations, the coefficient of a monomial in an element depends only on which of their
coordinates are equal, so that all cases occur among k positions. A sum over the axis either runs over a position that
is a coordinate of the monomial, or gives a factor of the axis' size: a coefficient is a polynomial in it of degree c at
most, and two of them that agree at c + 1 sizes are equal.

A sum of the second kind takes a broadcast along its axis; without one, c = 0.

Axes that convolutions slide along are *windowed*. An open one of an input has a symbol h as its size.

Lemma. Two graphs are equal for all h if they are for h = 1, 2, ..., 2 r + s, where r is how far the windows of
convolutions one after the other reach to a side, and s the least common multiple of their strides, both in elements of
the first operand.
Proof. The polynomial of an element at position p of this operand depends on min(p, r) and min(h - 1 - p, r) alone, as
all that is farther away is neither read nor tells where the image ends. For h > 2 r + s each such pair is also that of
an element at size h - s: at p where p <= r, else at p - s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product as grid
from math import lcm

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv, is_at_most, is_static, product, substitute, symbols_of
from ingot.ir.node import Const, Graph, Input, Node
from ingot.ir.types import Shape
from ingot.passes.core.rewrites.match import bare_symbol
from ingot.support.dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Axis:
    """size: the one in the graph."""

    size: DimLike


@dataclass(frozen=True, eq=False)
class Sum:
    """An axis that is made of others, end to end."""

    parts: tuple[Label, ...]


@dataclass(frozen=True, eq=False)
class Product:
    """An axis that is made of others, the last one fastest."""

    parts: tuple[Label, ...]


Label = Axis | Sum | Product
Labels = tuple[Label, ...]


class Axes:
    """The axes of all nodes of `graphs`, which have the same inputs and the same types of results."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._graphs = graphs
        self._bound: dict[Axis, Label] = {}
        self._fixed: set[Axis] = set()
        self._windowed: set[Axis] = set()
        self._reach: dict[Node, int] = {}  # of the windows before a node, to a side
        self._stride: dict[Node, int] = {}  # of all convolutions before a node
        self._has_open_places = False  # a slice begins or ends at an open place that is no seam of its axis
        self._broadcast: list[Label] = []  # along which a value does not vary
        self._summed: dict[Node, Labels] = {}
        self._labels: dict[Node, Labels] = {}
        for g in graphs:
            for n, same in zip(g.inputs, graphs[0].inputs, strict=True):
                self._labels[n] = self._labels[same] if same in self._labels else self._new(same.shape)
            for n in g.nodes():
                if n not in self._labels:
                    self._labels[n] = self._of(n, [self._labels[i] for i in n.inputs])
            for n, same in zip(g.outputs, graphs[0].outputs, strict=True):
                self._unify_all(self._labels[n], self._labels[same])

    @property
    def hold_for_all_sizes(self) -> bool:
        """Whether each open size is that of uniform axes, and each open place one of their ends."""
        if self._has_open_places:
            return False
        summed = {leaf for labels in self._summed.values() for leaf in self._leaves(labels)}
        of_inputs = {leaf for n in self._graphs[0].inputs for leaf in self._leaves(self._labels[n])}

        def holds(leaf: Axis) -> bool:
            if leaf not in self._windowed:
                return leaf not in self._fixed
            # an input of another size, such as half of h, has not all small sizes among those of the lemma
            return leaf not in self._fixed | summed and (leaf not in of_inputs or bool(bare_symbol(leaf.size)))

        return all(isinstance(leaf.size, int) or holds(leaf) for leaf in self._all_leaves())

    def _all_leaves(self) -> set[Axis]:
        return {leaf for labels in self._labels.values() for leaf in self._leaves(labels)}

    def instances(self, degree: int) -> Iterator[list[Graph]]:
        """The graphs at sizes that speak for all, see the lemma. degree: of the largest monomial."""
        uniform: dict[Axis, int] = {}  # the largest number of coordinates of one value
        for labels in self._labels.values():
            for leaf, count in Counter(self._leaves(labels)).items():
                if leaf not in self._fixed and leaf not in self._windowed:
                    uniform[leaf] = max(uniform.get(leaf, 0), count)
        broadcast = set(self._leaves(self._broadcast))
        choices: list[range] = []
        for leaf, count in uniform.items():
            lowest = count * (1 + max(degree, 2))  # 2: exactly, where each rounding is of a sum of products of two
            highest_sums = max(self._sums(g, leaf) for g in self._graphs) if leaf in broadcast else 0
            choices.append(range(lowest, lowest + highest_sums + 1))
        windowed = [a for a in self._all_leaves() if a in self._windowed and not isinstance(a.size, int)]
        symbols = sorted({name for a in windowed for name in symbols_of(a.size)})
        most = 2 * max(self._reach.values()) + lcm(*self._stride.values())
        for values in grid(range(1, most + 1), repeat=len(symbols)):
            at = dict(zip(symbols, values, strict=True))
            of_windowed = {a: int(substitute(a.size, at)) for a in windowed}
            if min(of_windowed.values(), default=1) < 1:  # no image, or none that is as large as the window
                continue
            for sizes in grid(*choices):
                yield self._at(dict(zip(uniform, sizes, strict=True)) | of_windowed)

    def _sums(self, graph: Graph, axis: Axis) -> int:
        """The largest number of sums over an axis on the ways to an output."""
        counts: dict[Node, int] = {}
        for n in graph.nodes():
            of_operands = [counts[i] for i in n.inputs]
            if isinstance(n.op, ops.Mul | ops.DotGeneral | ops.Convolution):
                counts[n] = sum(of_operands) + Counter(self._leaves(self._summed.get(n, ())))[axis]
            else:
                counts[n] = max(of_operands, default=0)
        return max(counts[n] for n in graph.outputs)

    # Unification

    def _new(self, shape: Shape, fixed: bool = False) -> Labels:
        labels = tuple(map(Axis, shape))
        self._fixed.update(axis for axis in labels if fixed or axis.size == 1)
        return labels

    def _resolved(self, label: Label) -> Label:
        while isinstance(label, Axis) and label in self._bound:
            label = self._bound[label]
        return label

    def _leaves(self, labels: Iterable[Label]) -> Iterator[Axis]:
        for label in map(self._resolved, labels):
            if isinstance(label, Axis):
                yield label
            else:
                yield from self._leaves(label.parts)

    def _parts(self, kind: type[Sum] | type[Product], label: Label) -> list[Label]:
        """The parts of a label of a kind, those of its parts included; the label itself if it is another."""
        label = self._resolved(label)
        return [q for p in label.parts for q in self._parts(kind, p)] if isinstance(label, kind) else [label]

    def _joined(self, kind: type[Sum] | type[Product], labels: Iterable[Label]) -> Label:
        parts = [p for label in labels for p in self._parts(kind, label)]
        return parts[0] if len(parts) == 1 else kind(tuple(parts))

    def _size(self, label: Label) -> DimLike:
        label = self._resolved(label)
        if isinstance(label, Axis):
            return label.size
        sizes = [self._size(p) for p in label.parts]
        return product(sizes) if isinstance(label, Product) else sum(sizes[1:], sizes[0])

    def _fix(self, labels: Iterable[Label]) -> None:
        self._fixed.update(self._leaves(labels))

    def _unify_all(self, a: Labels, b: Labels) -> None:
        for x, y in zip(a, b, strict=True):
            self._unify(x, y)

    def _unify(self, a: Label, b: Label) -> None:
        """Make two labels of axes that an op treats as one the same; fix both if they are made of different parts."""
        a, b = self._resolved(a), self._resolved(b)
        if a is b:
            return
        if isinstance(b, Axis):
            a, b = b, a
        if isinstance(a, Axis):
            if a in self._leaves([b]):
                self._fix([b])
                return
            self._bound[a] = b
            if a in self._fixed or (a in self._windowed and not isinstance(b, Axis)):
                self._fix([b])
            elif a in self._windowed:
                self._windowed.update(self._leaves([b]))
            return
        assert not isinstance(b, Axis)
        kind = type(a)
        p, q = self._parts(kind, a), self._parts(kind, b)
        if len(p) == len(q) and [self._size(x) for x in p] == [self._size(y) for y in q]:
            self._unify_all(tuple(p), tuple(q))
        else:
            self._fix([a, b])

    # Ops

    def _of(self, n: Node, operands: list[Labels]) -> Labels:
        op = n.op
        self._reach[n] = max((self._reach.get(i, 0) for i in n.inputs), default=0)
        self._stride[n] = lcm(*(self._stride.get(i, 1) for i in n.inputs))
        match op:
            case Const():
                return self._new(n.shape, fixed=True)
            case ops.Transpose():
                return tuple(operands[0][p] for p in op.permutation)
            case ops.Reverse():
                self._fix(operands[0][d] for d in op.dims)
                return operands[0]
            case ops.Concat():
                return self._concatenated(op.dimension, operands)
            case ops.Slice():
                cuts = zip(operands[0], op.start, op.limit, op.strides, strict=True)
                return tuple(self._cut(*cut) for cut in cuts)
            case ops.BroadcastInDim():
                return self._broadcasted(n, op.dims, operands[0])
            case ops.Reshape():
                return self._reshaped(n.inputs[0].shape, n.shape, operands[0])
            case ops.DotGeneral():
                return self._multiplied(n, op, *operands)
            case ops.Convolution():
                return self._convolved(n, op, *operands)
        for other in operands[1:]:  # elementwise
            self._unify_all(operands[0], other)
        return operands[0]

    def _concatenated(self, dimension: int, operands: list[Labels]) -> Labels:
        first = list(operands[0])
        for other in operands[1:]:
            for d, (x, y) in enumerate(zip(first, other, strict=True)):
                if d != dimension:
                    self._unify(x, y)
        first[dimension] = self._joined(Sum, (labels[dimension] for labels in operands))
        return tuple(first)

    def _cut(self, label: Label, start: DimLike, limit: DimLike, stride: int) -> Label:
        """The part of an axis that a slice reads."""
        if stride == 1 and start == 0 and limit == self._size(label):
            return label
        if stride == 1 and self._split(label, start) and self._split(label, limit):
            position: DimLike = 0
            inside: list[Label] = []
            for part in self._parts(Sum, label):
                if is_at_most(start, position) and is_at_most(position + self._size(part), limit):
                    inside.append(part)
                position = position + self._size(part)
            if inside:
                return self._joined(Sum, inside)
        self._fix([label])
        self._has_open_places |= not is_static((start, limit))
        return self._new((ceildiv(limit - start, stride),), fixed=True)[0]

    def _split(self, label: Label, at: DimLike) -> bool:
        """Whether an axis is a sum with a seam at a position; an axis that is not yet split becomes one."""
        low: DimLike = 0
        for part in map(self._resolved, self._parts(Sum, label)):
            high = low + self._size(part)
            if at in (low, high):
                return True
            if is_at_most(low, at) and is_at_most(at, high):
                if not isinstance(part, Axis):
                    return False
                self._bound[part] = Sum(self._new((at - low, high - at), fixed=part in self._fixed | self._windowed))
                return True
            low = high
        return False

    def _broadcasted(self, n: Node, dims: Sequence[int], operand: Labels) -> Labels:
        labels = list(self._new(n.shape))
        for d, label in zip(dims, operand, strict=True):
            if self._size(label) == n.shape[d]:
                labels[d] = label
        self._broadcast += (label for d, label in enumerate(labels) if label not in operand)
        return tuple(labels)

    def _reshaped(self, before: Shape, after: Shape, operand: Labels) -> Labels:
        out: list[Label] = []
        i = j = 0
        while i < len(before) or j < len(after):
            if i < len(before) and j < len(after) and before[i] == after[j]:
                out.append(operand[i])
                i, j = i + 1, j + 1
            elif i < len(before) and before[i] == 1:
                i += 1
            elif j < len(after) and after[j] == 1:
                out += self._new((1,))
                j += 1
            else:
                p, q = _group(before[i:], after[j:])
                out += self._regrouped(operand[i : i + p], self._new(after[j : j + q]))
                i, j = i + p, j + q
        return tuple(out)

    def _regrouped(self, merged: Labels, split: Labels) -> Labels:
        """The labels `split` of axes of which those of `merged` have the elements, in the same order."""
        p, q = ([x for x in labels if self._size(x) != 1] for labels in (merged, split))
        if len(p) > 1 and len(q) > 1:
            self._fix((*p, *q))
        elif p and q:
            self._unify(self._joined(Product, p), self._joined(Product, q))
        return split

    def _multiplied(self, n: Node, op: ops.DotGeneral, a: Labels, b: Labels) -> Labels:
        for i, j in (*zip(*op.batch, strict=True), *zip(*op.contract, strict=True)):
            self._unify(a[i], b[j])
        self._summed[n] = tuple(a[i] for i in op.contract[0])
        batch = [a[i] for i in op.batch[0]]
        free = [
            x
            for labels, k in ((a, 0), (b, 1))
            for d, x in enumerate(labels)
            if d not in (*op.batch[k], *op.contract[k])
        ]
        return (*batch, *free)

    def _convolved(self, n: Node, op: ops.Convolution, image: Labels, filters: Labels) -> Labels:
        at, of = dict(zip(op.lhs_layout, image, strict=True)), dict(zip(op.rhs_layout, filters, strict=True))
        self._fix(of[c] for c in op.spatial)
        shared = dict(zip(op.out_layout, self._new(n.shape), strict=True))
        if op.feature_groups == op.batch_groups == 1:
            self._unify(at["C"], of["I"])
            self._summed[n] = (at["C"],)
            shared |= {"N": at["N"], "C": of["O"]}
        else:
            self._fix((at["N"], at["C"], of["O"], of["I"], shared["N"], shared["C"]))
        reach = 0
        for i, c in enumerate(op.spatial):
            (low, high), window = op.padding[i], n.inputs[1].shape[op.rhs_layout.index(c)]
            label = self._resolved(at[c])
            is_windowed = isinstance(label, Axis) and op.lhs_dilation[i] == 1 and isinstance(window, int)
            if is_windowed and is_static((low, high)) and min(int(low), int(high)) >= 0:
                reach = max(reach, int(low), int(high), op.rhs_dilation[i] * (int(window) - 1) - int(low))
                self._windowed.update(self._leaves((at[c], shared[c])))
            else:
                self._fix((at[c], shared[c]))
        self._reach[n] += self._stride[n] * reach
        self._stride[n] *= lcm(*op.strides)
        return tuple(shared[c] for c in op.out_layout)

    # Instances

    def _at(self, sizes: Mapping[Axis, int]) -> list[Graph]:
        """The graphs at other sizes of the uniform axes."""

        def value(label: Label) -> int:
            label = self._resolved(label)
            if isinstance(label, Axis):
                return sizes[label] if label in sizes else int(label.size)
            parts = list(map(value, label.parts))
            return int(product(parts)) if isinstance(label, Product) else sum(parts)

        def position(label: Label, at: DimLike) -> int:
            low: DimLike = 0
            small = 0
            for part in self._parts(Sum, label):
                if low == at:
                    return small
                low, small = low + self._size(part), small + value(part)
            return small if low == at else int(at)  # of a fixed axis

        made: dict[Node, Node] = {}
        for g in self._graphs:
            for n in g.nodes():
                if n in made:
                    continue
                op, operands = n.op, [made[i] for i in n.inputs]
                shape = tuple(map(value, self._labels[n]))
                if isinstance(op, Input):
                    op = Input(op.label, n.type.with_shape(shape))
                elif isinstance(op, ops.Reshape):
                    op = ops.Reshape(shape)
                elif isinstance(op, ops.BroadcastInDim):
                    op = ops.BroadcastInDim(shape, op.dims)
                elif isinstance(op, ops.Slice):
                    start, limit = (
                        tuple(position(x, at) for x, at in zip(self._labels[n.inputs[0]], ats, strict=True))
                        for ats in (op.start, op.limit)
                    )
                    op = ops.Slice(start, limit, op.strides)
                made[n] = op(*operands)
                n.op.expect(made[n].shape == shape, f"expected {shape} at small sizes, got {made[n].shape}")
        return [Graph(tuple(made[n] for n in g.inputs), tuple(made[n] for n in g.outputs)) for g in self._graphs]


def _group(before: Shape, after: Shape) -> tuple[int, int]:
    """The shortest leading parts of two shapes that have as many elements."""
    lengths = grid(range(1, len(before) + 1), range(1, len(after) + 1))
    for p, q in sorted(lengths, key=sum):
        if product(before[:p]) == product(after[:q]):
            return p, q
    return len(before), len(after)
