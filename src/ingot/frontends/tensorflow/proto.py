"""TensorFlow's messages, read from protobuf's wire format: what an importer needs of each.

    SavedModel -> MetaGraph -> GraphDef -> NodeDef, FunctionDef
               -> SignatureDef

Attributes of nodes are parsed when a row asks for one. Source: the .proto files of tensorflow/core/framework and
tensorflow/core/protobuf, for the field numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from ingot.frontends.shared.wire import BYTES, FIXED32, FIXED64, VARINT, Source, fields, varint
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

# deeper nesting than any valid message has: attributes of functions contain attributes
_MAX_DEPTH = 16


@dataclass(frozen=True, eq=False)
class Message:
    """One message: a range of a file's bytes."""

    data: memoryview
    start: int
    end: int
    source: Source
    depth: int = 0

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """(field number, wire type, start, end) of each field's payload."""
        for number, kind, _, start, end in fields(self.data, self.start, self.end, self.source):
            yield number, kind, start, end

    @cached_property
    def parts(self) -> dict[int, list[tuple[int, int, int]]]:
        """Field number -> (wire type, start, end) of each occurrence."""
        records: dict[int, list[tuple[int, int, int]]] = {}
        for number, kind, start, end in self:
            records.setdefault(number, []).append((kind, start, end))
        return records

    def has(self, number: int) -> bool:
        return number in self.parts

    def message(self, number: int) -> Message:
        """The last message of a field; an empty one if the field is absent."""
        messages = self.messages(number)
        return messages[-1] if messages else Message(self.data, self.end, self.end, self.source, self.depth + 1)

    def messages(self, number: int) -> list[Message]:
        if self.depth > _MAX_DEPTH:
            raise self.source.malformed("messages nested too deeply")
        records = self.parts.get(number, ())
        return [Message(self.data, a, b, self.source, self.depth + 1) for kind, a, b in records if kind == BYTES]

    def bytes(self, number: int) -> list[memoryview]:
        return [self.data[a:b] for kind, a, b in self.parts.get(number, ()) if kind == BYTES]

    def texts(self, number: int) -> list[str]:
        try:
            return [bytes(v).decode() for v in self.bytes(number)]
        except UnicodeDecodeError:
            raise self.source.malformed(f"a name that is not UTF-8 in field {number}") from None

    def text(self, number: int) -> str:
        texts = self.texts(number)
        return texts[-1] if texts else ""

    def ints(self, number: int) -> list[int]:
        """Numbers of a repeated field, packed or not, as signed 64-bit integers."""
        numbers: list[int] = []
        for kind, start, end in self.parts.get(number, ()):
            position = start
            while position < end and kind in (VARINT, BYTES):
                value, position = varint(self.data, position, end, self.source)
                numbers.append(value - (1 << 64) if value >= 1 << 63 else value)
        return numbers

    def int(self, number: int, default: int = 0) -> int:
        numbers = self.ints(number)
        return numbers[-1] if numbers else default

    def array(self, number: int, dtype: str) -> np.ndarray:
        """Numbers of fixed width, packed or not."""
        width = np.dtype(dtype).itemsize
        runs = [self.data[a:b] for kind, a, b in self.parts.get(number, ()) if kind in (BYTES, FIXED32, FIXED64)]
        if any(len(r) % width for r in runs):
            raise self.source.malformed(f"numbers of {width} bytes in field {number}, cut off")
        return np.frombuffer(b"".join(runs), dtype)

    def table(self, number: int) -> dict[str, Message]:
        """A map from names to messages."""
        return {entry.text(1): entry.message(2) for entry in self.messages(number)}

    def names(self, number: int) -> dict[str, str]:
        """A map from names to names."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}


def read_message(data: memoryview, message: str, path: str) -> Message:
    """`data` as a message that TensorFlow writes; `message` and `path` are for errors."""
    return Message(data, 0, len(data), Source("TensorFlow", message, path))


Size = int | None


def shape_of(m: Message) -> tuple[Size, ...] | None:
    """A TensorShapeProto: None for an open size, None as a whole for an open rank."""
    if m.int(3):
        return None
    sizes = [d.int(1) for d in m.messages(2)]
    return tuple(None if d < 0 else d for d in sizes)


@dataclass(frozen=True)
class Function:
    """A reference to a function: its name, and values of attributes that its body takes from the call."""

    name: str
    attributes: Mapping[str, Message]


@dataclass(frozen=True, eq=False)
class NodeDef:
    name: str
    op: str
    inputs: tuple[str, ...]
    message: Message

    @staticmethod
    def read(m: Message) -> NodeDef:
        return NodeDef(m.text(1), m.text(2), tuple(m.texts(3)), m)

    @cached_property
    def attributes(self) -> Mapping[str, Message]:
        return self.message.table(5)

    @property
    def data_inputs(self) -> tuple[str, ...]:
        return tuple(i for i in self.inputs if not i.startswith("^"))

    @property
    def control_inputs(self) -> tuple[str, ...]:
        return tuple(i[1:] for i in self.inputs if i.startswith("^"))


@dataclass(frozen=True, eq=False)
class FunctionDef:
    """A function, parsed on demand: a model has many that are never called."""

    name: str
    message: Message

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return tuple(a.text(1) for a in self.message.message(1).messages(2))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(a.text(1) for a in self.message.message(1).messages(3))

    @cached_property
    def nodes(self) -> Mapping[str, NodeDef]:
        return _nodes(self.message.messages(3))

    @cached_property
    def results(self) -> Mapping[str, str]:
        """Name of an output -> the value of the body."""
        return self.message.names(4)

    @cached_property
    def passed_through(self) -> frozenset[int]:
        """Indices of arguments that are returned unchanged as the results of the same indices."""
        pairs = zip(self.arguments, self.outputs, strict=False)
        return frozenset(k for k, (a, o) in enumerate(pairs) if self._source(self.results.get(o, "")) == a)

    def _source(self, tensor: str) -> str:
        """The argument that a value of the body is a copy of."""
        for _ in self.nodes:
            node = self.nodes.get(tensor.split(":")[0])
            if node is None or node.op != "Identity" or not node.data_inputs:
                break
            tensor = node.data_inputs[0]
        return tensor

    @cached_property
    def effects(self) -> tuple[str, ...]:
        """Nodes that run for their effects."""
        return tuple(self.message.names(6).values())

    @staticmethod
    def read(m: Message) -> FunctionDef:
        return FunctionDef(m.message(1).text(1), m)


def _nodes(messages: Sequence[Message]) -> dict[str, NodeDef]:
    nodes = [NodeDef.read(m) for m in messages]
    return {n.name: n for n in nodes}


@dataclass(frozen=True, eq=False)
class GraphDef:
    nodes: Mapping[str, NodeDef]
    functions: Mapping[str, FunctionDef]

    @staticmethod
    def read(m: Message) -> GraphDef:
        functions = [FunctionDef.read(f) for f in m.message(2).messages(1)]
        return GraphDef(_nodes(m.messages(1)), {f.name: f for f in functions})


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a signature: its value in the graph, its element type's code and shape."""

    tensor: str
    dtype: int
    shape: tuple[Size, ...] | None


@dataclass(frozen=True)
class SignatureDef:
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    @staticmethod
    def read(m: Message) -> SignatureDef:
        return SignatureDef(_infos(m.table(1)), _infos(m.table(2)))


def _infos(table: Mapping[str, Message]) -> dict[str, TensorInfo]:
    # sorted by name, as TensorFlow flattens them: a protobuf map has no order
    return {k: TensorInfo(v.text(1), v.int(2), shape_of(v.message(3))) for k, v in sorted(table.items())}


@dataclass(frozen=True)
class MetaGraph:
    """tags: its purposes, such as "serve"; restore: the node that restores the variables."""

    tags: tuple[str, ...]
    graph: GraphDef
    signatures: Mapping[str, SignatureDef]
    restore: str


@dataclass
class SavedModel:
    meta_graphs: list[MetaGraph] = field(default_factory=list[MetaGraph])

    @staticmethod
    def read(m: Message) -> SavedModel:
        return SavedModel([_meta_graph(g) for g in m.messages(2)])


def _meta_graph(m: Message) -> MetaGraph:
    signatures = {k: SignatureDef.read(v) for k, v in m.table(5).items()}
    return MetaGraph(tuple(m.message(1).texts(4)), GraphDef.read(m.message(2)), signatures, m.message(3).text(3))


def function_of(m: Message) -> Function:
    """A NameAttrList."""
    return Function(m.text(1), m.table(2))


def floats(m: Message, number: int) -> list[float]:
    return [float(v) for v in m.array(number, "<f4")]


def single_float(m: Message, number: int) -> float:
    records = m.parts.get(number, ())
    if not records:
        return 0.0
    kind, start, end = records[-1]
    if kind != FIXED32:
        raise ImportModelError("a number of another width", expected="4 bytes", got=end - start, where=m.source.path)
    (value,) = struct.unpack("<f", m.data[start:end])
    return value
