"""One walk over the nodes that the outputs need: values by name, a row or a function for each node.

given tensors (inputs, cuts)  ->  values by name
node                          ->  its row's results, or those of its function's body in its place
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.places import locate, next_id
from ingot.frontends.shared.refusal import MALFORMED_ERRORS, Unsupported, located, malformed
from ingot.frontends.shared.rows import check_operands
from ingot.frontends.shared.sizes import Sizes
from ingot.frontends.tensorflow.bundle import Bundle
from ingot.frontends.tensorflow.functional import CONTROL_FLOW_OPS
from ingot.frontends.tensorflow.proto import Function, FunctionDef, NodeDef
from ingot.frontends.tensorflow.rows import ROWS
from ingot.frontends.tensorflow.rows.algebra.complex import on_complex, on_parts
from ingot.frontends.tensorflow.values import Call, Frame, Missing, Row, TensorList, Value, Variable
from ingot.ir.dims import Dim, DimLike, bounds
from ingot.ir.node import Input, Node, topological
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, ShapeError, UnsupportedOp
from ingot.support.limits import check_time, spend_node

_MAX_CALL_DEPTH = 64
# they check and print: no value depends on them
_IGNORED = frozenset(("Assert", "Print", "PrintV2"))
# those that have no row, such as optimizers' steps, are refused even where no output needs them
_WRITING_OPS = re.compile(
    "Assign(Add|Sub)?(VariableOp)?$|Resource(Scatter|StridedSliceAssign|Apply|SparseApply|CountUpTo)"
    "|(Sparse)?Apply[A-Z]|Scatter(Nd)?(Update|Add|Sub|Mul|Div|Min|Max)$|StridedSliceAssign|CountUpTo$"
)
_TABLE_OPS = ("Table", "Hash", "String", "Regex", "Substr", "Unicode", "Lookup")


class WrittenVariable(Exception):
    """A variable turns out to be written: the import starts again with it as state."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


@dataclass
class Walk:
    """The state of one import.

    overrides: tensors by their places, `name:0`, instead of what computes them. variables: what is in them now. state:
    keys of those that the model writes, with the inputs that they are at first. refused: whether or not an output needs
    it. has_lost_writes: whether something that was refused is written to a variable. upper_bounds: of the counters of
    loops. appends: counters of loops with the lists whose lengths they are."""

    functions: Mapping[str, FunctionDef]
    overrides: Mapping[str, Value]
    sizes: Sizes
    bundle: Bundle | None = None
    variables: dict[str, Node] = field(default_factory=dict[str, Node])
    state: dict[str, Node] = field(default_factory=dict[str, Node])
    is_restoring: bool = False
    refused: list[UnsupportedOp] = field(default_factory=list[UnsupportedOp])
    has_lost_writes: bool = False
    cuts: dict[str, None] = field(default_factory=dict[str, None])
    conditions: dict[Dim, None] = field(default_factory=dict[Dim, None])
    computed_sizes: ComputedSizes = field(default_factory=ComputedSizes)
    upper_bounds: dict[Node, DimLike] = field(default_factory=dict[Node, DimLike])
    appends: set[tuple[Node, TensorList]] = field(default_factory=set[tuple[Node, TensorList]])
    is_finding: bool = True
    _draws: int = 0
    _writes: dict[str, bool] = field(default_factory=dict[str, bool])

    def run(self, frame: Frame, tensors: Sequence[str], nodes: Sequence[str] = ()) -> list[Value]:
        """The values of `tensors`; `nodes` are run for their effects."""
        pending = [self._place(frame, t)[0] for t in tensors]
        self._run([n for n in (*pending, *nodes) if n], frame)
        return [self.value(frame, t) for t in tensors]

    def value(self, frame: Frame, tensor: str) -> Value:
        name, index = self._place(frame, tensor)
        if not name:
            assert frame.arguments is not None
            return frame.arguments[tensor]
        value = self._given_value(frame, name, index)
        if value is not None:
            return value
        values = frame.values[name]
        if isinstance(values, Missing):
            return Missing(f"{frame.prefix}{name}:{index}" if values.cut else "")
        if index >= len(values):
            raise ImportModelError(
                f"a result of {name}", expected=f"one of {len(values)}", got=index, where=frame.prefix + name
            )
        return values[index]

    def _given_value(self, frame: Frame, name: str, index: int) -> Value | None:
        return self.overrides.get(f"{frame.prefix}{name}:{index}")

    def _place(self, frame: Frame, tensor: str) -> tuple[str, int]:
        """The node and which of its results; no name for an argument of the function."""
        parts = tensor.split(":")
        if frame.arguments is None:
            name, number = parts[0], parts[1] if len(parts) > 1 else "0"
        elif len(parts) == 1:
            if tensor in frame.arguments:
                return "", 0
            name, number = tensor, "0"
        else:
            name, number = parts[0], parts[-1] if len(parts) > 2 else "0"
        node = frame.nodes.get(name)
        if node is None or not name or not number.isdecimal():
            raise ImportModelError(f"a node reads {tensor!r}, which nothing computes", where=frame.prefix or None)
        first = 0
        if frame.arguments is not None and len(parts) > 1:
            row = self.row_of(node)
            results = row.results if isinstance(row, Row) else row.outputs if row is not None else ()
            first = results.index(parts[1]) if parts[1] in results else 0
        return name, first + int(number)

    def row_of(self, node: NodeDef) -> Row | FunctionDef | None:
        return ROWS.get(node.op) or on_complex.rows.get(node.op) or self.functions.get(node.op)

    def _run(self, roots: Sequence[str], frame: Frame) -> None:
        """Run these nodes, operands first."""
        stack = list(reversed(roots))
        begun: set[str] = set()
        while stack:
            name = stack[-1]
            if name in frame.values:
                stack.pop()
                continue
            node = frame.nodes.get(name)
            if node is None:
                raise ImportModelError(f"no node {name!r}", where=frame.prefix or None)
            if name in begun:
                stack.pop()
                frame.values[name] = self._results(node, frame)
                continue
            begun.add(name)
            needs = self._needs(node, frame)
            if any(n in begun and n not in frame.values for n in needs):
                if not any(n.op in CONTROL_FLOW_OPS for n in frame.nodes.values()):
                    raise ImportModelError("a node reads its own result", where=frame.prefix + name)
                frame.values[name] = Missing()  # what makes the loop is refused
                continue
            stack += reversed([n for n in needs if n not in frame.values])

    def _needs(self, node: NodeDef, frame: Frame) -> list[str]:
        names: list[str] = []
        for tensor in node.data_inputs if node.op not in _IGNORED else ():
            name, index = self._place(frame, tensor)
            if name and self._given_value(frame, name, index) is None:
                names.append(name)
        if frame.effects:
            names += [n for n in node.control_inputs if n in frame.nodes]
        return names

    def _results(self, node: NodeDef, frame: Frame) -> Sequence[Value] | Missing:
        loc = frame.prefix + node.name
        check_time(loc)
        if frame.depth:
            spend_node(loc)
        if node.op in _IGNORED:
            return ()
        row = self.row_of(node)
        operands = [self.value(frame, t) for t in node.data_inputs]
        if row is None:
            self.has_lost_writes |= not self.is_restoring and bool(_WRITING_OPS.match(node.op))
            self._refuse(node, frame, _reason(node.op))
            return Missing("yes")
        absent = any(isinstance(v, Missing) for v in operands)
        if absent and isinstance(row, Row) and not row.any_kind:
            self._note_cuts(operands)
            return Missing()
        first = next_id()
        call = Call(self, node, frame, loc)
        try:
            if isinstance(row, FunctionDef):
                return self.call(call, Function(node.op, node.attributes), operands)
            values = operands
            if not _WRITING_OPS.match(node.op):
                values = [self.read(v) if isinstance(v, Variable) and v.ref else v for v in operands]
            check_operands(row.fn, len(values))
            of_complex = row is on_complex.rows.get(node.op)
            if not row.any_kind and (of_complex or any(isinstance(v, Complex) for v in values)):
                result = on_parts(call, row, values)
            elif not row.any_kind and not all(isinstance(v, Node) for v in values):
                raise Unsupported("an operand that is no tensor of numbers")
            else:
                result = row.fn(call, *values)
        except Unsupported as e:
            if str(e):
                self._refuse(node, frame, str(e))
            else:
                self._note_cuts(operands)
            return Missing("yes" if str(e) else "")
        except MALFORMED_ERRORS as e:
            self._refuse(node, frame, malformed(e))
            return Missing("yes")
        except ShapeError as e:
            raise located(e, loc) from None
        results = () if result is None else result if isinstance(result, Sequence) else (result,)
        locate((v for v in results if isinstance(v, Node)), first, loc)
        return results

    def _note_cuts(self, operands: Sequence[Value]) -> None:
        """Tensors that were refused and are read by what was not."""
        self.cuts.update((v.cut, None) for v in operands if isinstance(v, Missing) and v.cut)

    def _refuse(self, node: NodeDef, frame: Frame, reason: str) -> None:
        self.refused.append(UnsupportedOp(node.op, frame.prefix + node.name, reason))

    # functions

    def call(self, c: Call, function: Function, arguments: Sequence[Value]) -> list[Value]:
        """The results of a function. Raises Unsupported for one that is not there."""
        f = self.functions.get(function.name)
        if f is None:
            raise Unsupported(f"the function {function.name}, which is not in the model")
        if len(arguments) != len(f.arguments):
            raise ImportModelError(
                f"a call of {f.name}", expected=f"{len(f.arguments)} arguments", got=len(arguments), where=c.loc
            )
        if c.frame.depth >= _MAX_CALL_DEPTH:
            raise ImportModelError(f"functions that call each other, as {f.name}", where=c.loc)
        named = dict(zip(f.arguments, arguments, strict=True))
        effects = self.writes(f.name)
        frame = Frame(f.nodes, f"{c.loc}/", function.attributes, named, effects, c.frame.depth + 1)
        results = [f.results.get(o, "") for o in f.outputs]
        return self.run(frame, results, f.effects if effects else ())

    def writes(self, name: str) -> bool:
        """Whether a function writes variables."""
        if name not in self._writes:
            self._writes[name] = False  # what calls itself is refused when it is run
            f = self.functions.get(name)
            nodes = f.nodes.values() if f is not None else ()
            called = (m.message(10).text(1) for n in nodes for m in n.attributes.values() if m.has(10))
            self._writes[name] = any(_WRITING_OPS.match(n.op) or self.writes(n.op) for n in nodes) or any(
                map(self.writes, called)
            )
        return self._writes[name]

    def random_key(self) -> Node:
        """The key of a new draw of random numbers."""
        self._draws += 1
        return ops.RandomKey(self._draws - 1)()

    def require(self, size: DimLike, what: str) -> None:
        """Require that `size` >= 0, which every call checks. Raises Unsupported with `what` if that is never true."""
        low, high = bounds(size)
        if high is not None and high < 0:
            raise Unsupported(what)
        if isinstance(size, Dim) and (low is None or low < 0):
            self.conditions[size] = None

    def require_equal(self, a: DimLike, b: DimLike, what: str) -> None:
        """Require that two sizes are equal; as `require`."""
        self.require(a - b, what)
        self.require(b - a, what)

    def may_find(self, nodes: Sequence[Node]) -> bool:
        """Whether a size may be left to the run that these say. A loop is first tried with sizes that are known in each
        of its iterations."""
        read = (n.op.label for n in topological(nodes) if isinstance(n.op, Input))
        return self.is_finding or all(label in self.sizes.inputs or label in self.state for label in read)

    # variables

    def read(self, variable: Variable) -> Node:
        variable_value = self.variables.get(variable.key)
        if variable_value is None:
            raise Unsupported(f"the variable {variable.key}, which has no value")
        if variable.key in self.state and variable_value is not self.state[variable.key]:
            return variable_value
        return self.state.get(variable.key, variable_value)

    def write(self, variable: Variable, value: Node) -> None:
        if not self.is_restoring and variable.key not in self.state:
            raise WrittenVariable(variable.key)
        self.variables[variable.key] = value

    def as_state(self, key: str) -> None:
        """Make a variable an input of the graph, whose new value is an output."""
        first = self.variables[key]
        self.state[key] = self.variables[key] = Input(key, TensorType(first.dtype, first.shape))(loc=key)


def _reason(op: str) -> str:
    if op in CONTROL_FLOW_OPS:
        return "control flow of TensorFlow 1 of another form than loops and branches have"
    if op.startswith("Ragged"):
        return "of ragged tensors"
    return "of strings and tables" if any(word in op for word in _TABLE_OPS) else ""
