"""The versions of opsets, the order of a graph's nodes, which of them are needed, and the function bodies by which ONNX
defines ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ingot.frontends.onnx.call import AnyValue, Sequence_, Value
from ingot.frontends.onnx.protos import (
    AttributeProto,
    FunctionProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
)
from ingot.frontends.onnx.tensors import CODES
from ingot.frontends.shared.refusal import Unsupported
from ingot.support.errors import ImportModelError

_FLOAT = TensorProto.FLOAT
_MIN_OPSET = 1
_KNOWN_OPSET = 22  # of the oldest supported onnx package; a newer package is asked about newer opsets


def domain_of(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def opsets(imports: Iterable[OperatorSetIdProto], where: str) -> dict[str, int]:
    """The version of each domain; ImportModelError for one of ONNX's own that is not read."""
    versions = {domain_of(o.domain): o.version for o in imports}
    if any(not 0 <= v < 1 << 31 for v in versions.values()):
        raise ImportModelError("an opset's version is no version", got=versions, where=where, fix="export it again")
    version = versions.get("")
    if version is None or _MIN_OPSET <= version <= _KNOWN_OPSET:
        return versions
    newest = newest_opset()
    if not _MIN_OPSET <= version <= newest:
        raise ImportModelError(
            "unsupported opset",
            expected=f"ai.onnx {_MIN_OPSET} to {newest} (the newest in the installed onnx package)",
            got=version,
            where=where,
            fix="convert the model with onnx.version_converter, or upgrade the onnx package",
        )
    return versions


def in_order(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """The nodes in topological order, which ONNX requires and some tools do not keep; unchanged where they already are
    in order, or have a cycle."""
    producers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    dependencies = {i: {producers[name] for name in reads(node) if name in producers} for i, node in enumerate(nodes)}
    if all(j < i for i, predecessors in dependencies.items() for j in predecessors):
        return nodes
    try:
        return [nodes[i] for i in TopologicalSorter(dependencies).static_order()]
    except CycleError:
        return nodes


def required_nodes(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> set[int]:
    """Indices of the nodes that `outputs` depend on."""
    required = set(outputs)
    kept_nodes: set[int] = set()
    for i in range(len(nodes) - 1, -1, -1):
        node = nodes[i]
        if not required.isdisjoint(node.output):
            kept_nodes.add(i)
            required.update(reads(node))
    return kept_nodes


def reads(node: NodeProto) -> Iterable[str]:
    """Names that the node or its subgraphs read."""
    yield from node.input
    for a in node.attribute:
        for graph in (a.g, *a.graphs) if a.type in (a.GRAPH, a.GRAPHS) else ():
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from reads(inner)


def resolved(proto: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """`proto` with references to attributes of the enclosing function replaced by their values."""
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    copy = NodeProto()
    copy.CopyFrom(proto)
    del copy.attribute[:]
    for a in proto.attribute:
        attribute = attributes.get(a.ref_attr_name) if a.ref_attr_name else a
        if attribute is not None:
            copy.attribute.add().CopyFrom(attribute)
            copy.attribute[-1].name = a.name
    return copy


def newest_opset() -> int:
    """The newest opset that the installed onnx package knows."""
    import onnx

    return onnx.defs.onnx_opset_version()


def schema_of(op_type: str, version: int, domain: str) -> Any:
    """ONNX's definition of an op, None where it has none. Any, as the package's stubs lack the definition's methods."""
    import onnx

    return onnx.defs.get_schema(op_type, version, domain) if onnx.defs.has(op_type, version, domain) else None


def schema_body(
    proto: NodeProto, domain: str, version: int, inputs: tuple[AnyValue | None, ...]
) -> FunctionProto | None:
    """ONNX's function body of the op, if it has one; some bodies depend on the inputs' types."""
    schema = schema_of(proto.op_type, version, domain)
    if schema is None:
        return None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        if versions:
            return FunctionProto.FromString(schema.get_function_with_opset_version(max(versions)))
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        if not versions:
            return None
        types = [_type_proto(v).SerializeToString() for v in inputs]
        text = proto.SerializeToString()
        try:
            body = schema.get_context_dependent_function_with_opset_version(max(versions), text, types)
        except RuntimeError as error:  # of its parser: names that its text format cannot hold
            raise Unsupported(f"onnx cannot write its function out: {error}") from None
        return FunctionProto.FromString(body)
    return None


def _type_proto(v: AnyValue | None) -> TypeProto:
    """The type of a value, on which a body may depend; onnx does not accept an untyped sequence."""
    from onnx import helper

    if isinstance(v, Sequence_):
        member = _type_proto(v.items[0]) if v.items else helper.make_tensor_type_proto(_FLOAT, None)
        member.tensor_type.ClearField("shape")
        return helper.make_sequence_type_proto(member)
    if not isinstance(v, Value):
        return TypeProto()
    t = v.type
    return helper.make_tensor_type_proto(CODES[t.dtype], [d if isinstance(d, int) else str(d) for d in t.shape])
