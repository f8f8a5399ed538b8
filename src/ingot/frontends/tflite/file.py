"""A TFLite file as dataclasses: subgraphs of operators over numbered tensors, weights as views of the mapped file."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingot.frontends.tflite import schema
from ingot.frontends.tflite.flatbuffer import Reader, Table
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError
from ingot.support.files import open_regular

IDENTIFIER = b"TFL3"


@dataclass(frozen=True)
class Quantization:
    """real = (stored - zero) * scale, with one of both, or one for each index along `axis`."""

    scales: tuple[float, ...]
    zeros: tuple[int, ...]
    axis: int
    details: int = 0

    @property
    def scale(self) -> float:
        return self.scales[0]

    @property
    def zero(self) -> int:
        return self.zeros[0]


@dataclass(frozen=True)
class Tensor:
    """type: the schema's number; signature: declared sizes, -1 for any; data: of a constant."""

    name: str
    type: int
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    quantization: Quantization | None
    variable: bool
    data: np.ndarray | None
    sparsity: Table | None


@dataclass(frozen=True)
class Operator:
    """name: of a builtin op, or CUSTOM; custom: the name of a custom one. An index of -1 is an omitted operand."""

    name: str
    custom: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    raw: np.ndarray
    intermediates: tuple[int, ...] = ()  # tensors with the quantization of inner values


@dataclass(frozen=True)
class Subgraph:
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Signature:
    """Names of a subgraph's inputs and outputs, by tensor."""

    name: str
    subgraph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Model:
    where: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]


def read(source: str | os.PathLike[str] | bytes, where: str = "") -> Model:
    """The model in a file, or in its bytes. Raises ImportModelError for one that is malformed."""
    if isinstance(source, bytes):
        data = memoryview(source)
    else:
        where = str(source)
        try:
            with open_regular(Path(source)) as file:
                size = os.fstat(file.fileno()).st_size
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except OSError as e:
            raise ImportModelError(f"cannot read the model: {e.strerror}", where=where) from e
    reader = Reader(data, schema.TABLES, schema.UNIONS, where)
    if bytes(data[4:8]) != IDENTIFIER:
        raise reader.malformed("no TFL3 at byte 4")
    return _Model(reader).model(reader.root("Model"))


class _Model:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def model(self, table: Table) -> Model:
        if table["version"] != 3:
            raise self.reader.malformed(f"version {table['version']} of the schema, not 3")
        self.buffers = [self._buffer(b) for b in table["buffers"]]
        self.codes: tuple[Table, ...] = table["operator_codes"]
        subgraphs = tuple(self._subgraph(g) for g in table["subgraphs"])
        if not subgraphs:
            raise self.reader.malformed("no subgraph")
        signatures = tuple(self._signature(s, subgraphs) for s in table["signature_defs"])
        return Model(self.reader.where, subgraphs, signatures)

    def _buffer(self, table: Table) -> np.ndarray | None:
        # 0 and 1 mean that no data follows the FlatBuffer
        if table["offset"] > 1:
            start, size = table["offset"], table["size"]
            if start + size > len(self.reader.data):
                raise self.reader.malformed(f"a buffer of {size} bytes at {start}, of {len(self.reader.data)}")
            return np.frombuffer(self.reader.data, np.uint8, size, start)
        return table["data"] if len(table["data"]) else None

    def _subgraph(self, table: Table) -> Subgraph:
        tensors = tuple(self._tensor(t) for t in table["tensors"])
        count = len(tensors)
        operators = tuple(self._operator(o, count) for o in table["operators"])
        inputs = self._indices(table["inputs"], count, "inputs", 0)
        outputs = self._indices(table["outputs"], count, "outputs", 0)
        return Subgraph(table["name"], tensors, inputs, outputs, operators)

    def _indices(self, values: Iterable[int], count: int, what: str, lowest: int = -1) -> tuple[int, ...]:
        indices = tuple(int(v) for v in values)
        if wrong := [v for v in indices if not lowest <= v < count]:
            raise self.reader.malformed(f"{what} name tensor {wrong[0]} of {count}")
        return indices

    def _tensor(self, table: Table) -> Tensor:
        name, shape = table["name"], tuple(int(d) for d in table["shape"])
        signature = tuple(int(d) for d in table["shape_signature"]) or shape
        if len(signature) != len(shape) or min(shape, default=0) < 0 or min(signature, default=0) < -1:
            raise self.reader.malformed(f"sizes {shape} and signature {signature} of tensor {name!r}")
        if table["external_buffer"]:
            raise self.reader.malformed(f"tensor {name!r} in another file")
        if not 0 <= table["buffer"] < max(len(self.buffers), 1):
            raise self.reader.malformed(f"buffer {table['buffer']} of {len(self.buffers)}, of tensor {name!r}")
        data = self.buffers[table["buffer"]] if self.buffers else None
        quantization = self._quantization(table["quantization"], name, signature, table["type"])
        return Tensor(
            name, table["type"], shape, signature, quantization, table["is_variable"], data, table["sparsity"]
        )

    def _quantization(self, table: Table | None, name: str, shape: tuple[int, ...], type: int) -> Quantization | None:
        if table is None or not (len(table["scale"]) or table["details_type"]):
            return None
        scales, zeros = (tuple(table[key].tolist()) for key in ("scale", "zero_point"))
        axis, count = table["quantized_dimension"], len(scales)
        zeros = zeros or (0,) * count
        is_consistent = count == 1 or (0 <= axis < len(shape) and shape[axis] in (count, -1))
        if not table["details_type"] and not (is_consistent and len(zeros) == count):
            raise self.reader.malformed(f"{count} scales and {len(zeros)} zeros along axis {axis} of tensor {name!r}")
        dtype = schema.dtype(type)
        low, high = dtype.range if dtype is not None and dtype.is_integer else (0, 0)
        if min(zeros, default=0) < low or max(zeros, default=0) > high or not all(0 <= s < math.inf for s in scales):
            raise self.reader.malformed(f"scales or zeros of tensor {name!r} out of range")
        return Quantization(scales, zeros, axis, table["details_type"])

    def _operator(self, table: Table, tensors: int) -> Operator:
        if not 0 <= table["opcode_index"] < len(self.codes):
            raise self.reader.malformed(f"op code {table['opcode_index']} of {len(self.codes)}")
        code = self.codes[table["opcode_index"]]
        # older files have numbers that fit into a byte only in the deprecated field
        number = max(code["builtin_code"], code["deprecated_builtin_code"])
        name = schema.OPERATORS[number] if 0 <= number < len(schema.OPERATORS) else f"op {number}"
        inputs = self._indices(table["inputs"], tensors, f"inputs of {name}")
        outputs = self._indices(table["outputs"], tensors, f"outputs of {name}", 0)
        options: Mapping[str, Any] = table["builtin_options"] or table["builtin_options_2"] or {}
        inner = self._indices(table["intermediates"], tensors, f"intermediates of {name}")
        raw = table["custom_options"]
        return Operator(name, code["custom_code"], code["version"], inputs, outputs, options, raw, inner)

    def _signature(self, table: Table, subgraphs: tuple[Subgraph, ...]) -> Signature:
        if not 0 <= table["subgraph_index"] < len(subgraphs):
            raise self.reader.malformed(f"signature of subgraph {table['subgraph_index']} of {len(subgraphs)}")
        count = len(subgraphs[table["subgraph_index"]].tensors)
        endpoints: list[tuple[tuple[str, int], ...]] = []
        for side in ("inputs", "outputs"):
            self._indices((e["tensor_index"] for e in table[side]), count, f"the signature's {side}", 0)
            endpoints.append(tuple((e["name"], e["tensor_index"]) for e in table[side]))
        return Signature(table["signature_key"], table["subgraph_index"], endpoints[0], endpoints[1])
