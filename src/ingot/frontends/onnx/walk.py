"""One walk over the nodes of a model, which imports each by its op's row or function; values are bound by name.

initializers, inputs  ->  values by name
node                  ->  a symbolic value (rules in `fold`), the row of its op (tables in `rows`), or its
                          function's body: a local function, or the one that ONNX defines the op by
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace

import numpy as np

from ingot import ops
from ingot.frontends.onnx import legacy
from ingot.frontends.onnx import rows as _rows  # noqa: F401 - fills the table
from ingot.frontends.onnx.call import (
    AnyValue,
    Call,
    Equation,
    Missing,
    OpenSequence,
    Result,
    Sequence_,
    Value,
    find_row,
    seek_multiple,
)
from ingot.frontends.onnx.fold import fold_node
from ingot.frontends.onnx.functions import (
    domain_of,
    in_order,
    newest_opset,
    opsets,
    required_nodes,
    resolved,
    schema_body,
    schema_of,
)
from ingot.frontends.onnx.protos import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
)
from ingot.frontends.onnx.symbolic import MAX_ELEMENTS, Sym
from ingot.frontends.onnx.tensors import ExternalData, dtype_from_code, sparse_to_array, to_array
from ingot.frontends.onnx.wishes import Wishes, element_symbols, sizes_of_test
from ingot.frontends.shared.composites.movement import with_shape
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.computed_sizes import Sizes as InnerSizes
from ingot.frontends.shared.places import locate, next_id
from ingot.frontends.shared.quotients import upper_bound
from ingot.frontends.shared.refusal import MALFORMED_ERRORS, Unsupported
from ingot.frontends.shared.sizes import Sizes
from ingot.ir.dims import Dim, DimLike, Interval, bounds, is_computed, narrow_bounds, solve_equal, symbols_of
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node
from ingot.ir.types import i64
from ingot.ops.core.base import Category, category
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, ShapeError, UnsupportedOp
from ingot.support.limits import check_time, max_run_time_size, spend_node

_SPARSE_LIMIT = {"bytes": 1 << 30}
# deeper nesting than any exporter writes; bounds the inlining of recursive functions
_MAX_DEPTH = 64
# why a domain's ops are refused
_REASONS = {"com.microsoft.nchwc": "weights in the order of one machine; save it optimized up to ORT_ENABLE_EXTENDED"}
# ops of com.microsoft that equal ONNX's of this version, unless they have attributes that ONNX's lack
_PREVIEW_OPSETS = {"CausalConvWithState": 27, "LinearAttention": 27}
# the most pairs of sizes that are equated for one node
_MAX_EQUATIONS = 8
# the most elements of a shape, or of pads, that are computed at run time
_MAX_COMPUTED = 32
# the largest factor of sizes that networks halve repeatedly
_MAX_FACTOR = 128


@dataclass(slots=True)
class Scope:
    """Values by name, in one graph or function; parent: the scope of the enclosing graph."""

    versions: Mapping[str, int]
    parent: Scope | None
    attributes: Mapping[str, AttributeProto]
    prefix: str
    values: dict[str, AnyValue] = field(default_factory=dict)
    capture: Callable[[Value], Value] | None = None
    depth: int = 0

    def get(self, name: str) -> AnyValue | None:
        value = self.values.get(name)
        if value is None and self.parent is not None:
            value = self.parent.get(name)
            if self.capture is not None and isinstance(value, Value):
                value = self.values[name] = self.capture(value)
            elif self.capture is not None and isinstance(value, OpenSequence):
                value = self.values[name] = replace(value, node=self.capture(Value(value.node)).node)
            elif self.capture is not None and isinstance(value, Sequence_):
                value = self.values[name] = Sequence_(tuple(self.capture(v) for v in value.items))
        return value


class Walk:
    """The state of one import. assumes: whether sizes may be assumed, for which exporters mean a model."""

    def __init__(
        self, external: ExternalData, functions: Iterable[FunctionProto], where: str, assumes: bool = True
    ) -> None:
        self.external = external
        self.assumes, self.has_assumed = assumes, False
        self.functions = {(domain_of(f.domain), f.name): f for f in functions}
        self.where = where
        self.refused: list[UnsupportedOp] = []
        self.symbols: frozenset[str] = frozenset()
        # bounds of symbols that are not (1, None)
        self.limits: dict[str, Interval] = {}
        # sizes of several symbols that must not be negative
        self.conditions: dict[Dim, None] = {}
        self.computed_sizes = ComputedSizes()
        self.sizes = Sizes()
        self._draws = 0
        self.wishes = Wishes()
        # the values of symbols in an example call
        self.example: Mapping[str, int] | None = None

    def random_key(self, seed: int | None) -> Node:
        self._draws += 1
        return ops.RandomKey(self._draws - 1, seed)()

    def initializers(self, graph: GraphProto, scope: Scope, cuts: Mapping[int, np.ndarray]) -> None:
        """Bind initializers; each is decoded when it is first used."""
        for i, t in enumerate(graph.initializer):
            scope.values[t.name] = self._initializer(t, cuts.get(i))
        for s in graph.sparse_initializer:
            scope.values[s.values.name] = Value(load=lambda s=s: sparse_to_array(s, self.external, _SPARSE_LIMIT))

    def _initializer(self, t: TensorProto, cut: np.ndarray | None) -> AnyValue:
        try:
            dtype_from_code(t.data_type)
        except Unsupported as e:
            self.refused.append(UnsupportedOp(str(e), f"initializer {t.name!r}"))
            return Missing()
        return Value(load=lambda: to_array(t, self.external, cut))

    def run(
        self, graph: GraphProto, call: Call, inputs: Mapping[str, AnyValue], capture: Callable[[Value], Value]
    ) -> list[AnyValue]:
        """The outputs of a subgraph of `call`, whose inputs are `inputs`."""
        outer = call.scope
        assert isinstance(outer, Scope)
        depth = self._deeper(outer, call.loc)
        scope = Scope(outer.versions, outer, outer.attributes, f"{call.loc}/", dict(inputs), capture, depth)
        self.initializers(graph, scope, {})
        return self.graph(graph, scope)

    @contextmanager
    def body(self) -> Iterator[InnerSizes]:
        """Collect the sizes computed meanwhile for an inner graph, which alone knows them."""
        outer = self.sizes
        with self.computed_sizes.inner_graph() as computed:
            yield computed
        self.sizes = outer

    def _deeper(self, scope: Scope, loc: str) -> int:
        if scope.depth >= _MAX_DEPTH:
            raise ImportModelError(
                "functions or subgraphs are nested too deeply", expected=f"at most {_MAX_DEPTH} levels", where=loc
            )
        return scope.depth + 1

    def graph(self, graph: GraphProto, scope: Scope) -> list[AnyValue]:
        """Import every node that an output needs; the values of the outputs."""
        nodes = in_order(graph.node)
        kept_nodes = required_nodes(nodes, [o.name for o in graph.output])
        for i, node in enumerate(nodes):
            if i in kept_nodes:
                self.node(node, scope, i)
        return [self._output(o.name, scope) for o in graph.output]

    def _output(self, name: str, scope: Scope) -> AnyValue:
        value = scope.get(name)
        if value is None:
            raise ImportModelError("nothing computes an output", got=repr(name), where=self.where)
        return value

    def node(self, proto: NodeProto, scope: Scope, index: int) -> None:
        """Import one node and bind its outputs."""
        check_time("the import")
        if scope.depth:
            spend_node(scope.prefix)
        loc = scope.prefix + (proto.name or f"{proto.op_type}_{index}")
        inputs = tuple(self._operand(name, scope, loc) if name else None for name in proto.input)
        if any(isinstance(v, Missing) for v in inputs):
            if not self._is_known(proto, scope):
                self.refused.append(UnsupportedOp(_full_name(proto), loc))
            scope.values.update((name, Missing()) for name in proto.output if name)
            return
        results: Sequence[AnyValue | None]
        try:
            results = self._import_with_equal_sizes(proto, scope, loc, inputs)
        except Unsupported as e:
            self.refused.append(UnsupportedOp(_full_name(proto), loc, str(e)))
            results = [Missing()] * len(proto.output)
        except ShapeError as e:
            # sizes determined by data fit only some data: the values must then be known, one program for each
            values = [v for v in inputs if isinstance(v, Value)]
            sizes = [d for v in values for d in (*v.type.shape, *(v.sym.items.flat if v.sym else ()))]
            sized = [ops.DimValue(d)() for d in sizes if isinstance(d, Dim) and element_symbols(d)]
            if [self.wishes.add(node, exact=True) for node in sized]:
                self.refused.append(UnsupportedOp(_full_name(proto), loc, str(e)))
                scope.values.update((name, Missing()) for name in proto.output if name)
                return
            if loc in str(e):
                raise
            # the node's location says more than the operand's that the error has
            text = str(e).removesuffix(f" at {e.where}")
            raise ShapeError(text, where=f"{loc} ({_full_name(proto)})") from e
        except MALFORMED_ERRORS as e:
            raise ImportModelError(
                "a node is malformed",
                got=f"{type(e).__name__}: {e}",
                where=f"{loc} ({_full_name(proto)})",
                fix="see what onnx.checker.check_model says; if it finds nothing, please report it",
            ) from e
        for name, v in zip(proto.output, results, strict=False):
            if name and v is not None:
                scope.values[name] = v

    def _is_known(self, proto: NodeProto, scope: Scope) -> bool:
        """Whether the op can be imported at all, for some inputs."""
        domain = domain_of(proto.domain)
        version = scope.versions.get(domain, 1)
        if (domain, proto.op_type) in self.functions or find_row(domain, proto.op_type, version) is not None:
            return True
        schema = schema_of(proto.op_type, version, domain)
        if schema is None:
            return False
        sizes = domain == "" and proto.op_type in ("Shape", "Size")  # known at import, without a row
        return sizes or schema.has_function or schema.has_context_dependent_function

    def _operand(self, name: str, scope: Scope, loc: str) -> AnyValue:
        value = scope.get(name)
        if value is None:
            raise ImportModelError(
                "a node reads a value that nothing before it computes", got=repr(name), where=loc, fix="export it again"
            )
        return value

    def _import_with_equal_sizes(
        self, proto: NodeProto, scope: Scope, loc: str, inputs: tuple[AnyValue | None, ...]
    ) -> Sequence[AnyValue | None]:
        """Import a node; where sizes must be equal but have different symbols, they are equated, which calls check."""
        for _ in range(_MAX_EQUATIONS):
            try:
                return self._import(proto, scope, loc, inputs)
            except ShapeError as e:
                inputs = self._with_equal(e, inputs, loc)
        return self._import(proto, scope, loc, inputs)

    def _with_equal(self, e: ShapeError, inputs: tuple[AnyValue | None, ...], loc: str) -> tuple[AnyValue | None, ...]:
        """The operands with one of the two sizes of `e` replaced by the other. Raises Equation where they can be solved
        for a symbol of the inputs, and `e` where they are never equal or an input's data determines them."""
        sizes = tuple(d for d in e.sizes or () if isinstance(d, int | Dim))
        if len(sizes) != 2 or any(map(element_symbols, sizes)):
            raise e
        _equal_for_multiples(e)
        kept_size, other = sizes
        # of two symbols the first is kept; a number replaces a symbol
        solved = solve_equal(other, kept_size) or solve_equal(kept_size, other)
        # an input's size cannot be what the run finds later: that is a condition
        if solved is not None and solved[0] in self.symbols and not any(map(is_computed, symbols_of(solved[1]))):
            if solved[1] == 0 and isinstance(kept_size, Dim) and isinstance(other, Dim):
                raise e  # equal only where both are empty: b * 40 and b * 32
            raise Equation(*solved)
        try:
            self.require_equal(kept_size, other, "")
        except Unsupported:
            raise e from None
        rewritten = tuple(
            Value(_with_equal_sizes(v.node, other, kept_size)) if isinstance(v, Value) and other in v.type.shape else v
            for v in inputs
        )
        changed = [a for a, b in zip(rewritten, inputs, strict=True) if a is not b]
        if not changed:
            raise e
        return rewritten

    def _import(
        self, proto: NodeProto, scope: Scope, loc: str, inputs: tuple[AnyValue | None, ...]
    ) -> Sequence[AnyValue | None]:
        domain = domain_of(proto.domain)
        function = self.functions.get((domain, proto.op_type))
        if function is not None:
            return self._inline(function, proto, scope, loc, inputs)
        version = scope.versions.get(domain, 1)
        if _is_adopted(proto, domain):
            domain, version = "", _PREVIEW_OPSETS[proto.op_type]
        call = Call(proto, version, loc, inputs, self, scope, scope.attributes)
        if domain == "":
            call = call if version >= legacy.OPSET else legacy.modern(call)
            folded = _fold(call)
            if folded is not None:
                return folded
        first = next_id()
        row = find_row(domain, proto.op_type, version)
        result = None if row is None else row(call)
        if result is not None:
            results = _values(result)
            locate((v._node for v in results if isinstance(v, Value) and v._node is not None), first, loc)
            return results
        body = schema_body(resolved(proto, scope.attributes), domain, version, inputs)
        if body is None:
            raise Unsupported(_REASONS.get(domain, ""))
        defaults = schema_of(proto.op_type, version, domain).attributes
        return self._inline(body, proto, scope, loc, inputs, {k: a.default_value for k, a in defaults.items()})

    def _inline(
        self, function: FunctionProto, proto: NodeProto, scope: Scope, loc: str, inputs: tuple[AnyValue | None, ...],
        defaults: Mapping[str, AttributeProto] | None = None,
    ) -> Sequence[AnyValue | None]:  # fmt: skip
        """The function's body in place of the call, in a scope of its own."""
        attributes = {k: a for k, a in (defaults or {}).items() if a.type != a.UNDEFINED}
        attributes.update((a.name, a) for a in function.attribute_proto)
        for a in proto.attribute:
            bound = scope.attributes.get(a.ref_attr_name) if a.ref_attr_name else a
            if bound is not None:
                attributes[a.name] = bound
        versions = {**scope.versions, **opsets(function.opset_import, loc)}
        inner = Scope(versions, None, attributes, f"{loc}/", depth=self._deeper(scope, loc))
        inner.values.update((name, v) for name, v in zip(function.input, inputs, strict=False) if v is not None)
        absent = set(function.input) - set(inner.values)
        nodes = in_order(function.node)
        kept_nodes = required_nodes(nodes, function.output)
        for i, node in enumerate(nodes):
            if i not in kept_nodes:
                continue
            if absent & set(node.input):
                inlined = NodeProto()
                inlined.CopyFrom(node)
                inlined.input[:] = ["" if name in absent else name for name in node.input]
                node = inlined
            self.node(node, inner, i)
        return [inner.get(name) for name in function.output]

    def assume(self, size: DimLike) -> bool:
        """Require `size` >= 0 by a bound of its symbol, as exporters mean it; returns whether it holds. An import that
        assumes nothing only asks."""
        limits, is_bounded = self.limits, self._narrow(size)
        if self.limits == limits:
            return is_bounded
        self.has_assumed = True
        if not self.assumes:
            self.limits = limits
        return self.assumes

    def _narrow(self, size: DimLike) -> bool:
        """Require `size` >= 0 by a bound of its symbol; returns whether such a bound exists. There is none for sizes
        that data determines or that are found at run time: nothing must be assumed of them."""
        if element_symbols(size) or any(map(is_computed, symbols_of(size))):
            lowest = bounds(size, self.limits)[0]
            return lowest is not None and lowest >= 0
        narrowed_bounds = narrow_bounds(size, self.limits)
        if narrowed_bounds is not None:
            self.limits = narrowed_bounds
        return narrowed_bounds is not None

    def require(self, size: DimLike, what: str) -> None:
        """Require `size` >= 0, by a bound of its symbol or a condition that every call checks. Raises Unsupported with
        `what` where it can never hold."""
        upper = bounds(size, self.limits)[1]
        if upper is not None and upper < 0:
            raise Unsupported(what)
        if not self._narrow(size) and isinstance(size, Dim):
            self.conditions[size] = None

    def require_equal(self, a: DimLike, b: DimLike, what: str) -> None:
        """Require that two sizes are equal; as `require`."""
        for difference in (a - b, b - a):
            upper = bounds(difference, self.limits)[1]
            if upper is not None and upper < 0:
                raise Unsupported(what)
            if isinstance(difference, Dim):
                self.conditions[difference] = None

    def elements_as_sizes(self, node: Node) -> Sym | None:
        """The elements of `node` as sizes, computed from other sizes or found at run time; None where there are too
        many, or where they are no integers."""
        count = node.type.size
        if not node.dtype.is_integer or not isinstance(count, int) or count > _MAX_COMPUTED:
            return None
        items = np.empty(count, object)
        for i, part in enumerate(_parts(node, count)):
            size = self.sizes.size_of(part)
            if size is None:
                high = upper_bound(self.sizes.elements, part)
                max_size = max_run_time_size() if high is None else high
                size = self.computed_sizes.size(ops.reshape(ops.cast(part, i64), ()), max_size, "size")
                self.sizes = self.sizes.with_size(part, size)
            items[i] = size
        return Sym(node.dtype, items.reshape([int(d) for d in node.shape]))

    def checkpoint(self) -> tuple[object, ...]:
        """The requirements on sizes so far, to roll back to."""
        return self.limits, dict(self.conditions), list(self.refused)

    def roll_back(self, mark: tuple[object, ...]) -> None:
        """Discard all requirements and refusals since `checkpoint`."""
        self.limits, self.conditions, self.refused = mark  # type: ignore[assignment]

    def decide(self, node: Node, what: str, *, is_needed: bool = True) -> bool | None:
        """The value of a condition that a row must know; None where it is known only at run time. Where sizes decide
        it, every call checks it. Raises Unsupported where an example, or the values of inputs, would decide it; but
        where the row can do without, of inputs only scalars are asked for."""
        if not self.wishes.comes_from_sizes(node):
            if self.wishes.add(node, exact=True, max_elements=MAX_ELEMENTS if is_needed else 1):
                raise Unsupported(what)
            return None
        if self.example is None:
            self.wishes.sizes = True
            raise Unsupported(what)
        (value,) = interpret(Graph((), (node,)).substitute(self.example), [])
        for size in sizes_of_test(node, bool(value), self.example):
            if isinstance(size, Dim):
                self.conditions[size] = None
        return bool(value)

    def wish(self, node: Node, *, exact: bool) -> bool:
        """Record that a row needs the elements of `node` at import: as sizes, or, if `exact`, as numbers. Returns
        whether that is possible: not where a loop changes them."""
        return self.wishes.add(node, exact)

    def note_capture(self, inner: Node, outer: Node) -> None:
        """Record that `inner` is an input of a body's graph that stands for the outer value `outer`."""
        self.wishes.captured[inner] = outer


def _parts(node: Node, count: int) -> Sequence[Node]:
    """The elements of a tensor as scalars, traced back to their own computations, so that each has its own bounds."""
    if count == 1:
        return (node,)
    source = node
    while isinstance(source.op, ops.Reshape):
        (source,) = source.inputs
    if isinstance(source.op, ops.Concat) and source.op.dimension == 0:
        return [part for x in source.inputs if isinstance(n := x.type.size, int) for part in _parts(x, n)]
    if isinstance(source.op, ops.BroadcastInDim) and source.inputs[0].type.size == 1:
        return source.inputs * count
    if category(source.op) is Category.ELEMENTWISE:
        columns = ([ops.reshape(part, ()) for part in _parts(x, count)] for x in source.inputs)
        return [source.op(*values) for values in zip(*columns, strict=True)]
    line = ops.reshape(source, (count,))
    return [ops.index_axis(line, 0, i) for i in range(count)]


def _is_adopted(proto: NodeProto, domain: str) -> bool:
    version = _PREVIEW_OPSETS.get(proto.op_type, 0)
    if domain != "com.microsoft" or not 0 < version <= newest_opset():
        return False
    attributes = schema_of(proto.op_type, version, "").attributes
    return all(a.name in attributes for a in proto.attribute)


def _with_equal_sizes(x: Node, old: DimLike, new: DimLike) -> Node:
    """`x` with sizes `old` rewritten as the equal size `new`."""
    return with_shape(x, tuple(new if d == old else d for d in x.shape))


def _equal_for_multiples(e: ShapeError) -> None:
    """Raise Equation where the sizes that differ are equal for all multiples of a number, such as those of an image
    that is halved several times, enlarged again and added to itself."""
    sizes = [d for d in e.sizes or () if isinstance(d, Dim)]
    if len(sizes) == 2:
        names = sorted(symbols_of(sizes[0]) & symbols_of(sizes[1]))
        seek_multiple(lambda one, other: one == other, sizes, range(2, _MAX_FACTOR + 1), names)


def _full_name(proto: NodeProto) -> str:
    domain = domain_of(proto.domain)
    return f"{domain}.{proto.op_type}" if domain else proto.op_type


def _fold(call: Call) -> list[AnyValue | None] | None:
    symbolic = fold_node(call)
    return None if symbolic is None else [v if not isinstance(v, Sym) else Value(sym=v) for v in symbolic]


def _values(result: Result) -> list[AnyValue | None]:
    values = result if isinstance(result, Sequence) else (result,)
    return [Value(v) if isinstance(v, Node) else v for v in values]
