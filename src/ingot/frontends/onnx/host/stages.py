"""A model as stages that run in turn: nodes on the host (strings, images), and numeric parts that become programs.

    StringNormalizer -> TfIdfVectorizer -> MatMul -> ArgMax -> LabelEncoder    (words in, a label out)
    |------------- host -------------|   |--- numeric ---|   |--- host ---|

A numeric part is a model of its own, specialized for its inputs' forms, which are known only when the model is called:
the number of tensors in a sequence, whether an optional is present, the rank of what the host computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ingot.frontends.onnx.functions import in_order, reads, required_nodes
from ingot.frontends.onnx.host import images, text  # noqa: F401 - fill the table
from ingot.frontends.onnx.host.node import HOST_OPS, HostNode, Kind, key, strings, tensor
from ingot.frontends.onnx.importer import read_model
from ingot.frontends.onnx.protos import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from ingot.frontends.onnx.tensors import type_text
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, UnsupportedOp, UnsupportedOpError

_STRING = TensorProto.STRING


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's element type and its sizes; a size of None: any."""

    code: int
    shape: tuple[int | None, ...]


# the form of a value: a tensor's, those of a sequence's members, or None for an absent optional
Form = Tensor | tuple["Form", ...] | None


@dataclass(frozen=True)
class HostStage:
    nodes: tuple[HostNode, ...]

    def advance(self, values: dict[str, Any], compute: Compute) -> None:
        """Add the nodes' results to `values`."""
        for n in self.nodes:
            operands = [values[name] if name else None for name in n.proto.input]
            values.update(zip(n.proto.output, n.run(*operands), strict=False))

    def __str__(self) -> str:
        return "host: " + ", ".join(n.proto.op_type for n in self.nodes)


@dataclass(frozen=True)
class NumericStage:
    """A part of `model`: its nodes, the values that they read from other stages and the caller, and those that others
    read."""

    model: ModelProto
    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def advance(self, values: dict[str, Any], compute: Compute) -> None:
        """Add the results of the part's program to `values`."""
        values.update(compute(self, values))

    def __str__(self) -> str:
        return f"program: {', '.join(self.inputs)} -> {', '.join(self.outputs)}, {len(self.nodes)} nodes"

    @cached_property
    def _declared(self) -> dict[str, ValueInfoProto]:
        graph = self.model.graph
        return {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}

    def part(self, forms: Sequence[Form]) -> ModelProto:
        """This stage as a model, for inputs of these forms; its inputs are tensors."""
        from onnx import helper

        graph = self.model.graph
        read = set(self.outputs).union(*(reads(n) for n in self.nodes))
        inputs: list[ValueInfoProto] = []
        nodes: list[NodeProto] = []
        for name, form in zip(self.inputs, forms, strict=True):
            self._bind(name, form, self._declared.get(name), inputs, nodes)
        part = ModelProto()
        part.CopyFrom(ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import))
        part.functions.extend(self.model.functions)
        part.graph.name = graph.name
        part.graph.node.extend((*nodes, *self.nodes))
        part.graph.input.extend(inputs)
        part.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in self.outputs)
        part.graph.initializer.extend(t for t in graph.initializer if t.name in read)
        part.graph.sparse_initializer.extend(s for s in graph.sparse_initializer if s.values.name in read)
        return part

    def _bind(
        self, name: str, form: Form, declared: ValueInfoProto | None, inputs: list[ValueInfoProto],
        nodes: list[NodeProto],
    ) -> None:  # fmt: skip
        """The tensor inputs for one value, and the node that assembles the value where they are several or none."""
        from onnx import helper

        kind = None if declared is None else declared.type.WhichOneof("value")
        if form is None:
            assert declared is not None
            nodes.append(helper.make_node("Optional", [], [name], type=declared.type.optional_type.elem_type))
        elif isinstance(form, Tensor):
            is_ranked = kind == "tensor_type" and declared is not None and declared.type.tensor_type.HasField("shape")
            if declared is not None and is_ranked and None in form.shape and 0 not in form.shape:
                inputs.append(declared)
            else:
                inputs.append(helper.make_tensor_value_info(name, form.code, form.shape))
        else:
            members = [f"{name}.{i}" for i in range(len(form))]
            for member, inner in zip(members, form, strict=True):
                self._bind(member, inner, None, inputs, nodes)
            nodes.append(helper.make_node("SequenceConstruct" if members else "SequenceEmpty", members, [name]))

    def tensors(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """This stage's input values by the names of the part's inputs."""
        arrays: dict[str, np.ndarray] = {}
        for name in self.inputs:
            value = values[name]
            if isinstance(value, list | tuple):
                arrays.update((f"{name}.{i}", v) for i, v in enumerate(value))
            elif value is not None:
                arrays[name] = value
        return arrays

    def forms(self, values: Mapping[str, Any], *, exact: bool) -> tuple[Form, ...]:
        """The forms of the inputs, with sizes if `exact`. Raises InputError for a value that is neither a tensor nor a
        sequence, nor an absent optional where that is allowed."""
        return tuple(self._form(name, values[name], exact) for name in self.inputs)

    def _form(self, name: str, value: Any, exact: bool) -> Form:
        from onnx import helper

        if value is None:
            declared = self._declared.get(name)
            if declared is None or declared.type.WhichOneof("value") != "optional_type":
                raise InputError(f"input {name!r}", expected="a tensor", got="None")
            return None
        if isinstance(value, list | tuple):
            return tuple(self._form(name, v, exact) for v in value)
        try:
            # 0 stays: a symbol cannot be 0
            sizes = tuple(d if exact or d == 0 else None for d in value.shape)
            return Tensor(helper.np_dtype_to_tensor_dtype(value.dtype), sizes)
        except (AttributeError, KeyError, ValueError) as e:
            raise InputError(f"input {name!r}", expected="an array of numbers", got=type(value).__name__) from e

    def restored(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs, from the part's results by name: members of a sequence are joined to a list."""
        values: dict[str, Any] = {}
        for name in self.outputs:
            if name in results:
                values[name] = results[name]
                continue
            members: list[Any] = []
            while f"{name}.{len(members)}" in results:
                members.append(results[f"{name}.{len(members)}"])
            declared = self._declared.get(name)
            absent = declared is not None and declared.type.WhichOneof("value") == "optional_type" and not members
            values[name] = None if absent else members
        return values


Stage = HostStage | NumericStage
Compute = Callable[[NumericStage, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Stages:
    """A whole model: the caller's inputs and outputs by name, and the stages in order."""

    model: ModelProto
    stages: tuple[Stage, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(v.name for v in _free_inputs(self.model.graph))

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.model.graph.output)

    @property
    def types(self) -> dict[str, str]:
        """The declared types of the caller's inputs and outputs."""
        return {v.name: type_text(v.type) for v in (*self.model.graph.input, *self.model.graph.output)}

    def with_constants(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The caller's values and the constants that the host reads, by name."""
        values = dict(arguments)
        for name in _strings(self.model.graph) & values.keys():
            values[name] = strings(np.asarray(values[name]))
        return values | self._constants

    @cached_property
    def _constants(self) -> dict[str, np.ndarray]:
        read = set(self.outputs)
        for stage in self.stages:
            if isinstance(stage, HostStage):
                read.update(name for n in stage.nodes for name in n.proto.input)
        return {name: tensor(t) for name, t in _constants(self.model.graph).items() if name in read}


def needs_host(model: ModelProto, outputs: Collection[str] | None = None) -> bool:
    """Whether the model (or the part for some outputs) takes, returns or computes what a single program cannot:
    strings, images, sequences, optionals."""
    graph = model.graph
    textual = _strings(graph)
    wanted_outputs = [o for o in graph.output if outputs is None or o.name in outputs]
    if any(_is_special(v) for v in (*graph.input, *wanted_outputs)):
        return True
    nodes = in_order(graph.node)
    kept_nodes = required_nodes(nodes, [o.name for o in graph.output] if outputs is None else outputs)
    return any(i in kept_nodes and _on_host(HostNode(n, _version(model, n)), textual) for i, n in enumerate(nodes))


def hosted(source: str | os.PathLike[str] | ModelProto, outputs: Collection[str] | None = None) -> ModelProto | None:
    """The model with its weights where it (or the part for some outputs) needs the host, else None. Raises as
    `import_onnx` does."""
    if not needs_host(_spelled(read_model(source)[0]), outputs):
        return None
    if isinstance(source, ModelProto):
        return _spelled(source)
    import onnx

    return _spelled(onnx.load(os.fspath(source)))


def _spelled(model: ModelProto) -> ModelProto:
    """Makes classifiers with string labels return label indices, which the host then maps to the strings.

    LinearClassifier(strings=[no, yes])   ->   LinearClassifier(ints=[0, 1]), LabelEncoder(0 -> no, 1 -> yes)
    """
    label_lists = {i: s for i, n in enumerate(model.graph.node) if n.output and n.output[0] and (s := _labels(n))}
    if not label_lists:
        return model
    from onnx import helper

    changed = ModelProto()
    changed.CopyFrom(model)
    for i, names in label_lists.items():
        node = changed.graph.node[i]
        label, place = node.output[0], f"{node.output[0]}.place"
        node.output[0] = place
        kept_attributes = [a for a in node.attribute if not a.name.startswith("classlabels_")]
        labels_attribute = "classlabels_int64s" if node.op_type.startswith("Tree") else "classlabels_ints"
        del node.attribute[:]
        node.attribute.extend([*kept_attributes, helper.make_attribute(labels_attribute, range(len(names)))])
        # the attributes of the domain's first version, and of later ones
        keys = {"classes_strings": names, "keys_int64s": range(len(names)), "values_strings": names}
        strings = ("classes_strings",) if _version(model, node) < 2 else ("keys_int64s", "values_strings")
        encoder = NodeProto(op_type="LabelEncoder", domain=node.domain, input=[place], output=[label])
        encoder.attribute.extend(helper.make_attribute(k, list(keys[k])) for k in strings)
        changed.graph.node.append(encoder)
    return changed


def _labels(node: NodeProto) -> Sequence[bytes]:
    """A classifier's labels, where they are strings."""
    if node.domain != "ai.onnx.ml" or not node.op_type.endswith("Classifier"):
        return ()
    return next((a.strings for a in node.attribute if a.name == "classlabels_strings"), ())


def stages_of(model: ModelProto) -> Stages:
    """The model's nodes in as few stages as their order allows. Raises UnsupportedOpError for ops on strings that the
    host does not implement.
    """
    graph = model.graph
    nodes = in_order(graph.node)
    kept_nodes = required_nodes(nodes, [o.name for o in graph.output])
    textual, levels = _strings(graph), dict.fromkeys((v.name for v in graph.input), 0)
    nodes_by_level: dict[int, list[NodeProto]] = {}
    refused: list[UnsupportedOp] = []
    for i, proto in enumerate(nodes):
        if i not in kept_nodes:
            continue
        n = HostNode(proto, _version(model, proto))
        on_host = _on_host(n, textual)
        if not on_host and any(name in textual for name in reads(proto)):
            refused.append(UnsupportedOp(proto.op_type, n.where, "of strings"))
        level = max((levels.get(name, 0) for name in reads(proto)), default=0)
        level += (level % 2 == 0) != on_host
        levels.update(dict.fromkeys(proto.output, level))
        nodes_by_level.setdefault(level, []).append(proto)
    if refused:
        raise UnsupportedOpError(refused, model=graph.name or "the model")
    return Stages(model, tuple(_stage(model, nodes_by_level, level) for level in sorted(nodes_by_level)))


def _stage(model: ModelProto, nodes_by_level: Mapping[int, Sequence[NodeProto]], level: int) -> Stage:
    nodes = nodes_by_level[level]
    if level % 2 == 0:
        return HostStage(tuple(HostNode(n, _version(model, n)) for n in nodes))
    produced = dict.fromkeys(name for n in nodes for name in n.output if name)
    fixed = set(_constants(model.graph)) | {s.values.name for s in model.graph.sparse_initializer}
    other_nodes = (n for node_level, ns in nodes_by_level.items() if node_level != level for n in ns)
    required = {o.name for o in model.graph.output}.union(*(reads(n) for n in other_nodes))
    inner = {name for n in nodes for name in _names_defined_in_subgraphs(n)}
    read = dict.fromkeys(name for n in nodes for name in reads(n) if name)
    inputs = tuple(name for name in read if name not in produced.keys() | fixed | inner)
    return NumericStage(model, tuple(nodes), inputs, tuple(name for name in produced if name in required))


def _names_defined_in_subgraphs(node: NodeProto) -> Iterable[str]:
    """Names that the node's subgraphs define."""
    for a in node.attribute:
        for graph in (a.g, *a.graphs) if a.type in (a.GRAPH, a.GRAPHS) else ():
            yield from (v.name for v in graph.input)
            yield from _constants(graph)
            for inner in graph.node:
                yield from inner.output
                yield from _names_defined_in_subgraphs(inner)


def _constants(graph: GraphProto) -> dict[str, TensorProto]:
    return {t.name: t for t in graph.initializer}


def _free_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that a caller passes: those without an initializer."""
    fixed = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    return [v for v in graph.input if v.name not in fixed]


def _strings(graph: GraphProto) -> set[str]:
    """Inputs and initializers that hold strings."""
    string_inputs = {v.name for v in graph.input if v.type.tensor_type.elem_type == _STRING}
    return string_inputs | {t.name for t in graph.initializer if t.data_type == _STRING}


def _is_special(v: ValueInfoProto) -> bool:
    kind = v.type.WhichOneof("value")
    if kind == "tensor_type":
        return v.type.tensor_type.elem_type == _STRING
    return kind in ("sequence_type", "optional_type") and not _is_map(v)


def _is_map(v: ValueInfoProto) -> bool:
    return v.type.sequence_type.elem_type.WhichOneof("value") == "map_type"


def _version(model: ModelProto, n: NodeProto) -> int:
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    return versions.get(key(n)[0], 1)


def _on_host(n: HostNode, textual: set[str]) -> bool:
    """Whether the node runs on the host; adds the results that hold strings to `textual`."""
    op = HOST_OPS.get(key(n.proto))
    if op is None:
        return False
    of_strings = any(name in textual for name in n.proto.input)
    string_results = op.string_results(n, of_strings)
    textual.update(n.proto.output[i] for i in string_results if i < len(n.proto.output))
    return op.kind is Kind.ALWAYS or bool(string_results) or of_strings
