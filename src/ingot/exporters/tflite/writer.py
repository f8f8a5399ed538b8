"""A TFLite file from records of tensors and operators, by the same schema as the frontend's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np

from ingot.exporters.tflite.records import Model, Tensor
from ingot.frontends.tflite import schema
from ingot.support.errors import InputError

_SCALARS = {
    "bool": "Bool", "i8": "Int8", "u8": "Uint8", "i16": "Int16", "u16": "Uint16", "i32": "Int32", "u32": "Uint32",
    "i64": "Int64", "u64": "Uint64", "f32": "Float32",
}  # fmt: skip
_SIZES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4}
_ARRAYS = {"bool": "?", "f32": "<f4"} | {k: f"<{k[0]}{n}" for k, n in _SIZES.items() if k not in ("bool", "f32")}
_TYPES = {
    "f32": "FLOAT32", "f16": "FLOAT16", "i32": "INT32", "u8": "UINT8", "i64": "INT64", "bool": "BOOL", "i16": "INT16",
    "i8": "INT8", "f64": "FLOAT64", "u64": "UINT64", "u32": "UINT32", "u16": "UINT16",
}  # fmt: skip
_ALIGNMENT = 16  # of a buffer's data, by the schema
_MAX_BYTES = 2**31 - 2**20  # a FlatBuffer's offsets have 31 bits
_PLACEHOLDER = 127  # for larger operator numbers in the deprecated field of 8 bits

# the first version of an operator that supports f32, int8 and int16, if not 1 (tensorflow/lite/tools/versioning)
_VERSIONS: dict[str, dict[str, int]] = {
    "f32": {"BROADCAST_TO": 2, "RESIZE_BILINEAR": 3, "RESIZE_NEAREST_NEIGHBOR": 3},
    "i8": {
        "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "ADD": 2, "SUB": 2, "MUL": 2, "AVERAGE_POOL_2D": 2,
        "MAX_POOL_2D": 2, "SOFTMAX": 2, "LOGISTIC": 2, "TANH": 2, "PAD": 2, "PADV2": 2, "CONCATENATION": 2, "MEAN": 2,
        "TRANSPOSE": 2, "DEQUANTIZE": 2, "SLICE": 2, "STRIDED_SLICE": 2, "RELU": 2, "RELU6": 2, "LEAKY_RELU": 2,
        "MAXIMUM": 2, "MINIMUM": 2, "GATHER": 2, "BATCH_MATMUL": 2, "TRANSPOSE_CONV": 3,
        "RESIZE_BILINEAR": 3, "RESIZE_NEAREST_NEIGHBOR": 3,
    },
    "i16": {
        "CONV_2D": 4, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7, "ADD": 3, "SUB": 5, "MUL": 4, "AVERAGE_POOL_2D": 3,
        "MAX_POOL_2D": 3, "SOFTMAX": 3, "LOGISTIC": 3, "TANH": 3, "PAD": 3, "PADV2": 3, "CONCATENATION": 3, "MEAN": 3,
        "TRANSPOSE": 5, "DEQUANTIZE": 3, "QUANTIZE": 2, "SLICE": 4, "STRIDED_SLICE": 4, "RELU": 3, "RELU6": 3,
        "LEAKY_RELU": 2, "MAXIMUM": 4, "MINIMUM": 4, "GATHER": 4, "BATCH_MATMUL": 3, "TRANSPOSE_CONV": 3,
        "RESIZE_BILINEAR": 4, "RESIZE_NEAREST_NEIGHBOR": 4,
    },
}  # fmt: skip


def dtype_number(name: str) -> int:
    """The schema's number of a type. Raises InputError for a type that it lacks."""
    if name not in _TYPES:
        raise InputError("TFLite", expected=f"elements of {', '.join(_TYPES)}", got=name)
    return schema.TYPES.index(_TYPES[name])


def content(model: Model) -> bytes:
    """The bytes of the file. Raises InputError for a model of 2 GiB and more."""
    models = [model, *model.subgraphs]
    total = sum(t.data.nbytes for m in models for t in m.tensors if t.data is not None)
    if total > _MAX_BYTES:
        raise InputError("TFLite", expected="weights of less than 2 GiB", got=f"{total} bytes")
    buffers: list[dict[str, Any]] = [{}]
    codes: dict[tuple[str, int], int] = {}
    graphs = [_graph(m, "main" if m is model else f"part_{k}", buffers, codes) for k, m in enumerate(models)]
    numbers = {name: schema.OPERATORS.index(name) for name, _ in codes}
    signature = {
        "inputs": [{"name": n, "tensor_index": i} for n, i in zip(model.input_names, model.inputs, strict=True)],
        "outputs": [{"name": n, "tensor_index": i} for n, i in zip(model.output_names, model.outputs, strict=True)],
        "signature_key": "serving_default",
    }
    root = {
        "version": 3,
        "operator_codes": [
            {"deprecated_builtin_code": min(numbers[name], _PLACEHOLDER), "version": version,
             "builtin_code": numbers[name]}
            for name, version in codes
        ],
        "subgraphs": graphs,
        "buffers": buffers,
        "signature_defs": [signature],
    }  # fmt: skip
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(_table(builder, "Model", root), b"TFL3")
    return bytes(builder.Output())


def _graph(model: Model, name: str, buffers: list[dict[str, Any]], codes: dict[tuple[str, int], int]) -> dict[str, Any]:
    """A subgraph. codes: the numbers of (operator, version) so far; new ones are added."""
    operators: list[dict[str, Any]] = []
    for op in model.operators:
        types = {"f32", *(model.tensors[i].dtype for i in (*op.inputs[:1], *op.outputs))}
        version = max((table.get(op.name, 1) for dtype, table in _VERSIONS.items() if dtype in types), default=1)
        key = op.name, version
        row: dict[str, Any] = {"opcode_index": codes.setdefault(key, len(codes))}
        inputs = op.inputs[:-1] if op.inputs[-1] < 0 else op.inputs
        row |= {"inputs": inputs, "outputs": op.outputs}
        if op.table:
            number = next(n for n, name in schema.UNIONS["builtin_options"].items() if name == op.table)
            row |= {"builtin_options_type": number, "builtin_options": (op.table, op.options)}
        operators.append(row)
    tensors = [_tensor(t, buffers) for t in model.tensors]
    return {
        "tensors": tensors, "inputs": model.inputs, "outputs": model.outputs, "operators": operators, "name": name
    }  # fmt: skip


def _tensor(t: Tensor, buffers: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": t.shape, "type": dtype_number(t.dtype), "buffer": 0, "name": t.name}
    if t.data is not None:
        row["buffer"] = len(buffers)
        buffers.append({"data": t.data})
    if (q := t.quantization) is not None and t.dtype != "f32":
        row["quantization"] = {"scale": q.scales, "zero_point": q.zeros, "quantized_dimension": q.axis}
    return row


def _table(builder: flatbuffers.Builder, name: str, values: Mapping[str, Any]) -> int:
    fields = [(slot, f) for slot, f in enumerate(schema.TABLES[name]) if f is not None and f.name in values]
    assert len(fields) == len(values), f"{name} has not all of {sorted(values)}"
    offsets = {f.name: _offset(builder, f.kind, values[f.name]) for _, f in fields if f.kind not in _SCALARS}
    builder.StartObject(len(schema.TABLES[name]))
    for slot, f in fields:
        if f.kind in _SCALARS:
            getattr(builder, f"Prepend{_SCALARS[f.kind]}Slot")(slot, values[f.name], f.default)
        else:
            builder.PrependUOffsetTRelativeSlot(slot, offsets[f.name], 0)
    return builder.EndObject()


def _offset(builder: flatbuffers.Builder, kind: str, value: Any) -> int:
    if kind == "str":
        return builder.CreateString(value)
    if kind == "union":
        return _table(builder, *value)
    if not kind.startswith("["):
        return _table(builder, kind, value)
    inner = kind[1:-1]
    if inner not in _SCALARS:
        return _vector(builder, [_offset(builder, inner, item) for item in value])
    data = np.ascontiguousarray(value, _ARRAYS[inner]) if not isinstance(value, np.ndarray) else value
    raw = data.tobytes()
    count = len(raw) // _SIZES[inner]
    builder.StartVector(_SIZES[inner], count, _ALIGNMENT if isinstance(value, np.ndarray) else _SIZES[inner])
    builder.head -= len(raw)
    builder.Bytes[builder.head : builder.head + len(raw)] = raw
    return builder.EndVector()


def _vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()
