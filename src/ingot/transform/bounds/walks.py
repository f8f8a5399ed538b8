"""Bounds of values by backward walks: one row of coefficients for each bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.dims import product
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.transform.bounds.crown import Backward, Walk
from ingot.transform.bounds.rounding import Interval, maximum, minimum, where
from ingot.transform.repeat import rows_in_parts
from ingot.transform.vectorize import vectorize

_MIN_PARTS = 8  # for fewer a loop saves less than it costs to compile


def bounds_of(walk: Walk, targets: Sequence[Node], mapped: Mapping[Node, Node] | None = None) -> list[Interval]:
    """Bounds of each element of each target, by one walk; where rows are independent, `targets` have the same row axis.
    mapped: alphas by node, with one row for each lower bound, then one for each upper bound. Without alphas the bounds
    are intersected with the interval; with alphas they are not, because an alpha has no gradient where the interval's
    bound wins."""
    seeds = {x: Input(f"seed of a walk {i}", TensorType(f64, x.shape))() for i, x in enumerate(targets)}
    row = Backward(walk).run({x: Term(seed) for x, seed in seeds.items()})
    counts = [_element_count(walk, x) for x in targets]

    def rows(ids: Term) -> Node:
        """Of these numbers of all rows."""
        first, seed_rows = 0, dict[Node, Node]()
        for x, count in zip(targets, counts, strict=True):
            seed_rows[seeds[x]] = _seeds(walk, x, ids - first).node
            first += 2 * count
        return vectorize([row.node], {**seed_rows, **(mapped or {})})[0]

    total = 2 * sum(counts)
    parts = 1 if mapped or total <= _MIN_PARTS * walk.max_rows else -(-total // walk.max_rows)
    size = -(-total // parts)  # the last part may have rows of no element
    vectorized = rows_in_parts(parts, lambda i: rows(t.iota((size,), 0) + Term(i) * size))
    found: list[Interval] = []
    first = 0
    for x, count in zip(targets, counts, strict=True):
        found.append(
            _interval_from(walk, x, *(Term(vectorized).slice(0, at, at + count) for at in (first, first + count)))
        )
        first += 2 * count
    return found


def _element_count(walk: Walk, target: Node) -> int:
    """The number of elements that are not in independent rows."""
    axis = walk.rows.get(target)
    count = product(size for d, size in enumerate(target.shape) if d != axis)
    assert isinstance(count, int)
    return count


def _seeds(walk: Walk, target: Node, ids: Term) -> Term:
    """[rows, *target.shape]: 1 at element i of the target in the row of id i, -1 in that of id count + i, else 0."""
    axis, shape, count = walk.rows.get(target), target.shape, _element_count(walk, target)
    other_dims = [d for d in range(len(shape)) if d != axis]
    rows = (ids.shape[0], count)
    distance = ids.spread(rows, (0,)) - t.iota(rows, 1)
    seeds = distance.equals(0).cast(f64) - distance.equals(count).cast(f64)
    seeds = seeds.reshape((rows[0], *(shape[d] for d in other_dims)))
    return seeds.spread((rows[0], *shape), [0, *(d + 1 for d in other_dims)])


def _interval_from(walk: Walk, target: Node, lower_rows: Term, negated_upper_rows: Term) -> Interval:
    axis, shape = walk.rows.get(target), target.shape

    def bounds(rows: Term) -> Term:
        if axis is None:
            return rows.reshape(shape)
        return _rows_at(rows.reshape((*(s for d, s in enumerate(shape) if d != axis), shape[axis])), axis)

    lower, upper = bounds(lower_rows), -bounds(negated_upper_rows)
    if walk.alphas:
        return Interval(lower, upper)
    interval = walk.intervals.of(target)
    # an operand without bounds makes all rows NaN
    return Interval(
        where(lower.equals(lower), maximum(lower, interval.lower), interval.lower),
        where(upper.equals(upper), minimum(upper, interval.upper), interval.upper),
    )


def lower_bounds(walk: Walk, target: Node, mapped: Mapping[Node, Node]) -> tuple[Term, dict[Node, Term]]:
    """A lower bound of each element of the vector `target`, and for each perturbed input the coefficients of these
    bounds, [elements, *input]. mapped: alphas by node, with a row for each element."""
    (count,) = target.shape
    seed = Input("seed of a walk", TensorType(f64, target.shape))()
    backward = Backward(walk)
    row = backward.run({target: Term(seed)})
    seeds = t.iota((count, count), 0).equals(t.iota((count, count), 1)).cast(f64)
    leaves = list(backward.leaves)
    vectorized, *coefficients = vectorize(
        [row.node, *(backward.leaves[x].node for x in leaves)], {seed: seeds.node, **mapped}
    )
    interval_lower = walk.intervals.of(target).lower
    lower = Term(vectorized)
    lower = where(lower.equals(lower), maximum(lower, interval_lower), interval_lower)
    return lower, dict(zip(leaves, map(Term, coefficients), strict=True))


def _rows_at(x: Term, axis: int) -> Term:
    """Move the last axis, that of rows, to `axis`."""
    last = x.rank - 1
    return x.transpose((*range(axis), last, *range(axis, last)))
