"""From a StableHLO module to a graph: one walk over the operations of main, functions inlined where they are called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.complex import partwise
from ingot.frontends.shared.composites.movement import with_shape
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.refusal import MALFORMED_ERRORS, Unsupported, located, malformed
from ingot.frontends.shared.retries import Known, with_retries
from ingot.frontends.shared.rows import check_operands
from ingot.frontends.shared.sizes import Sizes, symbol_of
from ingot.frontends.stablehlo import locations
from ingot.frontends.stablehlo.shardings import annotated
from ingot.frontends.stablehlo.syntax import Attribute, Block, Function, Module, Operation
from ingot.frontends.stablehlo.types import Tensor, show, tensor_type
from ingot.frontends.stablehlo.values import (
    AnyValue,
    Call,
    Complex,
    Missing,
    Quantized,
    Rows,
    Scope,
    Token,
    parts,
)
from ingot.ir import types as T
from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError, ShapeError, UnsupportedOp, UnsupportedOpError

# bounds inlining: functions that each call the next one twice grow exponentially
_MAX_OPERATIONS = 2_000_000
_MAX_CALL_DEPTH = 64
TENSOR, COMPLEX = "tensor", "complex"


@dataclass(frozen=True)
class Leaf:
    """An argument or result of main. kind: tensor, or complex (a [..., 2] of the graph); dtype: of the parts."""

    name: str
    kind: str
    dtype: T.DType


@dataclass(frozen=True)
class Imported:
    """A program as a graph, with the caller's view of its arguments and results."""

    graph: Graph
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]


@dataclass(frozen=True)
class Argument:
    """The facts about an argument of main besides its type: its name, open sizes, its value."""

    name: str
    shape: tuple[DimLike, ...] | None = None
    value: np.ndarray | None = None


def import_module(module: Module, rows: Rows, arguments: Sequence[Argument], where: str = "") -> Imported:
    """`module.main` as a MODEL-level graph.

    arguments: one for each of main's, in order.

    Raises UnsupportedOpError naming every operation that Ingot has no row for, ImportModelError for a module that is
    not well formed.
    """
    main = module.main
    if main is None:
        raise ImportModelError("a module", expected="a function @main", got=", ".join(module.functions), where=where)

    def attempt(known: Known) -> tuple[Importer, dict[str, Node], Sequence[AnyValue]]:
        importer = Importer(
            module, rows, where, frozenset(a.name for a in arguments), ComputedSizes(known.computed_sizes)
        )
        inputs, values = _inputs(main, arguments, known)
        values = _annotated(values, main.argument_attributes)
        return importer, inputs, _annotated(importer.function(main, values), main.result_attributes)

    importer, inputs, results = with_retries(attempt, {}, where)
    if importer.refused:
        raise UnsupportedOpError(importer.refused, model=where or None)
    names = _output_names(main)
    outputs = [_output(v, n) for v, n in zip(results, names, strict=True)]
    inputs_taken = [a for a in arguments if a.name in inputs]
    graph = Graph(tuple(inputs[a.name] for a in inputs_taken), tuple(n for n, _ in outputs), tuple(names))
    graph = importer.computed_sizes.added(graph)
    types = {a.name: t for a, (_, t) in zip(arguments, main.body.arguments, strict=True)}
    leaves = tuple(_leaf(a.name, types[a.name]) for a in inputs_taken)
    return Imported(graph, leaves, tuple(leaf for _, leaf in outputs))


def _annotated(values: Sequence[AnyValue], attributes: Sequence[Mapping[str, Attribute]]) -> list[AnyValue]:
    """Values with the shardings of main's signature."""
    return [annotated(v, attributes[i]) if i < len(attributes) else v for i, v in enumerate(values)]


def _leaf(name: str, text: str) -> Leaf:
    type = tensor_type(text)
    return Leaf(name, COMPLEX if type.complex else TENSOR, type.dtype)


def _inputs(main: Function, arguments: Sequence[Argument], known: Known) -> tuple[dict[str, Node], list[AnyValue]]:
    inputs: dict[str, Node] = {}
    values: list[AnyValue] = []
    refused: list[UnsupportedOp] = []
    for argument, (_, text) in zip(arguments, main.body.arguments, strict=True):
        if text.startswith("!stablehlo.token"):
            values.append(Token())
            continue
        try:
            type = tensor_type(text)
        except Unsupported as e:
            refused.append(UnsupportedOp(str(e), f"argument {argument.name!r}"))
            continue
        shape = tuple(symbol_of(argument.name, i) if d is None else d for i, d in enumerate(type.shape))
        values.append(_value(argument, type, shape if argument.shape is None else argument.shape, inputs, known))
    if refused:
        raise UnsupportedOpError(refused)
    return inputs, values


def _value(
    argument: Argument, type: Tensor, shape: tuple[DimLike, ...], inputs: dict[str, Node], known: Known
) -> AnyValue:
    if argument.value is not None:
        return _constant(argument, type, shape)
    label = argument.name
    node = known.input(label, TensorType(type.dtype, (*shape, 2) if type.complex else shape))
    inputs[label] = node
    if type.complex:
        return Complex(*(ops.index_axis(node, -1, i) for i in (0, 1)))
    return Quantized(node, type.quant) if type.quant else node


def _constant(argument: Argument, type: Tensor, shape: tuple[DimLike, ...]) -> AnyValue:
    value = argument.value
    assert value is not None
    dtype = np.dtype(type.dtype.numpy)
    kind = np.result_type(dtype, np.complex64) if type.complex else dtype
    if value.dtype != kind or value.shape != shape:
        raise InputError(
            f"weights of {argument.name!r}", expected=f"{kind}{list(shape)}", got=f"{value.dtype}{list(value.shape)}"
        )
    if type.complex:
        return Complex(const(np.real(value).copy()), const(np.imag(value).copy()))
    node = const(value, loc=argument.name)
    return Quantized(node, type.quant) if type.quant else node


def _output_names(main: Function) -> list[str]:
    """jax.result_info of each result where it is a distinct name, else output_0, output_1, ..."""
    names: list[str] = []
    for i in range(len(main.result_types)):
        info = main.result_attributes[i].get("jax.result_info") if i < len(main.result_attributes) else None
        # result['logits'][0] is logits_0
        text = re.sub(r"\W+", "_", info.removeprefix("result")).strip("_") if isinstance(info, str) else ""
        names.append(text if text and not text[0].isdigit() else f"output_{i}")
    return [n if names.count(n) == 1 else f"output_{i}" for i, n in enumerate(names)]


def _output(value: AnyValue, name: str) -> tuple[Node, Leaf]:
    match value:
        case Complex(real, imag):
            return ops.stack([real, imag], -1), Leaf(name, COMPLEX, real.dtype)
        case Node() | Quantized():
            (node,) = parts(value)
            return node, Leaf(name, TENSOR, node.dtype)
        case _:
            raise UnsupportedOpError([UnsupportedOp(f"a result that is no tensor, {name}")])


@dataclass
class Importer:
    """The walk: values by name, what was refused, and how much was imported."""

    module: Module
    rows: Rows
    where: str = ""
    inputs: frozenset[str] = frozenset()
    computed_sizes: ComputedSizes = field(default_factory=ComputedSizes)
    refused: list[UnsupportedOp] = field(default_factory=list[UnsupportedOp])
    count: int = 0
    depth: int = 0
    draws: int = 0
    caller: str = ""  # the location of the call whose function is being inlined
    rank: Node | None = None  # of the device, inside a per-device computation

    def __post_init__(self) -> None:
        self.sizes = Sizes(self.inputs)
        self._places: dict[tuple[str, str], str] = {}

    def random_key(self) -> Node:
        """A fresh random key."""
        self.draws += 1
        return ops.RandomKey(self.draws - 1)()

    def function(self, function: Function, arguments: Sequence[AnyValue], caller: str = "") -> tuple[AnyValue, ...]:
        """The function's results for these arguments; caller: the location of the call."""
        if not function.body.operations:
            raise ImportModelError(f"function @{function.name} has no body", where=self.where or None)
        if len(arguments) != len(function.body.arguments):
            raise ImportModelError(
                f"a call of @{function.name}", expected=f"{len(function.body.arguments)} arguments", got=len(arguments),
                where=self.where or None,
            )  # fmt: skip
        self.depth += 1
        if self.depth > _MAX_CALL_DEPTH:
            raise ImportModelError(f"functions that call each other, as @{function.name}", where=self.where or None)
        outer, self.caller = self.caller, caller
        results = self.block(function.body, arguments, None)
        self.caller = outer
        if len(results) != len(function.result_types):
            raise ImportModelError(
                f"results of @{function.name}", expected=len(function.result_types), got=len(results),
                where=self.where or None,
            )  # fmt: skip
        self.depth -= 1
        what = f"a result of @{function.name}"
        try:
            types = [_type(text) for text in function.result_types]
        except Unsupported as e:
            raise ImportModelError(what, got=str(e), where=self.where or None) from e
        return tuple(_checked(value, type, what) for value, type in zip(results, types, strict=True))

    def block(
        self, block: Block, arguments: Sequence[AnyValue], outer: Scope | None, captures: dict[Node, Node] | None = None
    ) -> tuple[AnyValue, ...]:
        """The operands of the terminator. With `captures`, `outer` is read through inputs that are gathered there."""
        names = (name for name, _ in block.arguments)
        scope = Scope(dict(zip(names, arguments, strict=True)), outer, captures, self.sizes.closed_form)
        for op in block.operations:
            if op.name in _TERMINATORS:
                return tuple(self._operand(scope, name, op) for name in op.operands)
            results = self._results(op, scope)
            for (name, _), value in zip(op.results, results, strict=True):
                scope.values[name] = value
        raise ImportModelError("a block without a return", where=self.where or None)

    def _operand(self, scope: Scope, name: str, op: Operation) -> AnyValue:
        value = scope.get(name)
        if value is None:
            raise ImportModelError(f"{op.name} reads {name}, which nothing defines", where=self.place(op) or None)
        return value

    def place(self, op: Operation) -> str:
        key = (op.loc, self.caller)
        if key not in self._places:
            self._places[key] = locations.describe(op.loc, self.module.locations, self.caller)
        return self._places[key]

    def _results(self, op: Operation, scope: Scope) -> Sequence[AnyValue]:
        self.count += 1
        if self.count > _MAX_OPERATIONS:
            raise ImportModelError("a program is too large", expected=f"at most {_MAX_OPERATIONS} operations")
        operands = [self._operand(scope, name, op) for name in op.operands]
        if any(isinstance(v, Missing) for v in operands):
            return [Missing()] * len(op.results)
        loc = self.place(op)
        try:
            call = Call(self, op, scope, tuple(map(_type, (t for _, t in op.results))), loc, op.attributes)
            results = call_row(call, operands)
            if len(results) != len(op.results):
                raise Unsupported(f"{len(op.results)} results, its row gives {len(results)}")
            return [_checked(value, type, op.name) for value, type in zip(results, call.types, strict=True)]
        except Unsupported as e:
            # a refusal without a reason comes from an inner operation, which is listed already
            if str(e):
                self.refused.append(UnsupportedOp(op.name, loc, str(e) if str(e) != _NO_ROW else ""))
            return [Missing()] * len(op.results)
        except MALFORMED_ERRORS as e:
            self.refused.append(UnsupportedOp(op.name, loc, malformed(e)))
            return [Missing()] * len(op.results)
        except ShapeError as e:
            raise located(e, loc or f"{op.name} of {op.results[0][0] if op.results else ''}") from None


_TERMINATORS = frozenset(("func.return", "return", "stablehlo.return", "sdy.return"))
_NO_ROW = "no row"


def _type(text: str) -> Tensor | None:
    return tensor_type(text) if text.startswith("tensor<") else None


def _checked(value: AnyValue, type: Tensor | None, what: str) -> AnyValue:
    """`value`, checked against the declared type of `what`; sizes that only the declaration fixes are taken from it."""
    if type is None or not isinstance(value, Node | Complex | Quantized):
        return value
    nodes = parts(value)
    fitted = tuple(_fit_type(n, type, what) for n in nodes)
    if fitted == nodes:
        return value
    return Complex(*fitted) if isinstance(value, Complex) else fitted[0] if isinstance(value, Node) else value


def _fit_type(node: Node, type: Tensor, what: str) -> Node:
    if node.dtype != type.dtype or len(node.shape) != len(type.shape):
        declared = show(type.dtype, [d for d in type.shape])
        raise ImportModelError(f"{what}: another type than its operands give", expected=node.type, got=declared)
    shape = node.shape
    if shape == type.shape:
        return node
    sizes: list[DimLike] = []
    for got, declared in zip(shape, type.shape, strict=True):
        if isinstance(got, int) and declared is not None and got != declared:
            raise ImportModelError(f"{what}: a declared size", expected=got, got=declared)
        sizes.append(got if declared is None else declared)
    return with_shape(node, tuple(sizes))


# --- rows


# ops that move or add elements, applied to the real and the imaginary parts
_PARTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "subtract", "negate", "broadcast_in_dim", "reshape", "transpose", "slice", "concatenate", "pad",
        "gather", "dynamic_slice", "dynamic_update_slice", "reverse", "select", "optimization_barrier",
        "dynamic_broadcast_in_dim", "dynamic_reshape", "dynamic_gather", "dynamic_pad", "real_dynamic_slice",
        "all_reduce", "all_gather", "all_to_all", "collective_permute", "collective_broadcast", "reduce_scatter",
        "set_dimension_size",
    )
)  # fmt: skip


def call_row(c: Call, operands: Sequence[AnyValue]) -> tuple[AnyValue, ...]:
    """The results of an operation by its row. Raises Unsupported."""
    name = c.op.name
    rows = c.importer.rows
    row = rows.real.get(name)
    if any(isinstance(v, Quantized) for v in operands) or any(t is not None and t.quant for t in c.types):
        row = rows.quantized.get(name, rows.quantized["stablehlo.any"] if row is not None else None)
    elif any(isinstance(v, Complex) for v in operands):
        if name in rows.complex:
            row = rows.complex[name]
        elif name in _PARTWISE:
            return tuple(partwise(partial(rows.real[name], c), operands))
        elif name not in _OPS_OF_ANY_VALUES:
            raise Unsupported("of complex numbers")
    if row is None:
        raise Unsupported(_NO_ROW)
    check_operands(row, len(operands))
    results = row(c, *operands)
    return results if isinstance(results, tuple) else () if results is None else (results,)


# ops that take values of any kind
_OPS_OF_ANY_VALUES = frozenset((
    "stablehlo.while", "stablehlo.case", "stablehlo.if", "stablehlo.map", "stablehlo.reduce", "stablehlo.sort",
    "stablehlo.scatter", "stablehlo.reduce_window", "stablehlo.select_and_scatter", "func.call", "stablehlo.composite",
    "stablehlo.custom_call", "stablehlo.tuple", "stablehlo.get_tuple_element", "stablehlo.get_dimension_size",
    "stablehlo.after_all", "sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier",
))  # fmt: skip
