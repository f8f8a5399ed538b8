"""Reduce chains of reshapes and transposes to their shortest form.

    reshape[8B,S,64] -> transpose(0,2,1) -> reshape[B,8,64,S] -> transpose(0,1,3,2)   ->   reshape[B,8,S,64]

The source's dimensions are split into atoms that the chain does not split further; the chain is then one permutation of
atoms between a split and a merge.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import DimLike, exact_quotient, product
from ingot.ir.node import Node, Op
from ingot.ir.rewrite import Rule, RuleSet
from ingot.ir.types import Shape
from ingot.support.dataclass import dataclass


@dataclass(frozen=True, eq=False)
class _Atom:
    """A part of a source dimension. path: sorts the parts of the source."""

    path: tuple[int, ...]
    size: DimLike


Dims = list[list[_Atom]]  # the atoms of each dimension of a value, outermost first


def _splits(dims: Dims, shape: Shape) -> tuple[Dims, dict[_Atom, tuple[_Atom, _Atom]]] | None:
    """The atoms regrouped to `shape`, splitting atoms where a new dimension ends inside one; None if that fails."""
    queue = [a for d in dims for a in d if a.size != 1]
    out: Dims = []
    cut: dict[_Atom, tuple[_Atom, _Atom]] = {}
    for size in shape:
        group: list[_Atom] = []
        remaining: DimLike = size
        while remaining != 1:
            if not queue:
                return None
            a = queue.pop(0)
            rest = exact_quotient(remaining, a.size)
            if rest is not None:
                group.append(a)
                remaining = rest
                continue
            inner = exact_quotient(a.size, remaining)
            if inner is None:
                return None
            head, tail = _Atom((*a.path, 0), remaining), _Atom((*a.path, 1), inner)
            cut[a] = (head, tail)
            group.append(head)
            queue.insert(0, tail)
            remaining = 1
        out.append(group)
    return None if queue else (out, cut)


def _apply_cuts(dims: Dims, cut: dict[_Atom, tuple[_Atom, _Atom]]) -> Dims:
    out: Dims = []
    for d in dims:
        group: list[_Atom] = []
        pending = list(d)
        while pending:
            a = pending.pop(0)
            if a in cut:
                pending = [*cut[a], *pending]
            else:
                group.append(a)
        out.append(group)
    return out


def _traced(chain: list[Node], dims: Dims, *tracked: Dims) -> tuple[Dims, ...] | None:
    """`dims` behind a chain of views, innermost last, and `tracked`, both of the atoms that the chain leaves; None if
    a view splits a dimension in a way that sizes do not tell."""
    for view in reversed(chain):
        if isinstance(view.op, ops.Transpose):
            dims = [dims[p] for p in view.op.permutation]
            continue
        split = _splits(dims, view.shape)
        if split is None:
            return None
        dims, cut = split
        tracked = tuple(_apply_cuts(t, cut) for t in tracked)
    return dims, *tracked


def _chain(n: Node) -> tuple[list[Node], Node, Dims] | None:
    """The chain of views that ends in `n`, the last one first, its source and the source's atoms; None if it is empty
    of elements."""
    chain: list[Node] = []
    source = n
    while isinstance(source.op, ops.Reshape | ops.Transpose):
        chain.append(source)
        source = source.inputs[0]
    if any(d == 0 for d in source.shape):
        return None
    return chain, source, [[_Atom((i,), d)] if d != 1 else [] for i, d in enumerate(source.shape)]


def _shorter(n: Node) -> Node | None:
    """A chain of three or more reshapes and transposes (two: where they cancel) -> split, transpose, merge"""
    found = _chain(n)
    traced = None if found is None else _traced(found[0], found[2], found[2])
    if found is None or traced is None:
        return None
    (chain, source, _), (dims, origin) = found, traced
    atoms = [a for d in origin for a in d]
    views = _permuted(source.shape, atoms, dims, n.shape)
    if views is None:
        views = _rebuilt(source.shape, atoms, [a for d in dims for a in d], n.shape)
    if len(views) >= len(chain):
        return None
    for op in views:
        source = op(source)
    return source


def views_between(base: Node, n: Node) -> list[Op] | None:
    """The views that turn `base` into `n`, another chain of reshapes and transposes of the same source, if they are a
    split and a transpose: those that strides express."""
    of_base, of_n = _chain(base), _chain(n)
    if of_base is None or of_n is None or of_base[1] is not of_n[1]:
        return None
    first = _traced(of_base[0], of_base[2], of_base[2])
    second = None if first is None else _traced(of_n[0], first[1], first[0])
    if second is None:
        return None
    dims, atoms = second[0], [a for d in second[1] for a in d]
    long = tuple(d for d in n.shape if d != 1)
    views = _permuted(base.shape, atoms, [d for d in dims if d], long)
    return views if views is None or long == n.shape else [*views, ops.Reshape(n.shape)]


def keeps_rows(n: Node) -> bool:
    """Whether neighbours in memory, of a chain of reshapes and transposes, are neighbours of its source."""
    found = _chain(n)
    traced = None if found is None else _traced(found[0], found[2], found[2])
    if traced is None:
        return False
    last, of_source = ([a for d in dims for a in d][-1:] for dims in traced)
    return last == of_source


def _of_view(operands: tuple[type[Op], ...]) -> bool:
    return operands[0] in (ops.Reshape, ops.Transpose)


def _permuted(source: Shape, origin: list[_Atom], dims: Dims, shape: Shape) -> list[Op] | None:
    """The chain as a split and a transpose to the dimensions of the result: a view of any strided source."""
    position = {a: i for i, a in enumerate(origin)}
    blocks = [[position[a] for a in d] for d in dims if d]
    if len(blocks) != len(shape) or any(b != list(range(b[0], b[0] + len(b))) for b in blocks):
        return None
    in_source = sorted(blocks)
    split = tuple(product(origin[i].size for i in b) for b in in_source)
    permutation = tuple(in_source.index(b) for b in blocks)
    views: list[Op] = []
    if source != split:
        views.append(ops.Reshape(split))
    if permutation != tuple(range(len(permutation))):
        views.append(ops.Transpose(permutation))
    return views


def _rebuilt(source: Shape, origin: list[_Atom], order: list[_Atom], shape: Shape) -> list[Op]:
    """The chain as at most a reshape, a transpose and a reshape."""
    position = {a: i for i, a in enumerate(origin)}
    blocks: list[list[int]] = []
    for a in order:
        index = position[a]
        if blocks and blocks[-1][-1] == index - 1:
            blocks[-1].append(index)
        else:
            blocks.append([index])
    in_source = sorted(blocks)
    split = tuple(product(origin[i].size for i in b) for b in in_source)
    permutation = tuple(in_source.index(b) for b in blocks)
    views: list[Op] = []
    shape_now = source
    if permutation != tuple(range(len(permutation))):
        keeps_long_dims = tuple(d for d in source if d != 1) == split
        if keeps_long_dims and len(split) != len(source) and len(shape) == len(source):
            transposed = _transpose_with_ones(source, permutation, shape)
            if transposed is not None:
                return [ops.Transpose(transposed)]
        if source != split:
            views.append(ops.Reshape(split))
        views.append(ops.Transpose(permutation))
        shape_now = tuple(split[p] for p in permutation)
    if shape_now != shape:
        views.append(ops.Reshape(shape))
    return views


def _transpose_with_ones(source: Shape, permutation: tuple[int, ...], shape: Shape) -> tuple[int, ...] | None:
    """One transpose that also moves the dimensions of size 1, if `shape` has the same ones."""
    sized = [i for i, d in enumerate(source) if d != 1]
    ones = [i for i, d in enumerate(source) if d == 1]
    order = [sized[p] for p in permutation]
    out = [ones.pop(0) if d == 1 and ones else order.pop(0) if order else -1 for d in shape]
    fits = not ones and not order and -1 not in out and tuple(source[i] for i in out) == shape
    return tuple(out) if fits else None


VIEW_CHAINS = RuleSet((
    Rule("reshape-chain", ops.Reshape, _shorter, _of_view),
    Rule("transpose-chain", ops.Transpose, _shorter, _of_view),
))  # fmt: skip
