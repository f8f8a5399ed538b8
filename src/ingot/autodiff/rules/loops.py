"""Loops and branches.

A loop with a known trip count is reversed. Values of iteration k that the reverse needs are either recorded by the
forward loop, one row per iteration (`with_history`), or computed from k, or loop-invariant. Matrix products are
recorded too, because recomputing them costs more; where memory is short, the forward loop records only the values at
the start of each iteration and the reverse recomputes the products. The gradient of a weight that every iteration reads
is computed once after the reverse loop, as one product of the rows of all iterations.

    for k in 0..n: v = body(v)        ->        for k in n-1..0: g = g pulled back through body at the k-th v
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

_MAX_ITERATIONS = 1 << 20


@dataclass(frozen=True)
class _BodyPullback:
    """The reverse of a loop body. active: indices of the carried values that have cotangents; seeds: inputs that hold
    the cotangents of an iteration's results; cotangents: those of the values at its start."""

    active: tuple[int, ...]
    seeds: tuple[Node, ...]
    cotangents: tuple[Node, ...]


def _pull_back_body(body: Graph, seeded: Sequence[int], floats: Sequence[int]) -> _BodyPullback:
    """seeded: indices of the results that have cotangents. They are extended to a fixed point by the carried `floats`
    that receive a cotangent in some iteration."""
    active = tuple(j for j in seeded if j in floats)
    while True:
        seeds = tuple(Input(f"cotangent {j}", body.inputs[j].type)() for j in active)
        pairs = [(body.results[j], seed) for j, seed in zip(active, seeds, strict=True)]
        gradients = dict(zip(floats, pull_back_cotangents(pairs, [body.inputs[j] for j in floats]), strict=True))
        new_active = tuple(j for j in floats if gradients[j] is not None or j in active)
        if new_active == active:
            break
        active = new_active
    gradients_of_active = tuple(_or_zeros(gradients[j], body.inputs[j]) for j in active)
    return _BodyPullback(active, seeds, gradients_of_active)


def _values_read(body: Graph, pulled: _BodyPullback, keeps_product: Callable[[Node], bool]) -> tuple[Node, ...]:
    """Body values that the reverse of an iteration reads: values at its start, and products for which `keeps_product`
    holds."""
    results, seeds = pulled.cotangents, pulled.seeds
    invariant = {x for x, y in zip(body.inputs, body.results, strict=True) if x is y}
    varying = {x for x in body.inputs if x not in invariant}
    cotangent_users: set[Node] = set(seeds)  # depend on cotangents
    for n in topological(results):
        if not cotangent_users.isdisjoint(n.inputs):
            cotangent_users.add(n)
        if not varying.isdisjoint(n.inputs):
            varying.add(n)

    def is_recorded(n: Node) -> bool:
        return is_contraction(n) and n not in cotangent_users and n in varying and keeps_product(n)

    used = topological(results, lambda n: () if is_recorded(n) else n.inputs)
    return tuple(n for n in used if is_recorded(n) or n in body.inputs)


def _or_zeros(g: Node | None, like: Node) -> Node:
    return ops.full(like.shape, 0, like.dtype) if g is None else g


def _count_of(node: Node) -> DimLike | None:
    """The trip count of a loop, or None unless it depends on nothing but constants or sizes."""
    op = node.op
    assert isinstance(op, ops.While)
    if (count := trip_count(op, lambda j: static_value(node.inputs[j]))) is not None:
        return count
    deciding: set[int] = set()
    roots = [op.cond.results[0]]
    reader = op.cond
    while True:
        used = set(topological(roots))
        added = {j for j, x in enumerate(reader.inputs) if x in used} - deciding
        if not added:
            break
        deciding |= added
        roots, reader = [op.body.results[j] for j in sorted(deciding)], op.body
    order = sorted(deciding)
    initial = [node.inputs[j] for j in order]
    if any(isinstance(n.op, Input) or n.op.draws or n.types[0].rank for n in topological(initial)):
        return None
    if any(isinstance(n.op, ops.DimValue) for n in topological([*initial, op.cond.results[0], *roots])):
        return None
    cond = Graph(tuple(op.cond.inputs[j] for j in order), op.cond.results)
    body = Graph(tuple(op.body.inputs[j] for j in order), tuple(op.body.results[j] for j in order))
    values = interpret(Graph((), tuple(initial)), [])
    for iteration in range(_MAX_ITERATIONS):
        if not interpret(cond, values)[0]:
            return iteration
        values = interpret(body, values)
    return None


def _stride(body: Graph, j: int) -> Node | None:
    """The constant that each iteration adds to carried integer j; None if there is none."""
    x, y = body.inputs[j], body.results[j]
    if not x.dtype.is_integer or not isinstance(y.op, ops.Add) or x not in y.inputs:
        return None
    step = y.inputs[0] if y.inputs[1] is x else y.inputs[1]
    return step if step.constant is not None else None


def _is_recomputable(body: Graph, value: Node) -> bool:
    """Whether the value of each iteration follows from its number or is loop-invariant, so that no row is needed."""
    if value not in body.inputs:
        return False
    j = body.inputs.index(value)
    return body.results[j] is value or _stride(body, j) is not None


def _row_of(node: Node, value: Node) -> int | None:
    """The index of the carried value whose row k is `value` in iteration k, or None."""
    op = node.op
    assert isinstance(op, ops.While)
    entry = op.body.inputs
    for s, y in enumerate(op.body.results):
        if not isinstance(y.op, ops.DynamicUpdateSlice) or y.inputs[0] is not entry[s]:
            continue
        _, row, at, *offsets = y.inputs
        is_indexed_by_iteration = at in entry and _is_iteration_number(node, entry.index(at))
        is_whole_value = row.op == ops.Reshape((1, *value.shape)) and row.inputs[0] is value
        if is_indexed_by_iteration and is_whole_value and all(_is(o, 0) for o in offsets):
            return s
    return None


def _is_iteration_number(node: Node, j: int) -> bool:
    """Whether carried value j is the number of the iteration."""
    op = node.op
    assert isinstance(op, ops.While)
    step = _stride(op.body, j)
    return step is not None and _is(step, 1) and _is(node.inputs[j], 0)


def _is(node: Node, value: int) -> bool:
    return node.constant is not None and node.constant.value.shape == () and int(node.constant.value) == value


def with_history(node: Node, products: bool) -> Node:
    """The loop, which now also records what its reverse reads of each iteration, as further carried values after its
    own; the same node where nothing is missing or it has no reverse. products: whether products are recorded too."""
    op = node.op
    assert isinstance(op, ops.While)
    floats = [j for j, t in enumerate(node.types) if t.dtype.is_float]
    try:
        pulled = _pull_back_body(op.body, floats, floats)
    except UnsupportedOpError:  # raised again if the loss depends on the loop
        return node
    return _with_rows(node, _values_read(op.body, pulled, lambda n: products))


def _missing(node: Node, reads: Sequence[Node]) -> list[Node]:
    """The values that the reverse needs and that the loop does not record yet."""
    op = node.op
    assert isinstance(op, ops.While)
    return [x for x in reads if not _is_recomputable(op.body, x) and _row_of(node, x) is None]


def _with_rows(node: Node, reads: Sequence[Node]) -> Node:
    op = node.op
    assert isinstance(op, ops.While)
    missing = _missing(node, reads)
    count = _count_of(node)
    if not missing or count is None:
        return node
    iteration = Input("turn", TensorType(i64))()
    rows = [Input(f"kept {i}", _rows(x, count))() for i, x in enumerate(missing)]
    added = (iteration, *rows)
    cond = replace(op.cond, inputs=(*op.cond.inputs, *added))
    updates = (ops.add(iteration, 1), *(_with_row(row, x, iteration) for x, row in zip(missing, rows, strict=True)))
    body = replace(op.body, inputs=(*op.body.inputs, *added), outputs=(*op.body.results, *updates), output_names=())
    return ops.While(cond, body)(*node.inputs, ops.scalar(0, i64), *(_zeros(row.type) for row in rows), loc=node.loc)


def _rows(x: Node, count: DimLike) -> TensorType:
    return TensorType(x.dtype, (dim_max(count, 1), *x.shape))


def _zeros(t: TensorType) -> Node:
    return ops.full(t.shape, 0, t.dtype)


def _with_row(rows: Node, x: Node, iteration: Node) -> Node:
    """`rows` with x as the row of the iteration."""
    zeros = [ops.scalar(0, i64)] * len(x.shape)
    return ops.DynamicUpdateSlice()(rows, ops.Reshape((1, *x.shape))(x), iteration, *zeros)


def _active_floats(body: Graph, is_wanted: Sequence[bool]) -> list[int]:
    """The carried floats that depend on those whose initial value needs a gradient (`is_wanted`)."""
    floats = [j for j, x in enumerate(body.inputs) if x.dtype.is_float]
    active = [j for j in floats if is_wanted[j]]
    order = topological(body.results, differentiable_operands)
    while True:
        depends = dependents(order, [body.inputs[j] for j in active])
        new_active = [j for j in floats if j in active or body.results[j] in depends]
        if new_active == active:
            return active
        active = new_active


@selective(ops.While)
def _while(node: Node, cotangents: Sequence[Node | None], is_wanted: Sequence[bool]) -> list[Node | None]:
    op = node.op
    assert isinstance(op, ops.While)
    count = _count_of(node)
    if count is None:
        raise no_rule(node, "a loop whose number of turns is neither a constant nor a size")
    seeded = [j for j, g in enumerate(cotangents) if g is not None]
    pulled = _pull_back_body(op.body, seeded, _active_floats(op.body, is_wanted))
    # the loop records everything but some products: `with_history` left them out, so they are recomputed
    recomputes_products = not _missing(node, _values_read(op.body, pulled, lambda n: False))
    reads = _values_read(op.body, pulled, lambda n: not recomputes_products or _row_of(node, n) is not None)
    loop = _with_rows(node, reads)
    k = Input("turn", TensorType(i64))()
    history = _ForwardValues(loop, k)
    images = dict(zip(pulled.seeds, pulled.seeds, strict=True))
    images |= {x: history.value(x) for x in reads}
    gradients = dict(zip(pulled.active, rebuild(pulled.cotangents, images), strict=True))
    seeds = dict(zip(pulled.active, pulled.seeds, strict=True))
    initial = {j: _or_zeros(cotangents[j], node.inputs[j]) for j in pulled.active}
    deferred = _DeferredSums(history, count)
    sums = {j: products for j in pulled.active if (products := deferred.sums(seeds[j], gradients[j])) is not None}
    carried = [j for j in pulled.active if j not in sums]
    entry = (k, *(seeds[j] for j in carried), *deferred.rows, *history.entry)
    stores = [_with_row(row, x, k) for x, row in zip(deferred.values, deferred.rows, strict=True)]
    body = Graph(entry, (ops.sub(k, 1), *(gradients[j] for j in carried), *stores, *history.entry))
    reverse_loop = ops.While(Graph(entry, (ops.compare("GE", k, 0),)), body)(
        ops.scalar(count - 1, i64), *(initial[j] for j in carried), *(_zeros(row.type) for row in deferred.rows),
        *history.operands, loc=node.loc,
    )  # fmt: skip
    totals = dict(zip(carried, reverse_loop.results[1:], strict=False))
    rows = dict(zip(deferred.rows, reverse_loop.results[1 + len(carried) :], strict=False))
    rows |= dict(zip(history.entry, history.operands, strict=True))
    for j, products in sums.items():
        totals[j] = initial[j]
        for product in rebuild(products, rows):
            totals[j] = ops.Add()(totals[j], product)
    return [totals.get(j) for j in range(len(node.inputs))]


class _DeferredSums:
    """Sums over all iterations, computed after a reverse loop. values: values of an iteration, whose rows over all
    iterations are in `rows`."""

    def __init__(self, forward_values: _ForwardValues, iterations: DimLike) -> None:
        self.forward_values, self.iterations = forward_values, iterations
        self.values: list[Node] = []
        self.rows: list[Node] = []

    def sums(self, seed: Node, gradient: Node) -> list[Node] | None:
        """The terms to add to the initial value of `seed`, to which each iteration only adds products: each product
        contracts the iteration as one more axis. None where an iteration does something else."""
        terms, pending = [], [gradient]
        while pending:
            n = pending.pop()
            if isinstance(n.op, ops.Add):
                pending += n.inputs
            else:
                terms.append(n)
        if terms.count(seed) != 1 or len(terms) == 1:
            return None
        chains = [self._product(n) for n in terms if n is not seed]
        if any(c is None or seed in topological([c[-1]]) for c in chains):
            return None
        return [self._over_turns(c) for c in chains if c is not None]

    def _product(self, n: Node) -> list[Node] | None:
        """The chain of views from a term down to its product, or None."""
        chain = [n]
        while chain[-1].op.permutes:
            chain.append(chain[-1].inputs[0])
        product = chain[-1]
        # an operand that is loop-invariant would have equal rows
        is_summable = isinstance(product.op, ops.DotGeneral) and not any(
            x in self.forward_values.entry for x in product.inputs
        )
        return chain if is_summable else None

    def _over_turns(self, chain: Sequence[Node]) -> Node:
        *views, product = chain
        op = product.op
        assert isinstance(op, ops.DotGeneral)
        shifted = [tuple(tuple(d + 1 for d in axes) for axes in pair) for pair in (op.batch, op.contract)]
        contract = tuple((0, *axes) for axes in shifted[1])
        total = replace(op, batch=shifted[0], contract=contract)(*(self._row(x) for x in product.inputs))
        for view in reversed(views):
            total = view.op(total)
        return total

    def _row(self, x: Node) -> Node:
        """The values of x in all iterations, stacked along a new first axis."""
        if (rows := self.forward_values.rows_of(x)) is not None:
            return rows
        if x not in self.values:
            self.values.append(x)
            self.rows.append(Input(f"all {len(self.rows)}", _rows(x, self.iterations))())
        return self.rows[self.values.index(x)]


class _ForwardValues:
    """What a reverse loop reads of its forward loop, as loop-invariant values."""

    def __init__(self, loop: Node, turn: Node) -> None:
        self.loop, self.turn = loop, turn
        self.entry: list[Node] = []
        self.operands: list[Node] = []
        self._rows: dict[Node, Node] = {}

    def value(self, x: Node) -> Node:
        """The value of body value x in the iteration."""
        op = self.loop.op
        assert isinstance(op, ops.While)
        j = op.body.inputs.index(x) if x in op.body.inputs else None
        if j is not None and op.body.results[j] is x:
            return self._read(self.loop.inputs[j])
        if j is not None and (step := _stride(op.body, j)) is not None:
            start = self._read(self.loop.inputs[j])
            return ops.add(start, ops.mul(ops.cast(self.turn, start.dtype), step))
        row = _row_of(self.loop, x)
        assert row is not None
        rows = self._read(self.loop.results[row])
        zero = ops.scalar(0, i64)
        row_slice = ops.DynamicSlice((1, *rows.shape[1:]))(rows, self.turn, *[zero] * (len(rows.shape) - 1))
        row_value = ops.Reshape(rows.shape[1:])(row_slice)
        self._rows[row_value] = rows
        return row_value

    def rows_of(self, x: Node) -> Node | None:
        """The rows from which `x` is one row."""
        return self._rows.get(x)

    def _read(self, x: Node) -> Node:
        if x in self.operands:
            return self.entry[self.operands.index(x)]
        self.operands.append(x)
        self.entry.append(Input(f"held {len(self.entry)}", x.type)())
        return self.entry[-1]


@selective(ops.Case)
def _case(node: Node, cotangents: Sequence[Node | None], is_wanted: Sequence[bool]) -> list[Node | None]:
    """The reverse of each branch, which recomputes the branch from the operands."""
    op, (index, *operands) = node.op, node.inputs
    assert isinstance(op, ops.Case)
    floats = [j for j, x in enumerate(operands) if x.dtype.is_float and is_wanted[j + 1]]
    seeded = {j: g for j, g in enumerate(cotangents) if g is not None}
    entry = tuple(Input(f"x{j}", x.type)() for j, x in enumerate(operands))
    seeds = {j: Input(f"cotangent {j}", g.type)() for j, g in seeded.items()}
    branches: list[Graph] = []
    for branch in op.branches:
        images: Mapping[Node, Node] = dict(zip(branch.inputs, entry, strict=True))
        results = rebuild(branch.results, dict(images))
        gradients = pull_back_cotangents([(results[j], seed) for j, seed in seeds.items()], [entry[j] for j in floats])
        outputs = tuple(_or_zeros(g, entry[j]) for j, g in zip(floats, gradients, strict=True))
        branches.append(Graph((*entry, *seeds.values()), outputs))
    if not floats:
        return [None] * len(node.inputs)
    gradient = ops.Case(tuple(branches))(index, *operands, *seeded.values(), loc=node.loc)
    of_operand = dict(zip(floats, gradient.results, strict=True))
    return [None, *(of_operand.get(j) for j in range(len(operands)))]
