"""torch.compile(net, backend="ingot"), inference only: dynamo's graph, then AOTAutograd's functional aten graph.

Dynamo hands over a graph with the parameters among its inputs. They are compiled in as constants (that is what lets
weights be packed); a call with other or changed parameters compiles anew, so that load_state_dict is seen. What the
graph itself writes (a counter, a cache of keys and values) stays an input: torch copies the results back.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import sympy
import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from ingot.frontends.torch.aten.complex import complex_of
from ingot.frontends.torch.convert import Sizes, data_reads
from ingot.frontends.torch.decompose import without_handled
from ingot.frontends.torch.guards import equations
from ingot.frontends.torch.importer import Importer, constant
from ingot.frontends.torch.model import COMPLEX, NUMBER, SIZE, ImportedModel, InputAdapter, Leaf
from ingot.frontends.torch.program import limited, output_adapter, tensor_input
from ingot.frontends.torch.values import Number, boolean, f64
from ingot.ir.dims import Dim
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType
from ingot.support.errors import ImportModelError, InputError

Compiled = Callable[..., Any]
Compile = Callable[[ImportedModel], Compiled]


OPTIONS = ("precision", "threads", "cache", "fast_math")


def _ingot_compile(model: ImportedModel, **options: Any) -> Compiled:
    # the backend's one way up: dynamo calls it by name and passes no compiler, and frontends lie below the pipeline
    return importlib.import_module("ingot").compile(model, **options)


def ingot_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    compile_model: Callable[..., Compiled] = _ingot_compile,
) -> Callable[..., Any]:
    """Dynamo's backend entry point. `compile_model` turns an ImportedModel into a callable over its flat tensors.

    options: torch.compile's, those of OPTIONS, as `ingot.compile` takes them.

    Raises ImportModelError where gradients are needed, UnsupportedOpError with all ops that Ingot has not, InputError
    for an option that does not exist.
    """
    if unknown := sorted(set(options or {}) - set(OPTIONS)):
        raise InputError("options", expected=f"some of {', '.join(OPTIONS)}", got=", ".join(unknown))
    compile_model = partial(compile_model, **(options or {}))
    _refuse_gradients(example_inputs)
    fixed = _parameters(module, example_inputs)
    table = without_handled(core_aten_decompositions())

    def compile_forward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # the functional graph has dynamo's inputs in dynamo's order
        return _Specialized(gm, fixed - _written(), compile_model)

    def refuse_backward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        raise _gradient_error()

    return aot_module_simplified(
        module,
        example_inputs,
        fw_compiler=compile_forward,
        bw_compiler=refuse_backward,
        inference_compiler=compile_forward,
        decompositions=table,
    )


def _gradient_error() -> ImportModelError:
    return ImportModelError(
        "backend 'ingot' compiles inference only, and this graph needs gradients",
        fix="call the model under torch.no_grad() or torch.inference_mode(), or net.requires_grad_(False)",
    )


def _refuse_gradients(inputs: Sequence[Any]) -> None:
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        raise _gradient_error()


def _parameters(module: fx.GraphModule, inputs: Sequence[Any]) -> frozenset[int]:
    """Positions of the inputs that are the model's parameters and buffers, as dynamo marks them."""
    found: set[int] = set()
    for i, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder"):
        marked = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        if i < len(inputs) and (marked or isinstance(inputs[i], torch.nn.Parameter)):
            found.add(i)
    return frozenset(found)


def _written() -> frozenset[int]:
    """Positions of the inputs whose data the graph that is being traced writes."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    return frozenset(i for i, info in enumerate(context.fw_metadata.input_info) if info.mutates_data)


def _version(tensor: torch.Tensor) -> int:
    # an inference tensor cannot change outside inference mode and has no counter
    return 0 if tensor.is_inference() else tensor._version


class _Specialized:
    """One functional graph, compiled for the parameters of the last call; they are read anew when they changed.

    Called with a list of the graph's inputs.
    """

    _boxed_call = True  # AOTAutograd's name for functions of one list

    def __init__(self, graph: fx.GraphModule, fixed: frozenset[int], compile_model: Compile):
        self._graph, self._fixed, self._compile = graph, sorted(fixed), compile_model
        self._seen, self._views = _input_views(graph)
        self._state: tuple[tuple[int, int], ...] | None = None
        self._held: list[torch.Tensor] = []
        self._kept: list[int] = []
        self._run: Compiled | None = None

    def __call__(self, args: list[Any]) -> Any:
        state = tuple([(id(args[i]), _version(args[i])) for i in self._fixed])
        if self._run is None or state != self._state:
            self._specialize(args)
            self._state = state
        assert self._run is not None
        result = self._run(*(args if not self._fixed else [args[i] for i in self._kept]))
        result = result if isinstance(result, tuple | list) else (result,)
        if self._views is None:
            return result
        views = dict(zip(self._seen, self._views(*args), strict=True))
        return tuple([views.get(i, r) for i, r in enumerate(result)])

    def _specialize(self, args: Sequence[Any]) -> None:
        # held, so that no other tensor takes an id over
        self._held = [args[i] for i in self._fixed]
        self._kept = [i for i in range(len(args)) if i not in set(self._fixed)]
        held = dict(zip(self._fixed, self._held, strict=True))
        self._run = self._compile(import_flat(self._graph, held))


def _input_views(module: fx.GraphModule) -> tuple[list[int], fx.GraphModule | None]:
    """(which results are views of inputs, the graph of these views alone); ([], None) for static sizes.

    AOTAutograd makes such a result from the input again: of static sizes by the views' own ops, else by the strides and
    the offset of what the backend returned, which have to be the view's.
    """
    (end,) = (n for n in module.graph.nodes if n.op == "output")
    found = [i for i, n in enumerate(end.args[0]) if isinstance(n, fx.Node) and _is_view_of_input(n)]
    if not found or _environment(module.graph) is None:
        return [], None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for n in module.graph.nodes:
        if n is not end:
            copies[n] = graph.node_copy(n, lambda old: copies[old])
    graph.output([copies[end.args[0][i]] for i in found])
    graph.eliminate_dead_code()
    return found, fx.GraphModule(module, graph)


def _is_view_of_input(node: fx.Node) -> bool:
    views = 0
    while node.op == "call_function":
        split = node.target is operator.getitem
        if not (split or getattr(node.target, "is_view", False)) or not isinstance(node.args[0], fx.Node):
            return False
        node, views = node.args[0], views + 1
    return node.op == "placeholder" and views > 0


def import_flat(module: fx.GraphModule, constants: dict[int, torch.Tensor]) -> ImportedModel:
    """A functional aten graph as a model over its remaining inputs, positional and flat, returning a flat tuple."""
    environment = _environment(module.graph)
    # dynamo checks the guards at each call, and the sizes of parameters with them
    guards = [] if environment is None else [g.expr for g in environment.guards]
    equal = equations(guards, _sizes_of(module.graph, constants))
    sizes = Sizes(equal=equal, reads=data_reads(module.graph))
    ranges = {} if environment is None else environment.var_to_range
    sizes.begin(ranges)
    importer = Importer(sizes, final=True)
    inputs: list[Node] = []
    leaves: list[Leaf] = []
    values: list[object] = []
    for i, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder"):
        if i in constants:
            values.append(constant(constants[i], loc=str(node.target)))
            continue
        leaf, value, carrier = _input(str(node.target), node.meta.get("val"), sizes)
        leaves.append(leaf)
        inputs.append(carrier)
        values.append(value)
    outputs = importer.run(module, values)
    importer.finish()
    flat_out = pytree.tree_flatten(tuple(range(len(outputs))))[1]
    flat_in = pytree.tree_flatten((tuple(range(len(leaves))), {}))[1]
    adapter, results = output_adapter(outputs, flat_out)
    graph = limited(sizes.graph(inputs, results, adapter.names), ranges, (), sizes)
    return ImportedModel(graph, InputAdapter(flat_in, tuple(leaves)), adapter)


def _input(name: str, value: object, sizes: Sizes) -> tuple[Leaf, object, Node]:
    """(leaf, the importer's value, graph input) of one placeholder."""
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
    """What the sizes of the inputs that are constants were called while torch traced -> what they are."""
    found: dict[sympy.Basic, int] = {}
    for i, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        value = node.meta.get("val")
        if i in constants and isinstance(value, torch.Tensor):
            named = zip(value.shape, constants[i].shape, strict=True)
            found |= {name.node.expr: size for name, size in named if isinstance(name, torch.SymInt)}
    return found


def _environment(graph: fx.Graph) -> ShapeEnv | None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
    return None
