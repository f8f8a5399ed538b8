"""Reduce reshaped images over the dimensions of the images themselves.

    y = reshape[n,g,-1](x[n,c,h,w]);  z = y - broadcast(sum(y, 2))
      ->   z = x - broadcast[n,c,h,w](reshape[n,c](broadcast[n,g,k](sum(reshape[n,g,k](sum(x, (2, 3))), 2))))

Group norms are exported like this. A reshape that merges or splits channels requires the order n, c, h, w: kernels
would gather from an image stored as n, h, w, c. If only arithmetic and reductions are between the reshape and later
reshapes, the arithmetic is done on the image itself. Exact but for the order of sums.

A target may reduce small slices, such as groups of channels, in one pass over a box of parts in the order of memory:

    y = reshape[n,h,w,g,k](transpose[n,h,w,c](x));  z = y - broadcast(sum(y, (1, 2, 4)))

So dependent sums run over one box. Other readers of z use the image, which is computed separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.ir.dims import DimLike, estimate, exact_quotient, product
from ingot.ir.node import Graph, Node, rebuild
from ingot.ir.types import Shape
from ingot.ops.core.base import Category, category
from ingot.passes.core.layout import has_images
from ingot.support.dataclass import dataclass

Atoms = tuple[tuple[int, ...], ...]  # the parts of each dimension, outermost first


@dataclass(frozen=True)
class _Cut:
    """The common refinement of two shapes of one array into parts.

    sizes: of the parts. image, target: the parts of each dimension of either shape; those of size 1 have none.
    """

    sizes: Shape
    image: Atoms
    target: Atoms

    @staticmethod
    def of(image: Shape, other: Shape) -> _Cut | None:
        """The common parts of two shapes; None where they cannot be determined."""
        sizes: list[DimLike] = []
        other_parts: list[tuple[int, ...]] = []
        image_parts: list[list[int]] = [[] for _ in image]
        remaining = [(d, size) for d, size in enumerate(image) if size != 1]
        for want in other:
            parts: list[int] = []
            while want != 1:
                if not remaining:
                    return None
                d, size = remaining[0]
                rest, inner = exact_quotient(want, size), exact_quotient(size, want)
                if rest is not None:
                    piece, want = size, rest
                    remaining.pop(0)
                elif inner is not None:
                    piece, want = want, 1
                    remaining[0] = (d, inner)
                else:
                    return None
                parts.append(len(sizes))
                image_parts[d].append(len(sizes))
                sizes.append(piece)
            other_parts.append(tuple(parts))
        return None if remaining else _Cut(tuple(sizes), tuple(map(tuple, image_parts)), tuple(other_parts))

    def splits_batch_alone(self) -> bool:
        """Whether all dimensions of the image but the first are dimensions of the other shape, too: heads of a batch of
        matrices."""
        return all(not parts or parts in self.target for parts in self.image[1:])

    def parts(self, dims: Sequence[int]) -> list[int]:
        """The parts of some dimensions of `target`."""
        return [a for d in dims for a in self.target[d]]

    def shape(self, atoms: Sequence[int]) -> Shape:
        return tuple(self.sizes[a] for a in atoms)


@dataclass(frozen=True)
class _Region:
    """root: a reshape of an image. nodes: the arithmetic after it that can be done on the image. is_whole: whether
    reductions run over the box of parts."""

    root: Node
    cut: _Cut
    nodes: frozenset[Node]
    is_whole: bool

    @property
    def image(self) -> Shape:
        return self.root.inputs[0].shape

    @property
    def order(self) -> tuple[int, ...]:
        """The order of an image with channels last."""
        return 0, *range(2, len(self.image)), 1

    @property
    def box(self) -> Atoms:
        return tuple((a,) for d in self.order for a in self.cut.image[d])

    def boxed(self, x: Node) -> Node:
        """The image `x` as the box of parts."""
        return ops.Reshape(self.cut.shape([a for (a,) in self.box]))(ops.Transpose(self.order)(x))


def reduce_unreshaped(graph: Graph, max_slice_elements: int = 0) -> Graph:
    """Remove reshapes between images and their reductions (see module), if the graph has images that are stored
    channels last: others are in the order of their dimensions. max_slice_elements: of the largest slice that is reduced
    in one pass."""
    if not has_images(graph):
        return graph
    users, outputs = graph.uses(), set(graph.outputs)
    region_of: dict[Node, _Region] = {}
    for n in graph.nodes():
        if isinstance(n.op, ops.Reshape) and n not in region_of:
            region = _region(n, users, outputs, max_slice_elements)
            region_of |= dict.fromkeys(region.nodes, region) if region is not None else {}
    if not region_of:
        return graph
    memo: dict[Node, Node] = {}  # nodes inside a region, as images
    boxes: dict[Node, Node] = {}  # the same, as boxes of parts

    def unreshaped(n: Node, inputs: Sequence[Node]) -> Node:
        region = region_of.get(n)
        operand_region = next((region_of[i] for i in n.inputs if i in region_of), None)
        if region is not None:
            if region.is_whole:
                boxes[n] = _computed_inside(n, region, region_of, memo, boxes)
            return _computed_inside(n, region, region_of, memo)
        if operand_region is not None and isinstance(n.op, ops.Reduce):
            return (
                _reduced_at_once(n, n.op, operand_region, boxes)
                if operand_region.is_whole
                else _reduced(n, n.op, operand_region, inputs[0])
            )
        return n.op(*inputs, loc=n.loc) if isinstance(n.op, ops.Reshape) else n.with_inputs(inputs)

    return graph.with_outputs(rebuild(graph.outputs, memo, unreshaped))


def _region(root: Node, users: dict[Node, list[Node]], outputs: set[Node], max_elements: int) -> _Region | None:
    """The region of the reshape `root`; None if it is not supported, or if no reduction is across or within its
    dimensions."""
    cut = _Cut.of(root.inputs[0].shape, root.shape)
    if cut is None or len(root.inputs[0].shape) < 3 or cut.splits_batch_alone():
        return None
    owner = {a: d for d, atoms in enumerate(cut.image) for a in atoms}
    inside, stack, gains, largest = {root}, [root], False, 0
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
                atoms = [cut.target[d] for d in u.op.dims]
                largest = max(largest, estimate(product(cut.shape(cut.parts(u.op.dims)))))
                gains |= any(len(run) > 1 or any(len(cut.image[owner[a]]) > 1 for a in run) for run in atoms)
                continue
            if category(u.op) is not Category.ELEMENTWISE or u.shape != root.shape:
                return None
            if not all(_keeps_dim_order(i, cut) for i in u.inputs):
                return None
            inside.add(u)
            stack.append(u)
    return _Region(root, cut, frozenset(inside), largest <= max_elements) if gains else None


def _keeps_dim_order(node: Node, cut: _Cut) -> bool:
    """Whether an operand is not a broadcast, or one that keeps the order of dimensions."""
    return not isinstance(node.op, ops.BroadcastInDim) or list(node.op.dims) == sorted(node.op.dims)


def _computed_inside(
    n: Node,
    region: _Region,
    region_of: dict[Node, _Region],
    memo: dict[Node, Node],
    boxes: dict[Node, Node] | None = None,
) -> Node:
    """`n` as an image, or as a box of parts with operands from `boxes`."""
    images, parts = (memo, region.cut.image) if boxes is None else (boxes, region.box)

    def placed(x: Node) -> Node:  # its shape differs if it is in another region or not an image
        x = x if x.shape == region.image else ops.Reshape(region.image)(x, loc=n.loc)
        return x if boxes is None else region.boxed(x)

    if n is region.root:
        return placed(memo[n.inputs[0]])
    inputs: list[Node] = []
    for i in n.inputs:
        if region_of.get(i) is region:
            inputs.append(images[i])
        elif isinstance(i.op, ops.BroadcastInDim) and i not in region_of:
            inputs.append(_broadcast(i, i.op, region.cut, parts, memo[i.inputs[0]]))
        else:
            inputs.append(placed(memo[i]))
    return n.op(*inputs, loc=n.loc)


def _broadcast(n: Node, op: ops.BroadcastInDim, cut: _Cut, runs: Atoms, x: Node) -> Node:
    """`n`, a broadcast of `x` to the reshaped shape, as a broadcast to dimensions that are `runs` of parts."""
    source_parts = cut.parts([d for k, d in enumerate(op.dims) if x.shape[k] != 1])
    touched = [d for d, atoms in enumerate(runs) if any(a in source_parts for a in atoms)]
    all_parts = [a for d in touched for a in runs[d]]
    present = [a for a in all_parts if a in source_parts]
    y = ops.Reshape(cut.shape(source_parts))(x, loc=n.loc)
    if present != source_parts:
        y = ops.Transpose(tuple(source_parts.index(a) for a in present))(y, loc=n.loc)
    if all_parts != present:
        y = ops.BroadcastInDim(cut.shape(all_parts), tuple(all_parts.index(a) for a in present))(y, loc=n.loc)
    y = ops.Reshape(tuple(product(cut.shape(runs[d])) for d in touched))(y, loc=n.loc)
    return ops.BroadcastInDim(tuple(product(cut.shape(run)) for run in runs), tuple(touched))(y, loc=n.loc)


def _reduced_at_once(n: Node, op: ops.Reduce, region: _Region, boxes: dict[Node, Node]) -> Node:
    """`n`, a reduction after the reshape, as a reduction of the box of parts."""
    reduced, parts = region.cut.parts(op.dims), [a for (a,) in region.box]
    y = replace(op, dims=tuple(k for k, a in enumerate(parts) if a in reduced))(boxes[n.inputs[0]], loc=n.loc)
    remaining = [a for a in parts if a not in reduced]
    if remaining != sorted(remaining):
        y = ops.Transpose(tuple(remaining.index(a) for a in sorted(remaining)))(y, loc=n.loc)
    return ops.Reshape(n.shape)(y, loc=n.loc)


def _reduced(n: Node, op: ops.Reduce, region: _Region, x: Node) -> Node:
    """`n`, a reduction after the reshape, as a reduction of the image `x`: over whole dimensions, then over parts."""
    cut = region.cut
    reduced = cut.parts(op.dims)
    full_dims = tuple(d for d, atoms in enumerate(cut.image) if all(a in reduced for a in atoms))
    y = replace(op, dims=full_dims)(x, loc=n.loc) if full_dims else x
    remaining = [a for d, atoms in enumerate(cut.image) if d not in full_dims for a in atoms]
    inner = tuple(k for k, a in enumerate(remaining) if a in reduced)
    if inner:
        y = replace(op, dims=inner)(ops.Reshape(cut.shape(remaining))(y, loc=n.loc), loc=n.loc)
    return ops.Reshape(n.shape)(y, loc=n.loc)


__all__ = ["reduce_unreshaped"]
