"""A SavedModel's folder or a frozen graph: its signature, its variables, and the caller's requests about inputs.

folder  ->  saved_model.pb: nodes, functions, signatures;  variables/: a checkpoint
inputs, outputs  ->  the part of the graph between them
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.dynamic import Dynamic, Requests, requests
from ingot.frontends.shared.retries import Known, with_retries
from ingot.frontends.shared.sizes import Sizes
from ingot.frontends.tensorflow.bundle import Bundle, map_file
from ingot.frontends.tensorflow.functional import functional
from ingot.frontends.tensorflow.proto import (
    FunctionDef,
    GraphDef,
    MetaGraph,
    NodeDef,
    SavedModel,
    SignatureDef,
    Size,
    read_message,
    shape_of,
)
from ingot.frontends.tensorflow.tensors import COMPLEX, dtype_of_code, is_numeric
from ingot.frontends.tensorflow.values import Missing, Value
from ingot.frontends.tensorflow.walk import Frame, Walk, WrittenVariable
from ingot.ir.node import Const, Graph, Input, Node
from ingot.ir.types import DTYPES, DType, TensorType
from ingot.ir.verify import check_sizes
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError, UnsupportedOp, UnsupportedOpError
from ingot.support.limits import limited

Shape = Sequence[int | None]
# names of tensors; or with their shapes, or ("i64", shape)
Inputs = Sequence[str] | Mapping[str, Shape | tuple[str, Shape] | None]
_DEFAULT_SIGNATURE = "serving_default"
_SINKS = frozenset(("NoOp", "Assert", "Print", "Const", "Placeholder"))


@dataclass(frozen=True)
class Endpoint:
    """An input or output: its public name, and its tensor. dtype: an element type's code, 0 if unknown."""

    name: str
    tensor: str
    dtype: int = 0
    shape: tuple[Size, ...] | None = None


@dataclass(frozen=True)
class Program:
    """The program to import. variables: those whose values are known. restore: the node that restores the others.
    captured: tensors whose values are given but which are no inputs. effects: nodes that run for their writes.
    signature: its name."""

    graph: GraphDef
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    where: str
    bundle: Bundle | None = None
    restore: str = ""
    effects: tuple[str, ...] = ()
    captured: Mapping[str, Value] = field(default_factory=dict[str, Value])
    variables: Mapping[str, Node] = field(default_factory=dict[str, Node])
    signature: str = ""


@dataclass(frozen=True)
class ImportedModel:
    """A model as a graph. state: the variables that it writes and their initial values: the graph's last inputs and
    first outputs."""

    graph: Graph
    state: Mapping[str, np.ndarray]


@limited()
def import_tensorflow(
    source: str | os.PathLike[str] | Program, *, signature: str | None = None, inputs: Inputs | None = None,
    outputs: Sequence[str] | None = None, dynamic: Dynamic = None,
) -> ImportedModel:  # fmt: skip
    """A TensorFlow model as a MODEL-level graph. TensorFlow is not needed.

    source: a SavedModel's folder, or the file of a frozen GraphDef. Variables that the model does not write are
        constants, views of the mapped checkpoint: keep the files unchanged while the graph is in use.
    signature: which of a SavedModel's signatures, "serving_default" if there is one.
    inputs: replace the model's inputs: names of inputs, or of inner tensors that become inputs ("dense/Relu:0"; a
        function's nodes are prefixed with the call's name). A mapping gives their shapes, or ("f32", shape).
    outputs: replace the model's outputs, likewise.
    dynamic: of open sizes, symbols `<input>_<axis>`: None keeps them, False refuses them; a mapping gives symbols a
        size or inclusive bounds, and so for axes of an input, or a name: {"x": {0: "batch", 1: 128}}.

    Raises ImportModelError for a file that is missing, truncated, malformed or unsafe; UnsupportedOpError naming every
    node that Ingot has no op for, and a cut that leaves them out; InputError for what does not fit the model.
    """
    program = source if isinstance(source, Program) else read_program(Path(source), signature)
    program = cut(program, inputs, outputs)
    restored = dict(program.variables) | _restored(program)
    requested = requests(dynamic, {i.name: i.shape for i in program.inputs})
    written_keys: set[str] = set()

    def attempt(known: Known) -> ImportedModel:
        while True:
            values, nodes = _inputs(program, requested, known)
            labels = frozenset(n.op.label for n in nodes if isinstance(n.op, Input))
            walk = Walk(program.graph.functions, values, Sizes(labels), program.bundle, dict(restored))
            walk.computed_sizes = ComputedSizes(known.computed_sizes)
            for key in sorted(written_keys):
                walk.as_state(key)
            try:
                frame = Frame(program.graph.nodes, effects=True)
                results = walk.run(frame, [o.tensor for o in program.outputs], program.effects)
                return _imported_model(program, walk, nodes, results, requested, restored)
            except WrittenVariable as e:
                written_keys.add(e.key)

    return with_retries(attempt, {}, program.where)


def _imported_model(
    program: Program, walk: Walk, nodes: Sequence[Node], results: Sequence[Value], requested: Requests,
    restored: Mapping[str, Node],
) -> ImportedModel:  # fmt: skip
    for o, v in zip(program.outputs, results, strict=True):
        if not isinstance(v, Node | Missing):
            walk.has_lost_writes = True
            advice = "return tf.math.real and tf.math.imag of it" if isinstance(v, Complex) else ""
            what = "an output of complex numbers" if advice else "an output that is no tensor of numbers"
            walk.refused.append(UnsupportedOp(what, o.name, advice))
    if walk.has_lost_writes or any(isinstance(v, Missing) for v in results):
        walk.refused += _unread(program, bool(walk.refused))
        raise UnsupportedOpError(walk.refused, model=program.where, fix=_advice(program, walk, results))
    values = [v for v in results if isinstance(v, Node)]
    states = [(key, n) for key, n in walk.state.items()]
    names = [*(key for key, _ in states), *(o.name for o in program.outputs)]
    graph = Graph(
        (*nodes, *(n for _, n in states)), (*(walk.variables[key] for key, _ in states), *values), tuple(names),
        conditions=tuple(walk.conditions), state=tuple(key for key, _ in states),
    )  # fmt: skip
    graph = walk.computed_sizes.added(replace(graph, bounds=requested.limits(graph)))
    check_sizes(graph, program.where)
    first: dict[str, np.ndarray] = {}
    for key, _ in states:
        op = restored[key].op
        assert isinstance(op, Const)
        first[key] = np.array(op.value)
    return ImportedModel(graph, first)


def _unread(program: Program, has_other_refusals: bool) -> list[UnsupportedOp]:
    """The inputs of complex numbers; if nothing else is refused, also those that are not numeric."""
    advice = "take tf.math.real and tf.math.imag of it, and make tf.complex of them inside"
    unsupported = [
        UnsupportedOp("an input of complex numbers", i.name, advice) for i in program.inputs if i.dtype in COMPLEX
    ]
    if unsupported or has_other_refusals:
        return unsupported
    return [UnsupportedOp("an input that is no tensor of numbers", i.name) for i in program.inputs
            if not is_numeric(i.dtype)]  # fmt: skip


def _advice(program: Program, walk: Walk, results: Sequence[Value]) -> str | None:
    """Advice on a cut that excludes the refused nodes."""
    parts: list[str] = []
    if walk.cuts:
        parts.append("inputs=[" + ", ".join(map(repr, [*_numeric_inputs(program), *walk.cuts])) + "]")
    fine = [o.name for o, v in zip(program.outputs, results, strict=True) if isinstance(v, Node)]
    if fine:
        parts.append(f"outputs={fine}")
    return "leave that part out, and compute it before: " + ", or ".join(parts) if parts else None


def _numeric_inputs(program: Program) -> list[str]:
    return [i.name for i in program.inputs if is_numeric(i.dtype)]


# --- files


def read_program(path: Path, signature: str | None = None) -> Program:
    """A SavedModel or a frozen graph, as its content says."""
    if path.is_dir():
        return _saved_model(path, signature)
    if path.name == "saved_model.pb":
        return _saved_model(path.parent, signature)
    data = map_file(path, path.resolve().parent)
    graph = GraphDef.read(read_message(data, "a GraphDef", str(path)))
    if signature is not None:
        raise InputError("signature", expected="none: a frozen graph has no signatures", got=repr(signature))
    return graph_program(graph, str(path))


def graph_program(graph: GraphDef, where: str) -> Program:
    """A graph without signatures: outputs are the nodes without readers, inputs the placeholders that they need."""
    if not graph.nodes:
        raise ImportModelError("a graph without nodes", where=where, fix="check that the file is a GraphDef")
    read = {i.lstrip("^").split(":")[0] for n in graph.nodes.values() for i in n.inputs}
    ends = [n for n in graph.nodes.values() if n.name not in read and n.op not in _SINKS]
    outputs = [Endpoint(n.name, f"{n.name}:0") for n in ends]
    needed_names = _ancestors(graph, ends)
    inputs = [
        Endpoint(n.name, f"{n.name}:0", n.attributes["dtype"].int(6), _declared(n))
        for n in graph.nodes.values()
        if n.name in needed_names and n.op in ("Placeholder", "PlaceholderV2") and "dtype" in n.attributes
    ]
    return Program(functional(graph), tuple(inputs), tuple(outputs), where)


def _ancestors(graph: GraphDef, ends: Sequence[NodeDef]) -> set[str]:
    """The names of these nodes and all their ancestors."""
    visited, stack = {n.name for n in ends}, list(ends)
    while stack:
        names = (i.split(":")[0] for i in stack.pop().data_inputs)
        parents = [graph.nodes[n] for n in names if n in graph.nodes and n not in visited]
        visited.update(n.name for n in parents)
        stack += parents
    return visited


def _declared(node: NodeDef, index: int = 0) -> tuple[Size, ...] | None:
    """The declared shape of a node's result."""
    noted = node.attributes.get("_output_shapes")
    shapes = noted.message(1).messages(7) if noted is not None else []
    if index < len(shapes):
        return shape_of(shapes[index])
    shape_attribute = node.attributes.get("shape")
    return (
        shape_of(shape_attribute.message(7))
        if shape_attribute is not None and node.op.startswith("Placeholder")
        else None
    )


def _saved_model(folder: Path, signature: str | None) -> Program:
    path = folder / "saved_model.pb"
    message = read_message(map_file(path, folder), "a SavedModel", str(path))
    graphs = SavedModel.read(message).meta_graphs
    if not graphs:
        raise ImportModelError("a SavedModel without graphs", where=str(path), fix="save the model again")
    meta = next((m for m in graphs if "serve" in m.tags), graphs[0])
    named, endpoints = _signature(meta, signature, str(path))
    prefix = folder / "variables" / "variables"
    has_variables = prefix.with_name("variables.index").exists()
    return Program(
        functional(meta.graph),
        tuple(Endpoint(k, i.tensor, i.dtype, i.shape) for k, i in endpoints.inputs.items()),
        tuple(Endpoint(k, o.tensor, o.dtype, o.shape) for k, o in endpoints.outputs.items()),
        str(folder),
        Bundle.open(prefix, folder) if has_variables else None,
        meta.restore.split(":")[0],
        signature=named,
    )


def _signature(meta: MetaGraph, name: str | None, where: str) -> tuple[str, SignatureDef]:
    usable = {k: s for k, s in meta.signatures.items() if s.outputs and not k.startswith("__saved_model_")}
    if name is None:
        name = _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in usable or len(usable) != 1 else next(iter(usable))
    if name not in usable:
        fix = "pass signature=" if usable else "save the model with signatures=, or freeze it to a GraphDef"
        raise InputError("signature", expected=f"one of {sorted(usable)}", got=repr(name), fix=f"{fix} ({where})")
    return name, usable[name]


def _restored(program: Program) -> dict[str, Node]:
    """The variables' values, as assigned by the model's own restore operation."""
    if program.bundle is None or program.restore not in program.graph.nodes:
        return {}
    walk = Walk(program.graph.functions, {}, Sizes(), program.bundle, is_restoring=True)
    walk.run(Frame(program.graph.nodes, effects=True), (), (program.restore,))
    return walk.variables


# --- the caller's requests


def cut(program: Program, inputs: Inputs | None, outputs: Sequence[str] | None) -> Program:
    """The part of the program between these inputs and outputs; None: the program's own."""
    if inputs is not None:
        shapes = inputs if isinstance(inputs, Mapping) else dict.fromkeys(inputs)
        program = replace(program, inputs=tuple(_requested_input(program, n, s) for n, s in shapes.items()))
    if outputs is not None:
        outputs_by_name = {o.name: o for o in program.outputs}
        program = replace(
            program, outputs=tuple(outputs_by_name.get(n) or Endpoint(n, _tensor(program, n)) for n in outputs)
        )
    if not program.outputs:
        raise InputError("outputs", expected="some of the model's tensors", got="none")
    return program


def _tensor(program: Program, name: str) -> str:
    """The tensor `node:index` that a name stands for."""
    tensor = name if ":" in name else f"{name}:0"
    if tensor.split(":")[0] not in program.graph.nodes:
        names = [o.name for o in program.outputs]
        raise InputError("outputs", expected=f"some of {names}, or nodes outside functions", got=repr(name))
    return tensor


def _requested_input(program: Program, name: str, request: Shape | tuple[str, Shape] | None) -> Endpoint:
    endpoint = next((i for i in program.inputs if i.name == name), None)
    if endpoint is None:
        tensor = name if ":" in name else f"{name}:0"
        path, _, index = tensor.rpartition(":")
        node = _node_at(program.graph.nodes, program.graph.functions, path)
        if node is None or not index.isdecimal():
            raise InputError("inputs", expected="inputs of the model, or its tensors", got=repr(name))
        endpoint = Endpoint(name, tensor, _result_type(node, int(index)), _declared(node, int(index)))
    if request is None:
        return endpoint
    kind, sizes = (request[0], request[1]) if len(request) == 2 and isinstance(request[0], str) else ("", request)
    if kind:
        if kind not in DTYPES:
            raise InputError(f"inputs[{name!r}]", expected=f"one of {', '.join(DTYPES)}", got=repr(kind))
        endpoint = replace(endpoint, dtype=next(c for c in range(1, 24) if is_numeric(c) and _is(c, DTYPES[kind])))
    if not isinstance(sizes, Sequence) or not all(d is None or isinstance(d, int) for d in sizes):
        raise InputError(f"inputs[{name!r}]", expected="a shape, None for open sizes", got=repr(request))
    return replace(endpoint, shape=tuple(d if isinstance(d, int) else None for d in sizes))


def _is(code: int, dtype: DType) -> bool:
    return dtype_of_code(code) == dtype


def _node_at(nodes: Mapping[str, NodeDef], functions: Mapping[str, FunctionDef], path: str) -> NodeDef | None:
    """The node at a path: in the graph, or in the function that the preceding node of the path calls."""
    if path in nodes:
        return nodes[path]
    ends = [i for i, letter in enumerate(path) if letter == "/" and path[:i] in nodes]
    for end in ends:
        node = nodes[path[:end]]
        names = [node.op, *(m.message(10).text(1) for m in node.attributes.values() if m.has(10))]
        for name in names:
            inner_node = _node_at(functions[name].nodes, functions, path[end + 1 :]) if name in functions else None
            if inner_node is not None:
                return inner_node
    return None


# attributes that have the type of a result, the most specific ones first
_RESULT_TYPES = ("Tout", "DstT", "out_type", "output_type", "dtype", "T", "Tparams")


def _result_type(node: NodeDef, index: int) -> int:
    for name in _RESULT_TYPES:
        m = node.attributes.get(name)
        if m is not None:
            listed = m.message(1).ints(6)
            return listed[index] if index < len(listed) else m.int(6)
    return 0


def _inputs(program: Program, requested: Requests, known: Known) -> tuple[dict[str, Value], list[Node]]:
    """Tensors that are given, and the inputs of the graph among them."""
    values: dict[str, Value] = dict(program.captured)
    nodes: list[Node] = []
    for i in program.inputs:
        if not is_numeric(i.dtype):
            if i.dtype == 0:
                fix = f"inputs={{{i.name!r}: ('f32', [...])}}"
                raise InputError(f"the type of {i.name!r} is not known", fix=f"give it: {fix}")
            values[_full(i.tensor)] = Missing()
            continue
        if i.shape is None:
            fix = f"inputs={{{i.name!r}: [None, 224, 224, 3]}}, with None for open sizes"
            raise InputError(f"input {i.name!r} has no shape", fix=f"give it: {fix}")
        node = known.input(i.name, TensorType(dtype_of_code(i.dtype), requested.shapes[i.name]))
        nodes.append(node)
        values[_full(i.tensor)] = node
    return values, nodes


def _full(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"
