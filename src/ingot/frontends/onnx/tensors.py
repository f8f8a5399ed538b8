"""Element types and tensors of ONNX: raw, typed and external data as numpy arrays, without copies where possible."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ingot.frontends.onnx.protos import SparseTensorProto, TensorProto, TypeProto
from ingot.frontends.shared.levels import unpacked
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.types import DType
from ingot.support.errors import ImportModelError
from ingot.support.files import folders_of, is_inside, map_file

_P = TensorProto
_CODES = dict(_P.DataType.items())
_DTYPES_OF_NEWER_ONNX = {"FLOAT4E2M1": T.f4e2m1fn, "FLOAT8E8M0": T.f8e8m0fnu, "UINT2": T.u2, "INT2": T.i2}

DTYPES: dict[int, DType] = {
    _P.FLOAT: T.f32,
    _P.UINT8: T.u8,
    _P.INT8: T.i8,
    _P.UINT16: T.u16,
    _P.INT16: T.i16,
    _P.INT32: T.i32,
    _P.INT64: T.i64,
    _P.BOOL: T.boolean,
    _P.FLOAT16: T.f16,
    _P.DOUBLE: T.f64,
    _P.UINT32: T.u32,
    _P.UINT64: T.u64,
    _P.BFLOAT16: T.bf16,
    _P.FLOAT8E4M3FN: T.f8e4m3fn,
    _P.FLOAT8E5M2: T.f8e5m2,
    _P.FLOAT8E4M3FNUZ: T.f8e4m3fnuz,
    _P.FLOAT8E5M2FNUZ: T.f8e5m2fnuz,
    _P.UINT4: T.u4,
    _P.INT4: T.i4,
    # of newer onnx packages
    **{_CODES[name]: dtype for name, dtype in _DTYPES_OF_NEWER_ONNX.items() if name in _CODES},
}
CODES: dict[DType, int] = {v: k for k, v in DTYPES.items()}

# by typed field: the numpy dtype of its items and how an element is stored in them
_WORD_FIELDS = {
    "int32_data": np.int32,
    "int64_data": np.int64,
    "uint64_data": np.uint64,
    "float_data": np.float32,
    "double_data": np.float64,
}
_FIELD_OF: dict[DType, str] = {
    T.f32: "float_data",
    T.f64: "double_data",
    T.i64: "int64_data",
    T.u64: "uint64_data",
    T.u32: "uint64_data",
}


def type_name(code: int) -> str:
    """ONNX's name of an element type, for messages."""
    names: dict[int, str] = {v: k for k, v in _P.DataType.items()}
    return names.get(code, f"number {code}")


def dtype_from_code(code: int) -> DType:
    """The DType of an ONNX element type. Raises Unsupported for one that Ingot lacks (strings, complex, ...)."""
    dtype = DTYPES.get(code)
    if dtype is None:
        raise Unsupported(f"element type {type_name(code)}")
    return dtype


def type_text(declared: TypeProto) -> str:
    """The declared type of a value: "f32", "string", "seq(i64)", "optional(f32)"; "" where the model does not say."""
    kind = declared.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({type_text(declared.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_text(declared.optional_type.elem_type)})"
    if kind == "tensor_type" and (code := declared.tensor_type.elem_type):
        return DTYPES[code].name if code in DTYPES else type_name(code).lower()
    return ""


class ExternalData:
    """The files with a model's external weights, each mapped once; only files inside the model's folder are opened.

    model: the model's file; None for a model in memory.
    """

    def __init__(self, model: Path | None):
        self.model = model
        self._maps: dict[Path, np.ndarray] = {}

    def read(self, tensor: TensorProto, nbytes: int) -> np.ndarray:
        """`nbytes` bytes of external data as a read-only u8 view of the mapped file. Raises ImportModelError."""
        info = {e.key: e.value for e in tensor.external_data}
        mapped = self._map(info.get("location", ""), tensor.name)
        offset = _number(info.get("offset", "0"), tensor.name)
        length = _number(info.get("length", str(nbytes)), tensor.name)
        if length != nbytes:
            raise ImportModelError(
                "external data has the wrong length for its shape",
                expected=f"{nbytes} bytes",
                got=f"{length} bytes",
                where=f"initializer {tensor.name!r}",
            )
        if offset + length > mapped.size:
            raise ImportModelError(
                f"the external data file {info['location']!r} is truncated",
                expected=f"at least {offset + length} bytes",
                got=f"{mapped.size} bytes",
                where=f"initializer {tensor.name!r}",
                fix="copy or export the model again with its data file",
            )
        return mapped[offset : offset + length]

    def _map(self, location: str, tensor: str) -> np.ndarray:
        path = self._inside(location, tensor)
        if path not in self._maps:
            try:
                self._maps[path] = map_file(path)
            except OSError as e:
                raise ImportModelError(
                    f"cannot read the external data file {location!r}: {e.strerror}", where=f"initializer {tensor!r}"
                ) from e
        return self._maps[path]

    def _inside(self, location: str, tensor: str) -> Path:
        where = f"initializer {tensor!r}"
        if self.model is None:
            raise ImportModelError(
                "a ModelProto with external data has no folder to read it from",
                where=where,
                fix="pass the path of the file, or load it with onnx.load, which reads the data in",
            )
        if not location or "\0" in location:
            raise ImportModelError("external data has no usable location", got=repr(location), where=where)
        path = Path(location)
        folders = list(folders_of(self.model))
        # where the model is a symbolic link, its data may be in the folder of the link's target
        folder = next((f for f in folders if os.path.lexists(f / path)), folders[0])
        # links are resolved, so that a link out of the folder is caught as `..` is
        escapes = path.is_absolute() or "\\" in location or ".." in path.parts or not is_inside(folder / path, folder)
        real = Path(os.path.realpath(folder / path))
        if escapes:
            raise ImportModelError(
                "external data points outside the model's folder",
                expected=f"a relative path inside {os.path.realpath(folder)}",
                got=repr(location),
                where=where,
                fix="put the data file beside the model file and export again",
            )
        return real


def _number(text: str, tensor: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ImportModelError(
            "malformed external data", expected="a byte count", got=repr(text), where=f"initializer {tensor!r}"
        )
    return int(text)


def to_array(
    tensor: TensorProto,
    external: ExternalData,
    cut: np.ndarray | None = None,
) -> np.ndarray:
    """The value of a TensorProto. `cut` is its raw_data where `wire.cut_weights` took it out.

    Sizes are checked against the shape before anything is allocated. Raises ImportModelError on malformed data and
    Unsupported on an element type that Ingot does not have.
    """
    dtype = dtype_from_code(tensor.data_type)
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ImportModelError("an initializer has a negative size", got=list(shape), where=repr(tensor.name))
    count = math.prod(shape)
    if tensor.HasField("segment"):
        raise ImportModelError("segmented tensors are not supported", where=f"initializer {tensor.name!r}")
    nbytes = (count * dtype.bits + 7) // 8
    if tensor.data_location == _P.EXTERNAL:
        return _decode(external.read(tensor, nbytes), dtype, shape, count)
    raw: np.ndarray | None = cut
    if raw is None and tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    if raw is not None:
        _check_count(tensor, raw.size, nbytes, "bytes")
        return _decode(raw, dtype, shape, count)
    field = _FIELD_OF.get(dtype, "int32_data")
    words = np.array(getattr(tensor, field), _WORD_FIELDS[field])
    _check_count(tensor, words.size, nbytes if dtype.bits < 8 else count, "items")
    if field != "int32_data":
        return words.astype(dtype.numpy, copy=False).reshape(shape)
    if dtype.bits < 8:
        return _decode(words.astype(np.uint8), dtype, shape, count)
    if dtype.is_float:
        # float16 and smaller are stored as bit patterns
        return words.astype(np.dtype(f"u{dtype.nbytes}")).view(dtype.numpy).reshape(shape)
    return words.astype(dtype.numpy).reshape(shape)


def _check_count(tensor: TensorProto, got: int, expected: int, unit: str) -> None:
    if got != expected:
        raise ImportModelError(
            "an initializer's data does not fit its shape",
            expected=f"{expected} {unit} for shape {list(tensor.dims)} of {type_name(tensor.data_type)}",
            got=f"{got} {unit}",
            where=f"initializer {tensor.name!r}",
            fix="the file is truncated or malformed; export it again",
        )


def _decode(raw: np.ndarray, dtype: DType, shape: tuple[int, ...], count: int) -> np.ndarray:
    if dtype.bits >= 8:
        return raw.view(dtype.numpy.newbyteorder("<") if dtype.numpy.isbuiltin else dtype.numpy).reshape(shape)
    return unpacked(raw, dtype.bits)[:count].view(dtype.numpy).reshape(shape)


def sparse_to_array(tensor: SparseTensorProto, external: ExternalData, limit: Mapping[str, int]) -> np.ndarray:
    """A SparseTensorProto as a dense array of at most `limit["bytes"]` bytes. Raises ImportModelError."""
    shape = tuple(tensor.dims)
    values = to_array(tensor.values, external)
    indices = to_array(tensor.indices, external)
    count = math.prod(shape)
    if count * values.itemsize > limit["bytes"]:
        raise ImportModelError(
            "a sparse initializer is too large to store densely",
            expected=f"at most {limit['bytes']} bytes",
            got=f"{count * values.itemsize} bytes",
            where=repr(tensor.values.name),
        )
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
    if flat.shape != values.shape or (flat.size and (flat.min() < 0 or flat.max() >= count)):
        raise ImportModelError("malformed sparse initializer", where=repr(tensor.values.name))
    dense = np.zeros(count, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)
