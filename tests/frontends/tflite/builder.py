"""TFLite files made in memory, and what LiteRT's reference kernels give for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import interpreter as litert

import ingot
from ingot.frontends.tflite import import_tflite, schema
from ingot.ir.interp import interpret

_SIZES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4}
_SLOTS = {
    "bool": "Bool", "i8": "Int8", "u8": "Uint8", "i16": "Int16", "u16": "Uint16", "i32": "Int32", "u32": "Uint32",
    "i64": "Int64", "u64": "Uint64", "f32": "Float32",
}  # fmt: skip
_TYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int32": "INT32", "uint8": "UINT8", "int64": "INT64", "bool": "BOOL",
    "int16": "INT16", "int8": "INT8", "float64": "FLOAT64", "uint32": "UINT32", "uint16": "UINT16",
    "uint64": "UINT64",
}  # fmt: skip
_OPTIONS = {
    name: (field, number)
    for field in ("builtin_options", "builtin_options_2")
    for number, name in schema.UNIONS[field].items()
}
_VERSIONS = {"BROADCAST_TO": 2}  # the least that LiteRT knows
_RESOLVERS = (litert.OpResolverType.BUILTIN_REF, litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
Quantized = tuple[float | Sequence[float], int | Sequence[int]] | tuple[Sequence[float], Sequence[int], int]


def write(name: str, values: Mapping[str, Any]) -> bytes:
    """A FlatBuffer whose root is a table of TFLite's schema."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(_table(builder, name, values), b"TFL3")
    return bytes(builder.Output())


def _table(b: flatbuffers.Builder, name: str, values: Mapping[str, Any]) -> int:
    fields = schema.TABLES[name]
    unknown = values.keys() - {f.name for f in fields if f} - {"table"}
    assert not unknown, unknown
    placed: list[tuple[int, str, Any]] = []
    for slot, field in enumerate(fields):
        if field is None or values.get(field.name) is None:
            continue
        value, kind = values[field.name], field.kind
        if kind == "union":
            kind = value["table"]
        placed.append((slot, kind, value if kind in _SIZES else _value(b, kind, value)))
    b.StartObject(len(fields))
    for slot, kind, value in placed:
        if kind in _SIZES:
            getattr(b, f"Prepend{_SLOTS[kind]}Slot")(slot, value, None)
        else:
            b.PrependUOffsetTRelativeSlot(slot, value, 0)
    return b.EndObject()


def _value(b: flatbuffers.Builder, kind: str, value: Any) -> int:
    if kind == "str":
        return b.CreateString(value)
    if not kind.startswith("["):
        return _table(b, kind, value)
    inner = kind[1:-1]
    if inner in _SIZES:
        code = {"b": "?", "i": "i", "u": "u", "f": "f"}[inner[0]]
        array = np.asarray(value, np.dtype(bool) if code == "?" else np.dtype(f"{code}{_SIZES[inner]}"))
        raw = array.tobytes()
        b.StartVector(_SIZES[inner], array.size, 16)
        b.head = b.head - len(raw)
        b.Bytes[b.head : b.head + len(raw)] = raw
        return b.EndVector()
    places = [_value(b, inner, v) for v in value]
    b.StartVector(4, len(places), 4)
    for place in reversed(places):
        b.PrependUOffsetTRelative(place)
    return b.EndVector()


class Subgraph:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.tensors: list[dict[str, Any]] = []
        self.operators: list[dict[str, Any]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def tensor(
        self, shape: Sequence[int], dtype: Any = np.float32, q: Quantized | None = None, *, name: str = "",
        data: bytes | None = None, **fields: Any,
    ) -> int:  # fmt: skip
        type = dtype if isinstance(dtype, str) else _TYPES[np.dtype(dtype).name]
        quantization = None
        if q is not None:
            scales, zeros = np.atleast_1d(q[0]), np.atleast_1d(q[1])
            quantization = {"scale": scales, "zero_point": zeros, "quantized_dimension": q[2] if len(q) > 2 else 0}
        entry = {
            "shape": [max(d, 1) if d < 0 else d for d in shape], "type": schema.TYPES.index(type),
            "buffer": 0 if data is None else self.model.buffer(data), "name": name or f"t{len(self.tensors)}",
            "quantization": quantization, **fields,
        }  # fmt: skip
        if any(d < 0 for d in shape):
            entry["shape_signature"] = list(shape)
        self.tensors.append(entry)
        return len(self.tensors) - 1

    def input(self, shape: Sequence[int], dtype: Any = np.float32, q: Quantized | None = None, name: str = "") -> int:
        self.inputs.append(self.tensor(shape, dtype, q, name=name or f"x{len(self.inputs)}"))
        return self.inputs[-1]

    def const(self, value: Any, q: Quantized | None = None) -> int:
        array = np.asarray(value)
        return self.tensor(array.shape, array.dtype, q, data=array.tobytes())

    def op(
        self, name: str, /, inputs: Sequence[int], outputs: Sequence[int], options: str = "", custom: str = "",
        raw: bytes = b"", inner: Sequence[int] = (), **values: Any,
    ) -> Sequence[int]:  # fmt: skip
        """options: the table of `values`; inner: tensors that say how inner values are quantized."""
        entry: dict[str, Any] = {"opcode_index": self.model.code(name, custom), "inputs": inputs, "outputs": outputs}
        if options:
            field, entry_type = _OPTIONS[options]
            entry |= {f"{field}_type": entry_type, field: {"table": options, **values}}
        if inner:
            entry["intermediates"] = inner
        if raw:
            entry["custom_options"] = np.frombuffer(raw, np.uint8)
        self.operators.append(entry)
        return outputs

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("tensors", "inputs", "outputs", "operators")}


class Model:
    def __init__(self) -> None:
        self.buffers: list[dict[str, Any]] = [{}]
        self.codes: list[tuple[str, str]] = []
        self.subgraphs: list[Subgraph] = []
        self.signatures: list[dict[str, Any]] = []
        self.versions = dict(_VERSIONS)  # by the names of ops, custom ones too

    def subgraph(self) -> Subgraph:
        self.subgraphs.append(Subgraph(self))
        return self.subgraphs[-1]

    def buffer(self, data: bytes) -> int:
        self.buffers.append({"data": np.frombuffer(data, np.uint8)})
        return len(self.buffers) - 1

    def code(self, name: str, custom: str = "") -> int:
        if (name, custom) not in self.codes:
            self.codes.append((name, custom))
        return self.codes.index((name, custom))

    def signature(self, name: str, subgraph: int, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        sides = [[{"name": k, "tensor_index": v} for k, v in side.items()] for side in (inputs, outputs)]
        entry = {"inputs": sides[0], "outputs": sides[1], "signature_key": name, "subgraph_index": subgraph}
        self.signatures.append(entry)

    def finish(self) -> bytes:
        codes = []
        for name, custom in self.codes:
            number = schema.OPERATORS.index(name)
            codes.append(
                {
                    "version": self.versions.get(custom or name, 1),
                    "builtin_code": number,
                    "deprecated_builtin_code": min(number, 127),
                    "custom_code": custom or None,
                }
            )
        return write(
            "Model",
            {
                "version": 3, "operator_codes": codes, "subgraphs": [g.fields() for g in self.subgraphs],
                "buffers": self.buffers, "signature_defs": self.signatures,
            },
        )  # fmt: skip


def one_op(name: str, operands: Sequence[Any], results: Sequence[Any], options: str = "", **values: Any) -> bytes:
    """A model of one operator. operands: (shape, dtype, q) of inputs, arrays of constants, (array, q), or None;
    results: (shape, dtype, q)."""
    model = Model()
    graph = model.subgraph()
    places: list[int] = []
    for operand in operands:
        if operand is None:
            places.append(-1)
        elif isinstance(operand, np.ndarray):
            places.append(graph.const(operand))
        elif isinstance(operand[0], np.ndarray):
            places.append(graph.const(*operand))
        else:
            places.append(graph.input(*operand))
    outputs = [graph.tensor(*r) for r in results]
    graph.outputs = list(graph.op(name, places, outputs, options, **values))
    return model.finish()


def reference(model: bytes, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What LiteRT's reference kernels give; its others for an op that has no reference kernel."""
    try:
        runner = litert.Interpreter(model_content=model, experimental_op_resolver_type=_RESOLVERS[0])
    except ValueError:
        runner = litert.Interpreter(model_content=model, experimental_op_resolver_type=_RESOLVERS[1])
    places = [d["index"] for d in runner.get_input_details()]
    for place, x in zip(places, feeds, strict=True):
        runner.resize_tensor_input(place, x.shape)
    runner.allocate_tensors()
    for place, x in zip(places, feeds, strict=True):
        runner.set_tensor(place, x)
    runner.invoke()
    return [runner.get_tensor(d["index"]) for d in runner.get_output_details()]


def interpreted(model: bytes, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What Ingot's interpreter gives."""
    return list(interpret(import_tflite(model).graph, list(feeds)))


def runner(model: bytes) -> Callable[[np.ndarray], list[np.ndarray]]:
    """LiteRT's reference kernels, which keep state from call to call."""
    interpreter = litert.Interpreter(model_content=model, experimental_op_resolver_type=_RESOLVERS[0])
    interpreter.allocate_tensors()

    def run(x: np.ndarray) -> list[np.ndarray]:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]).copy() for d in interpreter.get_output_details()]

    return run


def calls(model: bytes, feeds: Sequence[np.ndarray], tmp_path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """What LiteRT and a compiled model give in calls that follow each other."""
    path = tmp_path / "model.tflite"
    path.write_bytes(model)
    m, run = ingot.compile(path, cache=False, threads=1), runner(model)
    return [(run(x)[0], m(x)) for x in feeds]


def interpreted_calls(
    model: bytes, feeds: Sequence[np.ndarray]
) -> list[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]]:
    """What LiteRT and Ingot's interpreter give in calls that follow each other."""
    imported, run = import_tflite(model), runner(model)
    state, call_results = list(imported.state.values()), []
    for x in feeds:
        results = interpret(imported.graph, [x, *state])
        state = list(results[: len(state)])
        call_results.append((run(x), results[len(state) :]))
    return call_results


def feed(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Random values, of integers over the whole range of the small types."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return rng.standard_normal(tuple(shape)).astype(kind)
    if kind.kind == "b":
        return rng.integers(0, 2, tuple(shape)).astype(bool)
    info = np.iinfo(kind)
    low, high = (info.min, info.max) if kind.itemsize < 4 else (-50, 50)
    return rng.integers(low, high, tuple(shape), endpoint=True).astype(kind)
