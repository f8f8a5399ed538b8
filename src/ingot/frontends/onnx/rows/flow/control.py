"""If, and what the graphs of control flow share: they take every outer value that they read as an operand.

If(cond)  ->  Case(cond; captured...)     or its branch, where the condition is known at import
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import islice

from ingot import ops
from ingot.frontends.onnx.call import AnyValue, Call, Equation, Missing, OpenSequence, Result, Sequence_, Value, onnx_op
from ingot.frontends.onnx.rows.flow.varying import Form, cases, common_form, in_form, in_room, smallest
from ingot.frontends.shared.composites.movement import with_shape
from ingot.frontends.shared.computed_sizes import Sizes, with_sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import symbols_of
from ingot.ir.node import Const, Graph, Input, Node
from ingot.ir.types import Shape
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError


@dataclass
class Captures:
    """Outer values that a subgraph reads, each an input of its graph; constants and known sizes need no input."""

    call: Call
    what: str = ""
    inputs: dict[Node, Node] = field(default_factory=dict)

    def __call__(self, v: Value) -> Value:
        if v.sym is not None or isinstance(v.node.op, Const):
            return v
        if v.node not in self.inputs:
            inner = Input(f"{self.call.loc}{self.what}.{len(self.inputs)}", v.node.type)()
            self.inputs[v.node] = inner
            self.call.importer.note_capture(inner, v.node)
        return Value(self.inputs[v.node])


def tensors_of(values: Sequence[AnyValue], what: str) -> list[Node]:
    nodes: list[Node] = []
    for v in values:
        if not isinstance(v, Value):
            raise Unsupported(f"{what} that is a sequence or could not be imported")
        nodes.append(v.node)
    return nodes


@onnx_op("If")
def if_(c: Call) -> Result:
    pred = c.value(0)
    if pred.sym is not None and pred.sym.is_constant:
        return _branch(c, bool(pred.sym.items.reshape(-1)[0]))
    captures, mark, wrong = Captures(c), c.importer.checkpoint(), None
    outputs: list[list[Node]] = []
    forms: list[Form | None] = []
    counts: list[int | None] = []
    inner_sizes: list[Sizes] = []
    rooms: list[Shape] = []
    varying: list[tuple[int, int]] = []
    try:
        branches: list[list[AnyValue]] = []
        for name in _BRANCHES:
            with c.importer.body() as sizes:
                branches.append(c.importer.run(c.graph(name), c, {}, captures))
                inner_sizes.append(sizes)
        counts = [_common_count(values) for values in zip(*branches, strict=True)]
        branches = [_members(values, counts) for values in branches]
        forms = [common_form(values, inner_sizes) for values in zip(*branches, strict=True)]
        outputs = [tensors_of(in_form(b, forms), "an If with a result") for b in branches]
        rooms, varying = cases(outputs, inner_sizes)
    except (Equation, ShapeError, Unsupported) as e:
        wrong = e
    if wrong is not None or varying or any(forms) or c.importer.checkpoint() != mark:
        # a branch that is not taken must not constrain sizes: decide the condition at import where possible
        checkpoint = c.importer.checkpoint()
        c.importer.roll_back(mark)
        what = str(wrong or "an If whose branches require other sizes, or have sequences or results of other sizes")
        is_taken = c.importer.decide(pred.node, what, is_needed=wrong is not None)
        if is_taken is not None:
            return _branch(c, is_taken)
        c.importer.roll_back(checkpoint)
    if wrong is not None:
        raise wrong
    body_inputs = tuple(captures.inputs.values())
    graphs: list[Graph] = []
    for nodes, sizes in zip(outputs, inner_sizes, strict=True):
        results = [*map(in_room, nodes, rooms), *(ops.scalar(nodes[k].shape[a], T.i64) for k, a in varying)]
        graphs.append(body_of(body_inputs, results, sizes))
    index = ops.cast(ops.reshape(pred.node, ()), T.i32)
    values = ops.Case(tuple(graphs))(index, *captures.inputs).results
    shapes = [list(room) for room in rooms]
    for (k, a), size in zip(varying, values[len(rooms) :], strict=True):
        low = smallest([nodes[k].shape[a] for nodes in outputs], inner_sizes)
        extra_size = ops.sub(size, ops.scalar(low, T.i64))
        shapes[k][a] = low + c.importer.computed_sizes.size(extra_size, rooms[k][a] - low, "chosen")
    parts = map(with_shape, values, map(tuple, shapes))
    results = zip(parts, forms, strict=True)
    return [
        _result(*next(results)) if count is None else Sequence_(tuple(Value(x) for x, _ in islice(results, count)))
        for count in counts
    ]


def _result(x: Node, form: Form | None) -> Node | OpenSequence:
    return x if form is None else OpenSequence(x, form.axis)


def _common_count(values: Sequence[AnyValue]) -> int | None:
    """The number of members of sequences with members of the same types, None for other values."""
    types = {
        tuple(item.type for item in v.items) if isinstance(v, Sequence_) and not v.is_absent else None for v in values
    }
    return len(members) if len(types) == 1 and (members := types.pop()) is not None else None


def _members(values: Sequence[AnyValue], counts: Sequence[int | None]) -> list[AnyValue]:
    """The values, with those that have a count replaced by their members."""
    pairs = zip(values, counts, strict=True)
    return [x for v, count in pairs for x in (v.items if count is not None and isinstance(v, Sequence_) else (v,))]


def body_of(inputs: Sequence[Node], outputs: Sequence[Node], sizes: Sizes) -> Graph:
    """A body's graph, with the sizes that it finds at run time; none of them may be in its results' types."""
    escaping = sorted(s for n in outputs for d in n.shape for s in symbols_of(d) if s in sizes)
    if escaping:
        raise Unsupported(f"a result inside control flow is of size {escaping[0]}, known in that part of the run only")
    return with_sizes(Graph(tuple(inputs), tuple(outputs)), sizes)


_BRANCHES = ("else_branch", "then_branch")


def _branch(c: Call, is_then: bool) -> Result:
    """The branch of an If, inlined."""
    return results_of(c.importer.run(c.graph(_BRANCHES[is_then]), c, {}, lambda v: v))


def results_of(values: Sequence[AnyValue]) -> list[Node | Value | Sequence_ | OpenSequence | None]:
    if any(isinstance(v, Missing) for v in values):
        raise Unsupported("its body could not be imported")
    return [v for v in values if not isinstance(v, Missing)]
