"""Reductions of reshaped images run over the images' own dimensions.

    y = reshape[n,g,-1](x[n,c,h,w]);  z = y - broadcast(sum(y, 2))
      ->   z = x - broadcast[n,c,h,w](reshape[n,c](broadcast[n,g,k](sum(reshape[n,g,k](sum(x, (2, 3))), 2))))

Group norms are exported so. A reshape that joins or cuts channels holds an image to the order n, c, h, w: its kernels
would gather what lies as n, h, w, c. Where only arithmetic and reductions stand between the reshape and reshapes behind
it, the arithmetic is done on the image as it is. Exact but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.ir.dims import DimLike, divides
from ingot.ir.node import Graph, Node, rebuilt
from ingot.ir.types import Shape
from ingot.ops.core.base import Category, category
from ingot.support.dataclass import dataclass

Atoms = tuple[tuple[int, ...], ...]  # for each dimension the parts that it consists of, outermost first


@dataclass(frozen=True)
class _Cut:
    """Two shapes of one array cut into common parts: those of `image` and those of `other` run through the same
    numbers. Dimensions of size 1 have none."""

    sizes: Shape
    image: Atoms
    other: Atoms

    @staticmethod
    def of(image: Shape, other: Shape) -> _Cut | None:
        """None where the parts cannot be told."""
        sizes: list[DimLike] = []
        theirs: list[tuple[int, ...]] = []
        mine: list[list[int]] = [[] for _ in image]
        left = [(d, size) for d, size in enumerate(image) if size != 1]
        for want in other:
            run: list[int] = []
            while want != 1:
                if not left:
                    return None
                d, size = left[0]
                rest, more = divides(want, size), divides(size, want)
                if rest is not None:
                    piece, want = size, rest
                    left.pop(0)
                elif more is not None:
                    piece, want = want, 1
                    left[0] = (d, more)
                else:
                    return None
                run.append(len(sizes))
                mine[d].append(len(sizes))
                sizes.append(piece)
            theirs.append(tuple(run))
        return None if left else _Cut(tuple(sizes), tuple(map(tuple, mine)), tuple(theirs))

    def parts(self, dims: Sequence[int]) -> list[int]:
        """Those of some dimensions of `other`."""
        return [a for d in dims for a in self.other[d]]

    def shape(self, atoms: Sequence[int]) -> Shape:
        return tuple(self.sizes[a] for a in atoms)


@dataclass(frozen=True)
class _Region:
    """`root` is a reshape of an image; `inside` the arithmetic on it that can be done on the image."""

    root: Node
    cut: _Cut
    inside: frozenset[Node]

    @property
    def image(self) -> Shape:
        return self.root.inputs[0].shape


def reduce_unreshaped(graph: Graph) -> Graph:
    """Take reshapes from between images and their reductions (see module), where the graph has convolutions: without,
    images lie in the order of their dimensions."""
    if not any(isinstance(n.op, ops.Convolution) for n in graph.nodes()):
        return graph
    users, outputs = graph.uses(), set(graph.outputs)
    home: dict[Node, _Region] = {}
    for n in graph.nodes():
        if isinstance(n.op, ops.Reshape) and n not in home:
            region = _region(n, users, outputs)
            home |= dict.fromkeys(region.inside, region) if region is not None else {}
    if not home:
        return graph
    memo: dict[Node, Node] = {}  # those inside a region as images

    def unreshaped(n: Node, inputs: Sequence[Node]) -> Node:
        region = home.get(n)
        above = next((home[i] for i in n.inputs if i in home), None)
        if region is not None:
            return _inside(n, region, home, memo)
        if above is not None and isinstance(n.op, ops.Reduce):
            return _reduced(n, n.op, above, inputs[0])
        return n.op(*inputs, loc=n.loc) if isinstance(n.op, ops.Reshape) else n.with_inputs(inputs)

    return graph.with_outputs(rebuilt(graph.outputs, memo, unreshaped))


def _region(root: Node, users: dict[Node, list[Node]], outputs: set[Node]) -> _Region | None:
    """What can be done on the operand of the reshape `root`; None where that leads nowhere or nothing is reduced across
    or within its dimensions."""
    cut = _Cut.of(root.inputs[0].shape, root.shape)
    if cut is None or len(root.inputs[0].shape) < 3:
        return None
    owner = {a: d for d, atoms in enumerate(cut.image) for a in atoms}
    inside, stack, gains = {root}, [root], False
    while stack:
        n = stack.pop()
        if n in outputs:
            return None
        for u in users.get(n, ()):
            if isinstance(u.op, ops.Reshape) or u in inside:
                continue
            if isinstance(u.op, ops.Reduce):
                if u.dtype.is_float and u.dtype.bits < 32:
                    return None  # sums of parts would be rounded
                atoms = [cut.other[d] for d in u.op.dims]
                gains |= any(len(run) > 1 or any(len(cut.image[owner[a]]) > 1 for a in run) for run in atoms)
                continue
            if category(u.op) is not Category.ELEMENTWISE or u.shape != root.shape:
                return None
            if not all(_spreads(i, cut) for i in u.inputs):
                return None
            inside.add(u)
            stack.append(u)
    return _Region(root, cut, frozenset(inside)) if gains else None


def _spreads(node: Node, cut: _Cut) -> bool:
    """Whether an operand is no broadcast, or one that does not turn dimensions."""
    return not isinstance(node.op, ops.BroadcastInDim) or list(node.op.dims) == sorted(node.op.dims)


def _inside(n: Node, region: _Region, home: dict[Node, _Region], memo: dict[Node, Node]) -> Node:
    if n is region.root:
        x = memo[n.inputs[0]]  # of another shape where it is inside of another region
        return x if x.shape == region.image else ops.Reshape(region.image)(x, loc=n.loc)
    inputs: list[Node] = []
    for i in n.inputs:
        if home.get(i) is region:
            inputs.append(memo[i])
        elif isinstance(i.op, ops.BroadcastInDim) and i not in home:
            inputs.append(_broadcast(i, i.op, region, memo[i.inputs[0]]))
        else:
            inputs.append(ops.Reshape(region.image)(memo[i], loc=i.loc))
    return n.op(*inputs, loc=n.loc)


def _broadcast(n: Node, op: ops.BroadcastInDim, region: _Region, x: Node) -> Node:
    """`n`, a broadcast of `x` to the shape behind the reshape, as one to the image's."""
    cut = region.cut
    own = cut.parts([d for k, d in enumerate(op.dims) if x.shape[k] != 1])
    touched = [d for d, atoms in enumerate(cut.image) if any(a in own for a in atoms)]
    whole = [a for d in touched for a in cut.image[d]]
    y = ops.Reshape(cut.shape(own))(x, loc=n.loc)
    if whole != own:
        y = ops.BroadcastInDim(cut.shape(whole), tuple(whole.index(a) for a in own))(y, loc=n.loc)
    y = ops.Reshape(tuple(region.image[d] for d in touched))(y, loc=n.loc)
    return ops.BroadcastInDim(region.image, tuple(touched))(y, loc=n.loc)


def _reduced(n: Node, op: ops.Reduce, region: _Region, x: Node) -> Node:
    """`n`, a reduction behind the reshape, as one of the image `x`: over whole dimensions, then over parts."""
    cut = region.cut
    gone = cut.parts(op.dims)
    first = tuple(d for d, atoms in enumerate(cut.image) if all(a in gone for a in atoms))
    y = replace(op, dims=first)(x, loc=n.loc) if first else x
    left = [a for d, atoms in enumerate(cut.image) if d not in first for a in atoms]
    rest = tuple(k for k, a in enumerate(left) if a in gone)
    if rest:
        y = replace(op, dims=rest)(ops.Reshape(cut.shape(left))(y, loc=n.loc), loc=n.loc)
    return ops.Reshape(n.shape)(y, loc=n.loc)


__all__ = ["reduce_unreshaped"]
