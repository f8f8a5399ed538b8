"""Functional aten graphs with flat inputs and results, as AOTAutograd makes them, as models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental._backward_state import BackwardState
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from ingot.frontends.torch.aten.complex import complex_of
from ingot.frontends.torch.convert import Sizes, data_reads
from ingot.frontends.torch.importer import Importer, constant
from ingot.frontends.torch.model import COMPLEX, NUMBER, SIZE, TENSOR, ImportedModel, InputAdapter, Leaf, OutputAdapter
from ingot.frontends.torch.program import limited, output_adapter, tensor_input
from ingot.frontends.torch.tracing.guards import equations
from ingot.frontends.torch.tracing.layouts import Order, inverse
from ingot.frontends.torch.values import Complex, Number, boolean, f64
from ingot.integrations.torch_eager import UnsupportedNodesError
from ingot.ir.dims import Dim
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType
from ingot.ops import Transpose
from ingot.runtime.arguments import UNPACKED, Packing
from ingot.support.errors import ImportModelError

_NO_WRITES: Mapping[int, Any] = MappingProxyType({})
_PACKED = "packed"  # the name of a tensor that others lie in


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "placeholder"]


def unread(graph: fx.Graph) -> set[int]:
    """Positions of inputs that the graph does not read: hooks for compiled autograd's backward pass, which only pass
    through, ints that are in no size (the length of a cache, which Python code counts), and a tensor that other inputs
    lie in."""
    values = {i: n.meta.get("val") for i, n in enumerate(placeholders(graph)) if not n.users}
    ints = {i: v.node.expr for i, v in values.items() if isinstance(v, torch.SymInt)}
    read = {symbol for v in _shapes(graph) for symbol in v.free_symbols} if ints else set[sympy.Basic]()
    unused = {i for i, e in ints.items() if read.isdisjoint(e.free_symbols)}
    inputs = [*enumerate(placeholders(graph))]
    return unused | {
        i for i, n in inputs if isinstance(n.meta.get("val"), BackwardState) or n.meta.get("is_packed", False)
    }


def _shapes(graph: fx.Graph) -> Iterator[sympy.Expr]:
    """The symbolic sizes and strides of a graph's tensors."""
    for node in graph.nodes:
        values = node.meta.get("val")
        for v in values if isinstance(values, tuple | list) else (values,):
            if isinstance(v, torch.Tensor) and v.layout is torch.strided:
                yield from (
                    d.node.expr for d in (*v.shape, *v.stride(), v.storage_offset()) if isinstance(d, torch.SymInt)
                )


def ints(graph: fx.Graph) -> tuple[list[int], list[int], frozenset[int]]:
    """Positions of the ints that are read but are not sizes of input tensors, positions of all that are read, and those
    of which the sizes that they are computed from cannot be told (-s0, s0 * s1)."""
    values, skipped = [n.meta.get("val") for n in placeholders(graph)], unread(graph)
    sizes = {d.node.expr for v in values if isinstance(v, torch.Tensor) for d in v.shape if isinstance(d, torch.SymInt)}
    ints = [(i, v.node.expr) for i, v in enumerate(values) if isinstance(v, torch.SymInt) and i not in skipped]
    known = {s for e in (*sizes, *(e for _, e in ints)) if (s := _solved_symbol(e)) is not None}
    unsolved = frozenset(i for i, e in ints if not e.free_symbols <= known)
    return [i for i, e in ints if e not in sizes], [i for i, _ in ints], unsolved


def _solved_symbol(e: Any) -> Any:
    """The symbol s of a * s + b with a > 0; None for any other expression."""
    if len(e.free_symbols) != 1:
        return None
    (s,) = e.free_symbols
    slope = e.coeff(s)
    return s if slope.is_positive and not (e - slope * s).free_symbols else None


def import_flat(
    module: fx.GraphModule,
    constants: Mapping[int, torch.Tensor],
    numbers: Mapping[int, int] = _NO_WRITES,
    orders: Mapping[int, Order] = _NO_WRITES,
    result_orders: Sequence[Order | None] = (),
    in_place: Mapping[int, int] = _NO_WRITES,
    packing: Packing = UNPACKED,
) -> ImportedModel:
    """A functional aten graph as a model over its remaining inputs, positional and flat, returning a flat tuple.

    constants, numbers: tensors and ints that replace inputs, by position. orders, result_orders: the axis order in
    which the model takes inputs or returns results, by position. in_place: the numbers of results that are new values
    of inputs, by the positions of these; both are state of the graph. packing: of the last inputs and results.
    """
    environment = _environment(module.graph)
    # dynamo checks the guards at each call, and the sizes of parameters with them
    guards = [] if environment is None else [g.expr for g in environment.guards]
    named = {n.meta["val"].node.expr: numbers[i] for i, n in enumerate(placeholders(module.graph)) if i in numbers}
    equal = equations(guards, _sizes_of(module.graph, constants) | named)
    equal = {**equal, **{symbol: sympy.Integer(value) for symbol, value in named.items()}}
    sizes = Sizes(equal=equal, reads=data_reads(module.graph))
    ranges = {} if environment is None else environment.var_to_range
    values_of_inputs = (n.meta.get("val") for n in placeholders(module.graph))
    ints = [v.node.expr for v in values_of_inputs if isinstance(v, torch.SymInt)]
    # a count that forward found has any value: torch's range of masked_select's leaves out that operands are expanded
    ranges = {s: span for s, span in ranges.items() if s not in ints or not symbol_is_type(s, SymT.UNBACKED_INT)}
    sizes.begin(ranges, ints)
    importer = Importer(sizes, is_final=True)
    inputs: list[Node] = []
    state: dict[int, Node] = {}
    leaves: list[Leaf] = []
    values: list[object] = []
    skipped = unread(module.graph)
    for i, node in enumerate(placeholders(module.graph)):
        if i in constants:
            values.append(constant(constants[i], loc=str(node.target)))
            continue
        if i in numbers:
            values.append(numbers[i])
            continue
        if i in skipped:
            values.append(None)
            continue
        leaf, value, carrier = _input(str(node.target), node.meta.get("val"), sizes, orders.get(i))
        values.append(value)
        if i in in_place:
            state[i] = carrier
            continue
        leaves.append(leaf)
        inputs.append(carrier)
    results = zip(importer.run(module, values), chain(result_orders, repeat(None)), strict=False)
    outputs = [_permuted(value, order) for value, order in results]
    if importer.unsupported:
        raise UnsupportedNodesError(importer.unsupported, importer.refused)
    new_values = [outputs[in_place[i]] for i in state]
    outputs = [value for n, value in enumerate(outputs) if n not in {in_place[i] for i in state}]
    adapter, results = output_adapter(outputs, _flat(len(outputs)))
    state_results = output_adapter(new_values, _flat(len(new_values)))[1]
    names = tuple(name_of(i) for i in state)
    outputs_names = (*(f"next {name}" for name in names), *adapter.names)
    graph = sizes.graph([*inputs, *state.values()], [*state_results, *results], outputs_names)
    graph = replace(limited(graph, ranges, (), sizes), state=names)
    if packing.inputs:
        leaves[-packing.inputs :] = [Leaf(_PACKED, TENSOR)]
    if packing.outputs:
        count, last = len(outputs) - packing.outputs, (TENSOR, len(results) - packing.outputs)
        adapter = OutputAdapter(_flat(count + 1), (*adapter.leaves[:count], last), (*adapter.names[:count], _PACKED))
    flat_in = pytree.tree_flatten((tuple(range(len(leaves))), {}))[1]
    packed = packing.inputs, packing.outputs
    return ImportedModel(graph, InputAdapter(flat_in, tuple(leaves)), adapter, packed=packed, saves=packing.is_private)


def name_of(position: int) -> str:
    """The name of an input that is state of the graph."""
    return f"input {position}"


def _flat(count: int) -> pytree.TreeSpec:
    return pytree.tree_flatten(tuple(range(count)))[1]


def _permuted(value: object, order: Order | None) -> object:
    if isinstance(value, Complex) and order:
        return Complex(*(Transpose(order)(part) for part in value.parts))
    return Transpose(order)(value) if order and isinstance(value, Node) else value


def _input(name: str, value: object, sizes: Sizes, order: Order | None) -> tuple[Leaf, object, Node]:
    """(leaf, the importer's value, graph input) of one placeholder."""
    if isinstance(value, torch.Tensor) and order:
        leaf, node = tensor_input(name, value.permute(order), sizes)
        return leaf, Transpose(inverse(order))(node), node
    if isinstance(value, torch.Tensor):
        leaf, node = tensor_input(name, value, sizes)
        return leaf, complex_of(node) if leaf.kind == COMPLEX else node, node
    if isinstance(value, torch.SymInt | int):
        size = sizes.dim(value)
        kind: TensorType = TensorType(boolean, (size, 0))
        return Leaf(name, SIZE), size if isinstance(size, Dim) else int(size), Input(name, kind)()
    if isinstance(value, torch.SymFloat | float):
        node = Input(name, TensorType(f64))()
        return Leaf(name, NUMBER), Number(node), node
    raise ImportModelError(f"input {name!r}", expected="a tensor or a number", got=type(value).__name__)


def _sizes_of(graph: fx.Graph, constants: Mapping[int, torch.Tensor]) -> dict[sympy.Basic, int]:
    """The symbols of sizes of the inputs that are constants -> their values."""
    values: dict[sympy.Basic, int] = {}
    for i, node in enumerate(placeholders(graph)):
        value = node.meta.get("val")
        if i in constants and isinstance(value, torch.Tensor):
            named = zip(value.shape, constants[i].shape, strict=True)
            values |= {name.node.expr: size for name, size in named if isinstance(name, torch.SymInt)}
    return values


def _environment(graph: fx.Graph) -> ShapeEnv | None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
    return None
