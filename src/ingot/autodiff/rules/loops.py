"""Loops and branches.

A loop of a known number of turns runs backwards: what its body reads of a turn was kept by the loop itself, in a row
for each value (`with_history`), or follows from the turn's number, or stays the same in all turns.

    for k in 0..n: v = body(v)        ->        for k in n-1..0: g = pulled back through body at the k-th v
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff.reverse import pulled_back
from ingot.autodiff.table import RULES, no_rule
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Input, Node, rebuilt, topological
from ingot.ir.types import TensorType, i64
from ingot.support.dataclass import dataclass

_MOST_TURNS = 1 << 20


@dataclass(frozen=True)
class _Pulled:
    """A body's reverse. active: the carried values that have cotangents; seeds: these, of a turn's results, as inputs;
    found: of the values that the turn began with; reads: the carried values that `found` is made of."""

    active: tuple[int, ...]
    seeds: tuple[Node, ...]
    found: tuple[Node, ...]
    reads: tuple[int, ...]


def _pulled(body: Graph, given: Sequence[int]) -> _Pulled:
    """given: the results that have cotangents. Those that others bring theirs to are found by going round."""
    active = tuple(given)
    while True:
        seeds = tuple(Input(f"cotangent {j}", body.inputs[j].type)() for j in active)
        floats = [j for j, x in enumerate(body.inputs) if x.dtype.is_float]
        pairs = [(body.results[j], seed) for j, seed in zip(active, seeds, strict=True)]
        found = dict(zip(floats, pulled_back(pairs, [body.inputs[j] for j in floats]), strict=True))
        more = tuple(j for j in floats if found[j] is not None or j in active)
        if more == active:
            break
        active = more
    kept = tuple(_or_zeros(found[j], body.inputs[j]) for j in active)
    used = set(topological(kept))
    reads = tuple(j for j, x in enumerate(body.inputs) if x in used)
    return _Pulled(active, seeds, kept, reads)


def _or_zeros(g: Node | None, like: Node) -> Node:
    return ops.full(like.shape, 0, like.dtype) if g is None else g


def _turns(node: Node) -> int | None:
    """How often the body of a loop runs, where constants alone decide."""
    op = node.op
    assert isinstance(op, ops.While)
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
    return by if isinstance(by.op, Const) else None


def _follows(body: Graph, j: int) -> bool:
    """Whether the value of a turn needs no row of its own."""
    return body.results[j] is body.inputs[j] or _stride(body, j) is not None


def _row_of(node: Node, j: int) -> int | None:
    """The carried value that keeps what carried value j was in each turn."""
    op = node.op
    assert isinstance(op, ops.While)
    entry = op.body.inputs
    for s, y in enumerate(op.body.results):
        if not isinstance(y.op, ops.DynamicUpdateSlice) or y.inputs[0] is not entry[s]:
            continue
        _, part, at, *others = y.inputs
        counts = at in entry and _counts(node, entry.index(at))
        whole = part.op == ops.Reshape((1, *entry[j].shape)) and part.inputs[0] is entry[j]
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
    return isinstance(node.op, Const) and node.op.value.shape == () and int(node.op.value) == value


def with_history(node: Node) -> Node:
    """A loop that also keeps what its reverse reads of each turn, behind its own values; itself where nothing is
    missing or it has no reverse."""
    op = node.op
    assert isinstance(op, ops.While)
    floats = [j for j, t in enumerate(node.types) if t.dtype.is_float]
    if any(type(n.op) not in RULES and n.inputs for n in op.body.nodes() if n.op.name != "project"):
        return node
    return _keeping(node, _pulled(op.body, floats).reads)


def _keeping(node: Node, reads: Sequence[int]) -> Node:
    op = node.op
    assert isinstance(op, ops.While)
    missing = [j for j in reads if not _follows(op.body, j) and _row_of(node, j) is None]
    turns = _turns(node)
    if not missing or turns is None:
        return node
    turn, zero = Input("turn", TensorType(i64))(), ops.scalar(0, i64)
    rows = [TensorType(node.types[j].dtype, (max(turns, 1), *node.types[j].shape)) for j in missing]
    kept = [Input(f"kept {j}", row)() for j, row in zip(missing, rows, strict=True)]
    written = [
        ops.DynamicUpdateSlice()(
            row, ops.Reshape((1, *row.shape[1:]))(op.body.inputs[j]), turn, *[zero] * (len(row.shape) - 1)
        )
        for j, row in zip(missing, kept, strict=True)
    ]
    more = (turn, *kept)
    cond = replace(op.cond, inputs=(*op.cond.inputs, *more))
    after = (ops.add(turn, 1), *written)
    body = replace(op.body, inputs=(*op.body.inputs, *more), outputs=(*op.body.results, *after), output_names=())
    return ops.While(cond, body)(*node.inputs, zero, *(ops.full(r.shape, 0, r.dtype) for r in rows), loc=node.loc)


def _while(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    op = node.op
    assert isinstance(op, ops.While)
    turns = _turns(node)
    if turns is None:
        raise no_rule(node, "a loop whose number of turns is not a constant")
    given = [j for j, g in enumerate(cotangents) if g is not None]
    pulled = _pulled(op.body, given)
    loop = _keeping(node, pulled.reads)
    k = Input("turn", TensorType(i64))()
    held = _Held(loop, k)
    images = dict(zip(pulled.seeds, pulled.seeds, strict=True))
    images |= {op.body.inputs[j]: held.value(j) for j in pulled.reads}
    found = rebuilt(pulled.found, images)
    entry = (k, *pulled.seeds, *held.entry)
    body = Graph(entry, (ops.sub(k, 1), *found, *held.entry))
    starts = [cotangents[j] for j in pulled.active]
    first = [_or_zeros(g, node.inputs[j]) for j, g in zip(pulled.active, starts, strict=True)]
    made = ops.While(Graph(entry, (ops.compare("GE", k, 0),)), body)(
        ops.scalar(turns - 1, i64), *first, *held.operands, loc=node.loc
    )
    out = dict(zip(pulled.active, made.results[1:], strict=False))
    return [out.get(j) for j in range(len(node.inputs))]


class _Held:
    """What a reverse loop reads of its loop, as values that stay the same in all of its turns."""

    def __init__(self, loop: Node, turn: Node) -> None:
        self.loop, self.turn = loop, turn
        self.entry: list[Node] = []
        self.operands: list[Node] = []

    def value(self, j: int) -> Node:
        """Carried value j as the body had it in the turn."""
        op = self.loop.op
        assert isinstance(op, ops.While)
        if op.body.results[j] is op.body.inputs[j]:
            return self._read(self.loop.inputs[j])
        if (by := _stride(op.body, j)) is not None:
            start = self._read(self.loop.inputs[j])
            return ops.add(start, ops.mul(ops.cast(self.turn, start.dtype), by))
        row = _row_of(self.loop, j)
        assert row is not None
        rows = self._read(self.loop.results[row])
        zero = ops.scalar(0, i64)
        part = ops.DynamicSlice((1, *rows.shape[1:]))(rows, self.turn, *[zero] * (len(rows.shape) - 1))
        return ops.Reshape(rows.shape[1:])(part)

    def _read(self, x: Node) -> Node:
        if x in self.operands:
            return self.entry[self.operands.index(x)]
        self.operands.append(x)
        self.entry.append(Input(f"held {len(self.entry)}", x.type)())
        return self.entry[-1]


def _case(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """Each branch's reverse, computed from the operands again."""
    op, (index, *operands) = node.op, node.inputs
    assert isinstance(op, ops.Case)
    floats = [j for j, x in enumerate(operands) if x.dtype.is_float]
    given = {j: g for j, g in enumerate(cotangents) if g is not None}
    entry = tuple(Input(f"x{j}", x.type)() for j, x in enumerate(operands))
    seeds = {j: Input(f"cotangent {j}", g.type)() for j, g in given.items()}
    branches: list[Graph] = []
    for branch in op.branches:
        images: Mapping[Node, Node] = dict(zip(branch.inputs, entry, strict=True))
        results = rebuilt(branch.results, dict(images))
        found = pulled_back([(results[j], seed) for j, seed in seeds.items()], [entry[j] for j in floats])
        outputs = tuple(_or_zeros(g, entry[j]) for j, g in zip(floats, found, strict=True))
        branches.append(Graph((*entry, *seeds.values()), outputs))
    if not floats:
        return [None] * len(node.inputs)
    made = ops.Case(tuple(branches))(index, *operands, *given.values(), loc=node.loc)
    of = dict(zip(floats, made.results, strict=True))
    return [None, *(of.get(j) for j in range(len(operands)))]


RULES[ops.While] = _while
RULES[ops.Case] = _case
