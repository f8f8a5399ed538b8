"""ExportedProgram to graph."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.value_ranges import ValueRanges

from ingot import ops
from ingot.frontends.torch.aten.complex import complex_of, real_of
from ingot.frontends.torch.convert import Sizes, data_reads, finite, symbol_names, to_numpy
from ingot.frontends.torch.decompose import decomposed
from ingot.frontends.torch.export import ANSWERS, DIFFERENTIATED, NAMES, SIGNATURE
from ingot.frontends.torch.importer import Importer, NeedsDecomposition, constant
from ingot.frontends.torch.model import (
    COMPLEX,
    FIXED,
    NUMBER,
    SIZE,
    TENSOR,
    ImportedModel,
    InputAdapter,
    Leaf,
    OutputAdapter,
    output_names,
)
from ingot.frontends.torch.tracing.buffers import buffers_as_results
from ingot.frontends.torch.tracing.guards import assumed, conditions, equations, progressions, solved
from ingot.frontends.torch.values import Complex, Number, boolean, f64, with_shape
from ingot.ir.dims import Dim, Interval, default_bounds, is_computed
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType
from ingot.support.errors import ImportModelError

Bounds = tuple[tuple[str, int, int | None], ...]


def import_exported(
    program: ExportedProgram, parameters: Collection[str] = (), zeros: Collection[str] = ()
) -> ImportedModel:
    """`program` as a graph over its user inputs; parameters, buffers and constants share the tensors' memory.

    Buffers that forward writes are the model's state (`ImportedModel`), initialized with copies of their values.
    parameters: names of tensors that are inputs before the state's, not constants; of tied tensors, one name.
    zeros: names of sizes that are 0, even if torch's ranges exclude that.

    Imports the graph as exported where every op has a handler and its in-place ops are plain rebindings, or write whole
    buffers; else after `run_decompositions`.

    Raises UnsupportedOpError with every op that stays unsupported.
    """
    guards = _guards(program)
    equal = solved(guards)
    among, names = progressions(guards), _names(program)
    if zeros:
        initial_sizes = Sizes(names, among, equal)
        named = [s for s in program.range_constraints if s not in equal and initial_sizes.name(str(s)) in zeros]
        equal = equal | {s: sympy.Integer(initial_sizes.progression(str(s)).start) for s in named}
    numbers = {size: value for size, value in equations(guards).items() if isinstance(value, sympy.Integer)}
    sizes = Sizes(names, among, equal, data_reads(program.graph), numbers)
    sizes.begin(program.range_constraints)
    for symbol, span in program.range_constraints.items():
        if symbol not in equal or isinstance(equal[symbol], sympy.Integer):
            continue  # they are bounds of the graph
        size, (lowest, highest) = sizes.expression(symbol), _limits(span)
        if is_computed(sizes.name(str(symbol))):
            lowest = _promised(span)
        if lowest is not None:
            sizes.require(lowest, size)
        if highest is not None:
            sizes.require(size, highest)
    called = _called(program, sizes)  # first, as torch's decomposition fixes open sizes of this program, too
    try:
        if _holds_wrappers(program):
            raise NeedsDecomposition(())
        plain = buffers_as_results(program)
        return _imported(plain, sizes, guards, program.range_constraints, called, parameters, is_final=False)
    except NeedsDecomposition as e:
        simpler, assumed_too = _simplified(program, e)
    ranges = {**program.range_constraints, **simpler.range_constraints}
    return _imported(simpler, sizes, [*guards, *assumed_too], ranges, called, parameters, is_final=True)


def _holds_wrappers(program: ExportedProgram) -> bool:
    """Whether a parameter or constant wraps other tensors, as torchao's quantized weights do: decomposed programs hold
    the inner tensors instead."""
    tensors = (*program.state_dict.values(), *program.constants.values())
    return any(is_traceable_wrapper_subclass(t) for t in tensors)


def _simplified(program: ExportedProgram, cause: NeedsDecomposition) -> tuple[ExportedProgram, Sequence[sympy.Basic]]:
    try:
        simpler, assumed_too = decomposed(program, {op.name for op in cause.unsupported})
    except (RuntimeError, NotImplementedError, AssertionError) as e:
        listing = "".join(f"\n  {op}" for op in cause.unsupported)
        shared = _sharing(program)
        fix = f"give each its own memory (.clone()): {', '.join(shared)} share some" if shared else ""
        raise ImportModelError(f"torch cannot decompose the exported program: {e}{listing}", fix=fix) from e
    simpler.graph_module.meta[DIFFERENTIATED] = program.graph_module.meta.get(DIFFERENTIATED, False)
    return simpler, assumed_too


def _sharing(program: ExportedProgram) -> list[str]:
    """Names of the model's tensors that share memory with others."""
    places: dict[int, list[str]] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.BUFFER, InputKind.PARAMETER) and spec.target is not None:
            storage = _tensor(program, spec.target).untyped_storage()
            places.setdefault(storage.data_ptr(), []).append(spec.target)
    return next((names for names in places.values() if len(names) > 1), [])


def _environment(program: ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode.shape_env
    return None


def _names(program: ExportedProgram) -> dict[str, str]:
    return symbol_names(_environment(program)) | program.graph_module.meta.get(NAMES, {})


def _guards(program: ExportedProgram) -> Sequence[sympy.Basic]:
    environment = _environment(program)
    return [] if environment is None else [*assumed(environment), *program.graph_module.meta.get(ANSWERS, ())]


def _imported(
    program: ExportedProgram, sizes: Sizes, guards: Sequence[sympy.Basic], ranges: Mapping[sympy.Symbol, ValueRanges],
    called: Mapping[str, tuple[Leaf, object]], parameters: Collection[str], *, is_final: bool,
) -> ImportedModel:  # fmt: skip
    state_names = [target for target in _written_names(program) if target not in parameters]
    constants: dict[str, Node] = {}
    input_of_tensor: dict[int, Node] = {}  # by the tensor: names that are tied have one input
    sizes.begin(ranges)
    carriers: dict[str, Node] = {}
    importer = Importer(sizes, is_final, program.graph_module.meta.get(DIFFERENTIATED, False))
    inputs: list[Node] = []
    leaves: list[Leaf] = []
    values: list[object] = []
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            leaf, value = called[node.name]
            leaves.append(leaf)
            values.append(value)
            if leaf.kind != FIXED:
                carrier = _carrier(leaf, value)
                inputs.append(carrier)
                if leaf.kind == NUMBER:
                    values[-1] = Number(carrier)
                elif leaf.kind != SIZE:
                    sized = _of_sizes(carrier, node.meta["val"], sizes)
                    values[-1] = complex_of(sized) if leaf.kind == COMPLEX else sized
        elif spec.target in state_names:
            leaf, carrier = tensor_input(str(node.name), node.meta["val"], sizes)
            carriers[spec.target] = carrier
            values.append(complex_of(carrier) if leaf.kind == COMPLEX else carrier)
        elif spec.target is not None and spec.target in parameters:
            tensor = _tensor(program, spec.target)
            if id(tensor) not in input_of_tensor:
                input_of_tensor[id(tensor)] = constants[spec.target] = tensor_input(
                    str(node.name), node.meta["val"], sizes
                )[1]
            values.append(input_of_tensor[id(tensor)])
        else:
            values.append(_constant(program, spec))
    kinds = (spec.kind for spec in program.graph_signature.output_specs)
    results = zip(importer.run(program.graph_module, values), kinds, strict=True)
    outputs = [value for value, kind in results if kind is not OutputKind.TOKEN]
    importer.finish()
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    if in_spec is None or out_spec is None:
        raise ImportModelError("the exported program has no record of its arguments' structure", fix="export it again")
    changed = _changed(program)
    first = [*_written_names(program), *changed]
    adapter, results = output_adapter(outputs[len(first) :], out_spec)
    _, state_adapter = output_adapter(outputs[: len(first)], pytree.tree_flatten(tuple(range(len(first))))[1])
    renewed = [target for target in _written_names(program) if target in parameters]
    places = [*state_names, *renewed, *changed]
    state_adapter = [state_adapter[first.index(target)] for target in places]
    users = [leaf.name for leaf in leaves if leaf.kind != FIXED]
    inputs += [*constants.values(), *(carriers[target] for target in state_names)]
    names = (*(f"next {target}" for target in places), *adapter.names)
    graph = sizes.graph(inputs, (*state_adapter, *results), names)
    graph = replace(limited(graph, ranges, guards, sizes), state=tuple(state_names))
    writes = tuple(users.index(name) for name in changed)
    initial_values = {target: _initial_value(_tensor(program, target)) for target in state_names}
    learned = {target: _initial_value(_tensor(program, target)) for target in constants}
    flatten = InputAdapter(in_spec, tuple(leaves), _signature(program))
    return ImportedModel(graph, flatten, adapter, initial_values, writes, learned, tuple(renewed))


def _signature(program: ExportedProgram) -> inspect.Signature | None:
    """forward's signature, with defaults if exported from a module here; a program from a file has only names."""
    signature: inspect.Signature | None = program.graph_module.meta.get(SIGNATURE)
    names = getattr(program.module_call_graph[0].signature, "forward_arg_names", None)
    if signature is not None or not names:
        return signature
    return inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])


def _written_names(program: ExportedProgram) -> list[str]:
    """Names of the buffers and parameters whose new values are the first outputs."""
    kinds = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    return [str(spec.target) for spec in program.graph_signature.output_specs if spec.kind in kinds]


def _changed(program: ExportedProgram) -> list[str]:
    """The user's inputs whose new values are the outputs after those of `_written_names`."""
    specs = program.graph_signature.output_specs
    return [str(spec.target) for spec in specs if spec.kind is OutputKind.USER_INPUT_MUTATION]


def _initial_value(tensor: torch.Tensor) -> np.ndarray:
    """A copy that later calls of the module do not change."""
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    return to_numpy(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)


def _called(program: ExportedProgram, sizes: Sizes) -> dict[str, tuple[Leaf, object]]:
    """The leaves and values of a call's arguments, by placeholder name."""
    placeholders = (n for n in program.graph.nodes if n.op == "placeholder")
    specs = zip(placeholders, program.graph_signature.input_specs, strict=True)
    return {n.name: _user_input(n, spec, sizes) for n, spec in specs if spec.kind is InputKind.USER_INPUT}


def _user_input(node: fx.Node, spec: InputSpec, sizes: Sizes) -> tuple[Leaf, object]:
    argument = spec.arg
    name = str(node.name)
    if isinstance(argument, ConstantArgument):
        return Leaf(name, FIXED, argument.value), argument.value
    value = node.meta.get("val")
    if isinstance(argument, TensorArgument) and isinstance(value, torch.Tensor):
        return tensor_input(name, value, sizes)
    if isinstance(argument, SymIntArgument) and isinstance(value, torch.SymInt):
        size = sizes.dim(value)
        return (Leaf(name, SIZE), size) if isinstance(size, Dim) else (Leaf(name, FIXED, size), size)
    if isinstance(argument, SymFloatArgument):
        return Leaf(name, NUMBER), Input(name, TensorType(f64))()
    raise ImportModelError(
        f"input {name!r}", expected="a tensor, a number, a string or None", got=type(argument).__name__
    )


def tensor_input(name: str, value: torch.Tensor, sizes: Sizes) -> tuple[Leaf, Node]:
    """The leaf and the graph's input of a tensor; a complex one becomes real with a last axis of two."""
    kind = sizes.type(value)
    if value.is_complex():
        return Leaf(name, COMPLEX), Input(name, TensorType(kind.dtype, (*kind.shape, 2)))()
    return Leaf(name, TENSOR), Input(name, kind)()


def _of_sizes(x: Node, traced: torch.Tensor, sizes: Sizes) -> Node:
    """The input `x` with the sizes of the decomposed program: sizes that became numbers there are conditions."""
    shape = (*sizes.type(traced).shape, *x.shape[traced.dim() :])
    for size, target in zip(x.shape, shape, strict=True):
        sizes.require_equal(size, target)
    return with_shape(x, shape)


def _carrier(leaf: Leaf, value: object) -> Node:
    """The graph input of a leaf. A size is passed as the shape of an empty tensor, which binds the symbol."""
    if leaf.kind == SIZE:
        assert isinstance(value, Dim)
        return Input(leaf.name, TensorType(boolean, (value, 0)))()
    assert isinstance(value, Node)
    return value


def _constant(program: ExportedProgram, spec: InputSpec) -> object:
    """A parameter, buffer or lifted constant."""
    if spec.kind is InputKind.TOKEN or spec.target is None:
        return None
    return constant(_tensor(program, spec.target), loc=spec.target)


def _tensor(program: ExportedProgram, target: str) -> torch.Tensor:
    tensor = program.state_dict.get(target)
    if tensor is None:
        tensor = program.constants.get(target)
    if not isinstance(tensor, torch.Tensor):
        raise ImportModelError(f"constant {target!r}", expected="a tensor", got=type(tensor).__name__)
    return tensor


def output_adapter(outputs: Sequence[object], spec: pytree.TreeSpec) -> tuple[OutputAdapter, list[Node]]:
    """The adapter for a flat list of results, and the graph outputs among them (sizes as i64[])."""
    leaves: list[tuple[str, object]] = []
    results: list[Node] = []
    names: list[str] = []
    for name, value in zip(output_names(spec), outputs, strict=True):
        adapter = _result(value)
        if adapter is not None:
            leaves.append((adapter[0], len(results)))
            results.append(adapter[1])
            names.append(name)
        elif isinstance(value, torch.Tensor):
            leaves.append((TENSOR, len(results)))
            results.append(const(value.numpy()))
            names.append(name)
        else:
            leaves.append((FIXED, value))
    return OutputAdapter(spec, tuple(leaves), tuple(names)), results


def _result(value: object) -> tuple[str, Node] | None:
    """(kind, graph output) of a computed value; None for others."""
    match value:
        case Node():
            return TENSOR, value
        case Complex():
            return COMPLEX, real_of(value)
        case Dim():
            return SIZE, ops.DimValue(value)()
        case Number():
            return NUMBER, value.node
    return None


def limited(
    graph: Graph, ranges: Mapping[sympy.Symbol, ValueRanges], guards: Sequence[sympy.Basic], sizes: Sizes
) -> Graph:
    """`graph` restricted to the sizes that torch's ranges and guards and the importer's requirements allow."""
    bounds = _bounds(ranges, sizes, graph.symbols())
    limits: dict[str, Interval] = {name: default_bounds(name) for name in graph.symbols()}
    limits |= {name: (low, high) for name, low, high in bounds}
    return replace(graph, bounds=bounds, conditions=conditions(guards, sizes, limits))


def _bounds(ranges: Mapping[sympy.Symbol, ValueRanges], sizes: Sizes, used: Collection[str]) -> Bounds:
    """(symbol, lowest, highest or None) for the symbols `used`. Sizes of 0 are excluded.

    torch's range of an automatic dim starts at 2, as it traces as if no size were 0 or 1; the graph is valid for 1 too.
    """
    bounds_of_symbols: dict[str, tuple[int, int | None]] = {}
    for symbol, span in ranges.items():
        name, among = sizes.name(str(symbol)), sizes.progression(str(symbol))
        lowest, highest = _limits(span)
        if is_computed(name):
            lowest = _promised(span)
            if name in used and lowest:
                bounds_of_symbols[name] = lowest, finite(span.upper)
        elif name in used:
            low = 1 if lowest == 1 else -((among.start - lowest) // among.step)
            lower, upper = bounds_of_symbols.get(name, (1, None))  # symbols that are equal have one name
            highs = [high for high in (upper, highest and (highest - among.start) // among.step) if high is not None]
            bounds_of_symbols[name] = max(lower, low), min(highs, default=None)
    return tuple((name, *span) for name, span in sorted(bounds_of_symbols.items()))


def _promised(span: ValueRanges) -> int | None:
    """The lower bound of a run-time value; torch's own default of 2 is not one."""
    lowest = finite(span.lower)
    return 0 if lowest is not None and 0 <= lowest <= 2 else lowest


def _limits(span: ValueRanges) -> tuple[int, int | None]:
    lowest = finite(span.lower) or 1
    return (1 if lowest <= 2 else lowest), finite(span.upper)
