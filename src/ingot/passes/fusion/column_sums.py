"""Reductions of the columns of a matrix, computed by the kernel that holds its rows.

    d = rows{gradient of a norm}(g, x);  w = rows{sum(g * x, 0)}(g, x);  b = rows{sum(d, 0)}(d)
    ->   d, w, b = rows_and_columns{gradient of a norm, sum(g * x, 0), sum(that, 0)}(g, x)

Training needs the first for the weight of the norm, and the second for the bias of the layer in front of it. The matrix
is then read once, and not at all for sums of results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.dims import DimLike, product
from ingot.ir.node import Graph, Node, topological
from ingot.ops import Reduce
from ingot.ops.group import is_used_by_element
from ingot.passes.fusion.epilogue_results import merge_readers
from ingot.passes.fusion.groups import body_of
from ingot.passes.fusion.merge import boxes_of, depths, is_group, op_count, producer_of, reductions_of
from ingot.passes.fusion.policy import FusionPolicy

_MIN_COLUMNS, _MAX_COLUMNS = 257, 1024  # of rows that are summed faster here: a tile has one or two of them
_MIN_READERS = 2  # groups of a holder: it takes longer with the columns of one than that takes apart
_Matrix = tuple[DimLike, DimLike]  # rows, columns


def join_column_sums(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph with reductions of columns merged into the groups that hold the rows, and the image of each
    node."""
    if not policy.joins_row_results:
        return graph, {}
    users, depth = graph.uses(), depths(graph)
    holders = {n: m for n in graph.nodes() if (m := _held_rows(n, policy)) is not None}
    readers: dict[Node, list[Node]] = {}
    for n in graph.nodes():
        matrix = None if n in holders else _summed_columns(n)
        if matrix is None:
            continue
        for holder in _candidates(n, users):
            if holders.get(holder) != matrix or not _can_join(holder, n, users, depth):
                continue
            if op_count((holder, *readers.get(holder, ()), n)) <= policy.max_ops:
                readers.setdefault(holder, []).append(n)
                break
    readers = {holder: members for holder, members in readers.items() if len(members) >= _MIN_READERS}
    return merge_readers(graph, readers, "rows_and_columns")


def _held_rows(n: Node, policy: FusionPolicy) -> _Matrix | None:
    """The matrix whose rows a group reduces, if they are short enough to be held and wide enough to be added."""
    if (box := _box(n)) is None:
        return None
    sized, reduced = box
    columns = product(size for d, size in sized.items() if d in reduced)
    is_held = isinstance(columns, int) and _MIN_COLUMNS <= columns <= min(_MAX_COLUMNS, policy.max_single_row)
    if not is_held or [*sized][-len(reduced) :] != reduced:
        return None
    return product(size for d, size in sized.items() if d not in reduced), columns


def _summed_columns(n: Node) -> _Matrix | None:
    """The matrix whose columns a group reduces, each reduction by itself, if it has no results but what is computed of
    these, and values of the matrix's elements."""
    if (box := _box(n)) is None:
        return None
    sized, reduced = box
    reductions = reductions_of(n)
    if [*sized][: len(reduced)] != reduced or not all(isinstance(m.op, Reduce) for m in reductions):
        return None
    if any(m in reductions for r in reductions for m in topological([r.inputs[0]])):
        return None
    matrix = tuple(product(size for d, size in sized.items() if (d in reduced) is of_rows) for of_rows in (True, False))
    for value in body_of(n).outputs:
        is_total = not {*reductions}.isdisjoint(topological([value]))
        if value.type.size != (matrix[1] if is_total else product(matrix)):
            return None
    return matrix[0], matrix[1]


def _box(n: Node) -> tuple[dict[int, DimLike], list[int]] | None:
    """The sizes of the dimensions that a row group traverses, without those of size 1, and which of them it reduces: a
    part of them. None for other groups."""
    if not is_group(n, "rows") or len(boxes := boxes_of(n)) != 1:
        return None
    ((shape, dims),) = boxes
    sized = {d: size for d, size in enumerate(shape) if size != 1}
    reduced = [d for d in sized if d in dims]
    return (sized, reduced) if 0 < len(reduced) < len(sized) else None


def _candidates(n: Node, users: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """The groups that compute an operand of a group, and then those that read one, too."""
    return list(dict.fromkeys((*map(producer_of, n.inputs), *(u for i in n.inputs for u in users[i]))))


def _can_join(holder: Node, n: Node, users: Mapping[Node, Sequence[Node]], depth: Mapping[Node, int]) -> bool:
    """Whether a group that reduces columns of the matrix reads no other matrix than `holder`, by element, and no
    operand of the merged group depends on it."""
    results = {holder, *holder.results}
    readers = [u for r in n.results for u in users.get(r, ())]
    if any(u.op.holds_operands for r in (*holder.results, *n.results) for u in users.get(r, ())):
        return False
    if readers and results.isdisjoint(n.inputs):  # they could be in front of the holder
        return False
    matrix_size = reductions_of(n)[0].inputs[0].type.size
    for p, i in zip(body_of(n).inputs, n.inputs, strict=True):
        if i not in results and not i.is_leaf and depth[i] >= depth[holder]:
            return False
        is_matrix = i.type.size == matrix_size
        if is_matrix and (i not in {*results, *holder.inputs} or not is_used_by_element(body_of(n), p)):
            return False
        if i in results and not is_matrix:
            return False
    return any(i.type.size == matrix_size for i in n.inputs)
