"""Loops and branches.

A loop of a known number of turns runs backwards: what its body reads of a turn was kept by the loop itself, in a row
for each value (`with_history`), or follows from the turn's number, or stays the same in all turns. Products are kept
as well, as computing them again would cost more, unless memory is short: the reverse of a loop that kept only what its
turns began with computes them again. Weights that all turns read have their gradient behind the loop, as
one product of the rows that all turns made.

    for k in 0..n: v = body(v)        ->        for k in n-1..0: g = pulled back through body at the k-th v
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff.reverse import dependents, pull_back_cotangents
from ingot.autodiff.table import differentiable_operands, no_rule, selective
from ingot.ir.dims import DimLike, dim_max
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, rebuild, topological
from ingot.ir.types import TensorType, i64
from ingot.ops.core.base import is_contraction
from ingot.ops.core.trip_count import static_value, trip_count
from ingot.support.dataclass import dataclass
from ingot.support.errors import UnsupportedOpError

_MOST_TURNS = 1 << 20


@dataclass(frozen=True)
class _Pulled:
    """A body's reverse. active: the carried values that have cotangents; seeds: these, of a turn's results, as inputs;
    found: of the values that the turn began with."""

    active: tuple[int, ...]
    seeds: tuple[Node, ...]
    found: tuple[Node, ...]


def _pulled(body: Graph, given: Sequence[int], floats: Sequence[int]) -> _Pulled:
    """given: the results that have cotangents. Those that others bring theirs to are found by going round, among
    `floats`."""
    active = tuple(j for j in given if j in floats)
    while True:
        seeds = tuple(Input(f"cotangent {j}", body.inputs[j].type)() for j in active)
        pairs = [(body.results[j], seed) for j, seed in zip(active, seeds, strict=True)]
        found = dict(zip(floats, pull_back_cotangents(pairs, [body.inputs[j] for j in floats]), strict=True))
        more = tuple(j for j in floats if found[j] is not None or j in active)
        if more == active:
            break
        active = more
    kept = tuple(_or_zeros(found[j], body.inputs[j]) for j in active)
    return _Pulled(active, seeds, kept)


def _read(body: Graph, pulled: _Pulled, products: Callable[[Node], bool]) -> tuple[Node, ...]:
    """What the reverse of a turn is made of: values that the turn began with, and those products of them."""
    found, seeds = pulled.found, pulled.seeds
    same = {x for x, y in zip(body.inputs, body.results, strict=True) if x is y}
    changing = {x for x in body.inputs if x not in same}
    later: set[Node] = set(seeds)  # what depends on cotangents
    for n in topological(found):
        if not later.isdisjoint(n.inputs):
            later.add(n)
        if not changing.isdisjoint(n.inputs):
            changing.add(n)

    def kept(n: Node) -> bool:
        return is_contraction(n) and n not in later and n in changing and products(n)

    used = topological(found, lambda n: () if kept(n) else n.inputs)
    return tuple(n for n in used if kept(n) or n in body.inputs)


def _or_zeros(g: Node | None, like: Node) -> Node:
    return ops.full(like.shape, 0, like.dtype) if g is None else g


def _turns(node: Node) -> DimLike | None:
    """How often the body of a loop runs, where constants or sizes alone decide."""
    op = node.op
    assert isinstance(op, ops.While)
    if (counted := trip_count(op, lambda j: static_value(node.inputs[j]))) is not None:
        return counted
    deciding: set[int] = set()
    roots = [op.cond.results[0]]
    reads = op.cond
    while True:
        used = set(topological(roots))
        more = {j for j, x in enumerate(reads.inputs) if x in used} - deciding
        if not more:
            break
        deciding |= more
        roots, reads = [op.body.results[j] for j in sorted(deciding)], op.body
    order = sorted(deciding)
    starts = [node.inputs[j] for j in order]
    if any(isinstance(n.op, Input) or n.op.draws or n.types[0].rank for n in topological(starts)):
        return None
    if any(isinstance(n.op, ops.DimValue) for n in topological([*starts, op.cond.results[0], *roots])):
        return None
    cond = Graph(tuple(op.cond.inputs[j] for j in order), op.cond.results)
    body = Graph(tuple(op.body.inputs[j] for j in order), tuple(op.body.results[j] for j in order))
    values = interpret(Graph((), tuple(starts)), [])
    for turn in range(_MOST_TURNS):
        if not interpret(cond, values)[0]:
            return turn
        values = interpret(body, values)
    return None


def _stride(body: Graph, j: int) -> Node | None:
    """What a carried integer grows by in each turn; None if it is not a constant."""
    x, y = body.inputs[j], body.results[j]
    if not x.dtype.is_integer or not isinstance(y.op, ops.Add) or x not in y.inputs:
        return None
    by = y.inputs[0] if y.inputs[1] is x else y.inputs[1]
    return by if by.constant is not None else None


def _follows(body: Graph, value: Node) -> bool:
    """Whether a value of the body needs no row of its own to be known of each turn."""
    if value not in body.inputs:
        return False
    j = body.inputs.index(value)
    return body.results[j] is value or _stride(body, j) is not None


def _row_of(node: Node, value: Node) -> int | None:
    """The carried value that keeps what a value of the body was in each turn."""
    op = node.op
    assert isinstance(op, ops.While)
    entry = op.body.inputs
    for s, y in enumerate(op.body.results):
        if not isinstance(y.op, ops.DynamicUpdateSlice) or y.inputs[0] is not entry[s]:
            continue
        _, part, at, *others = y.inputs
        counts = at in entry and _counts(node, entry.index(at))
        whole = part.op == ops.Reshape((1, *value.shape)) and part.inputs[0] is value
        if counts and whole and all(_is(o, 0) for o in others):
            return s
    return None


def _counts(node: Node, j: int) -> bool:
    """Whether carried value j is the turn's number."""
    op = node.op
    assert isinstance(op, ops.While)
    by = _stride(op.body, j)
    return by is not None and _is(by, 1) and _is(node.inputs[j], 0)


def _is(node: Node, value: int) -> bool:
    return node.constant is not None and node.constant.value.shape == () and int(node.constant.value) == value


def with_history(node: Node, products: bool) -> Node:
    """A loop that also keeps what its reverse reads of each turn, behind its own values; itself where nothing is
    missing or it has no reverse. products: these, too."""
    op = node.op
    assert isinstance(op, ops.While)
    floats = [j for j, t in enumerate(node.types) if t.dtype.is_float]
    try:
        pulled = _pulled(op.body, floats, floats)
    except UnsupportedOpError:  # told where the loss depends on the loop
        return node
    return _keeping(node, _read(op.body, pulled, lambda n: products))


def _missing(node: Node, reads: Sequence[Node]) -> list[Node]:
    """What a loop keeps no rows of, which its reverse would need."""
    op = node.op
    assert isinstance(op, ops.While)
    return [x for x in reads if not _follows(op.body, x) and _row_of(node, x) is None]


def _keeping(node: Node, reads: Sequence[Node]) -> Node:
    op = node.op
    assert isinstance(op, ops.While)
    missing = _missing(node, reads)
    count = _turns(node)
    if not missing or count is None:
        return node
    turn = Input("turn", TensorType(i64))()
    kept = [Input(f"kept {i}", _rows(x, count))() for i, x in enumerate(missing)]
    more = (turn, *kept)
    cond = replace(op.cond, inputs=(*op.cond.inputs, *more))
    after = (ops.add(turn, 1), *(_written(row, x, turn) for x, row in zip(missing, kept, strict=True)))
    body = replace(op.body, inputs=(*op.body.inputs, *more), outputs=(*op.body.results, *after), output_names=())
    return ops.While(cond, body)(*node.inputs, ops.scalar(0, i64), *(_zeros(row.type) for row in kept), loc=node.loc)


def _rows(x: Node, turns: DimLike) -> TensorType:
    return TensorType(x.dtype, (dim_max(turns, 1), *x.shape))


def _zeros(t: TensorType) -> Node:
    return ops.full(t.shape, 0, t.dtype)


def _written(rows: Node, x: Node, turn: Node) -> Node:
    """`rows` with x in the turn's place."""
    zeros = [ops.scalar(0, i64)] * len(x.shape)
    return ops.DynamicUpdateSlice()(rows, ops.Reshape((1, *x.shape))(x), turn, *zeros)


def _moving(body: Graph, wanted: Sequence[bool]) -> list[int]:
    """The carried floats that depend on those whose first values' cotangents are wanted."""
    floats = [j for j, x in enumerate(body.inputs) if x.dtype.is_float]
    found = [j for j in floats if wanted[j]]
    order = topological(body.results, differentiable_operands)
    while True:
        depends = dependents(order, [body.inputs[j] for j in found])
        more = [j for j in floats if j in found or body.results[j] in depends]
        if more == found:
            return found
        found = more


@selective(ops.While)
def _while(node: Node, cotangents: Sequence[Node | None], wanted: Sequence[bool]) -> list[Node | None]:
    op = node.op
    assert isinstance(op, ops.While)
    count = _turns(node)
    if count is None:
        raise no_rule(node, "a loop whose number of turns is neither a constant nor a size")
    given = [j for j, g in enumerate(cotangents) if g is not None]
    pulled = _pulled(op.body, given, _moving(op.body, wanted))
    # a loop that keeps all else was made without some products: they are computed again
    sparing = not _missing(node, _read(op.body, pulled, lambda n: False))
    reads = _read(op.body, pulled, lambda n: not sparing or _row_of(node, n) is not None)
    loop = _keeping(node, reads)
    k = Input("turn", TensorType(i64))()
    held = _Held(loop, k)
    images = dict(zip(pulled.seeds, pulled.seeds, strict=True))
    images |= {x: held.value(x) for x in reads}
    found = dict(zip(pulled.active, rebuild(pulled.found, images), strict=True))
    seeds = dict(zip(pulled.active, pulled.seeds, strict=True))
    first = {j: _or_zeros(cotangents[j], node.inputs[j]) for j in pulled.active}
    after = _Behind(held, count)
    sums = {j: products for j in pulled.active if (products := after.sums(seeds[j], found[j])) is not None}
    carried = [j for j in pulled.active if j not in sums]
    entry = (k, *(seeds[j] for j in carried), *after.rows, *held.entry)
    written = [_written(row, x, k) for x, row in zip(after.values, after.rows, strict=True)]
    body = Graph(entry, (ops.sub(k, 1), *(found[j] for j in carried), *written, *held.entry))
    made = ops.While(Graph(entry, (ops.compare("GE", k, 0),)), body)(
        ops.scalar(count - 1, i64), *(first[j] for j in carried), *(_zeros(row.type) for row in after.rows),
        *held.operands, loc=node.loc,
    )  # fmt: skip
    out = dict(zip(carried, made.results[1:], strict=False))
    rows = dict(zip(after.rows, made.results[1 + len(carried) :], strict=False))
    rows |= dict(zip(held.entry, held.operands, strict=True))
    for j, products in sums.items():
        out[j] = first[j]
        for product in rebuild(products, rows):
            out[j] = ops.Add()(out[j], product)
    return [out.get(j) for j in range(len(node.inputs))]


class _Behind:
    """Sums over all turns that are made behind a reverse loop. values: those of a turn that `rows` keep for them."""

    def __init__(self, held: _Held, turns: DimLike) -> None:
        self.held, self.turns = held, turns
        self.values: list[Node] = []
        self.rows: list[Node] = []

    def sums(self, seed: Node, found: Node) -> list[Node] | None:
        """What has to be added to the first value of `seed`, which each turn adds products to: these with the turn as
        one more axis that is summed over. None where a turn does something else."""
        terms, left = [], [found]
        while left:
            n = left.pop()
            if isinstance(n.op, ops.Add):
                left += n.inputs
            else:
                terms.append(n)
        if terms.count(seed) != 1 or len(terms) == 1:
            return None
        chains = [self._product(n) for n in terms if n is not seed]
        if any(c is None or seed in topological([c[-1]]) for c in chains):
            return None
        return [self._over_turns(c) for c in chains if c is not None]

    def _product(self, n: Node) -> list[Node] | None:
        """The views from a term down to the product that it shows."""
        chain = [n]
        while chain[-1].op.permutes:
            chain.append(chain[-1].inputs[0])
        product = chain[-1]
        # rows of what stays the same would all be alike
        each = isinstance(product.op, ops.DotGeneral) and not any(x in self.held.entry for x in product.inputs)
        return chain if each else None

    def _over_turns(self, chain: Sequence[Node]) -> Node:
        *views, product = chain
        op = product.op
        assert isinstance(op, ops.DotGeneral)
        moved = [tuple(tuple(d + 1 for d in axes) for axes in pair) for pair in (op.batch, op.contract)]
        contract = tuple((0, *axes) for axes in moved[1])
        found = replace(op, batch=moved[0], contract=contract)(*(self._row(x) for x in product.inputs))
        for view in reversed(views):
            found = view.op(found)
        return found

    def _row(self, x: Node) -> Node:
        """All turns' values of x, the turn in front."""
        if (kept := self.held.rows_of(x)) is not None:
            return kept
        if x not in self.values:
            self.values.append(x)
            self.rows.append(Input(f"all {len(self.rows)}", _rows(x, self.turns))())
        return self.rows[self.values.index(x)]


class _Held:
    """What a reverse loop reads of its loop, as values that stay the same in all of its turns."""

    def __init__(self, loop: Node, turn: Node) -> None:
        self.loop, self.turn = loop, turn
        self.entry: list[Node] = []
        self.operands: list[Node] = []
        self._rows: dict[Node, Node] = {}

    def value(self, x: Node) -> Node:
        """A value of the loop's body as it was in the turn."""
        op = self.loop.op
        assert isinstance(op, ops.While)
        j = op.body.inputs.index(x) if x in op.body.inputs else None
        if j is not None and op.body.results[j] is x:
            return self._read(self.loop.inputs[j])
        if j is not None and (by := _stride(op.body, j)) is not None:
            start = self._read(self.loop.inputs[j])
            return ops.add(start, ops.mul(ops.cast(self.turn, start.dtype), by))
        row = _row_of(self.loop, x)
        assert row is not None
        rows = self._read(self.loop.results[row])
        zero = ops.scalar(0, i64)
        part = ops.DynamicSlice((1, *rows.shape[1:]))(rows, self.turn, *[zero] * (len(rows.shape) - 1))
        found = ops.Reshape(rows.shape[1:])(part)
        self._rows[found] = rows
        return found

    def rows_of(self, x: Node) -> Node | None:
        """The rows that `x` is the turn's one of."""
        return self._rows.get(x)

    def _read(self, x: Node) -> Node:
        if x in self.operands:
            return self.entry[self.operands.index(x)]
        self.operands.append(x)
        self.entry.append(Input(f"held {len(self.entry)}", x.type)())
        return self.entry[-1]


@selective(ops.Case)
def _case(node: Node, cotangents: Sequence[Node | None], wanted: Sequence[bool]) -> list[Node | None]:
    """Each branch's reverse, computed from the operands again."""
    op, (index, *operands) = node.op, node.inputs
    assert isinstance(op, ops.Case)
    floats = [j for j, x in enumerate(operands) if x.dtype.is_float and wanted[j + 1]]
    given = {j: g for j, g in enumerate(cotangents) if g is not None}
    entry = tuple(Input(f"x{j}", x.type)() for j, x in enumerate(operands))
    seeds = {j: Input(f"cotangent {j}", g.type)() for j, g in given.items()}
    branches: list[Graph] = []
    for branch in op.branches:
        images: Mapping[Node, Node] = dict(zip(branch.inputs, entry, strict=True))
        results = rebuild(branch.results, dict(images))
        found = pull_back_cotangents([(results[j], seed) for j, seed in seeds.items()], [entry[j] for j in floats])
        outputs = tuple(_or_zeros(g, entry[j]) for j, g in zip(floats, found, strict=True))
        branches.append(Graph((*entry, *seeds.values()), outputs))
    if not floats:
        return [None] * len(node.inputs)
    made = ops.Case(tuple(branches))(index, *operands, *given.values(), loc=node.loc)
    of = dict(zip(floats, made.results, strict=True))
    return [None, *(of.get(j) for j in range(len(operands)))]
