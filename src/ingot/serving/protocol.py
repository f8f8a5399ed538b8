"""The Open Inference Protocol (KServe's V2, https://github.com/kserve/open-inference-protocol) over HTTP: requests as
arrays and arrays as responses, in JSON and in its extension of binary tensor data.

    {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]}
    {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]} 8 bytes

In the extension, the header Inference-Header-Content-Length is the length of the JSON; tensors follow in its order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import TensorSpec
from ingot.serving.errors import RequestError
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

BINARY_HEADER = "inference-header-content-length"
BYTES = "BYTES"
# Ingot's dtypes as the protocol names them; other dtypes cannot be served
DATATYPES = {
    "f64": "FP64", "f32": "FP32", "f16": "FP16", "bf16": "BF16", "bool": "BOOL",
    "i8": "INT8", "i16": "INT16", "i32": "INT32", "i64": "INT64",
    "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
}  # fmt: skip
_LENGTH_BYTES = 4  # before each string of a binary tensor
_MAX_RANK = 64  # of numpy's arrays


@dataclass(frozen=True)
class Request:
    """inputs: the arrays, in the model's order. outputs: the requested names -> whether as binary data."""

    id: str | None
    inputs: tuple[np.ndarray, ...]
    outputs: Mapping[str, bool]


def datatype(spec: TensorSpec) -> str:
    """The protocol's name for the dtype. Raises InputError for dtypes that it lacks."""
    if spec.dtype in DATATYPES:
        return DATATYPES[spec.dtype]
    if "string" in spec.dtype or spec.dtype in ("", "str"):
        return BYTES
    expected = f"one of {', '.join(DATATYPES)}, or strings"
    raise InputError(f"{spec.name!r} cannot be served", expected=expected, got=spec.dtype)


def metadata(spec: TensorSpec) -> dict[str, Any]:
    """A tensor in the format of model metadata: open sizes are -1."""
    return {"name": spec.name, "datatype": datatype(spec), "shape": sizes(spec)}


def sizes(spec: TensorSpec) -> list[int]:
    """The shape with -1 for open sizes; [-1] for a rank that each call decides."""
    try:
        return [dim if isinstance(dim, int) else -1 for dim in spec.shape]
    except InputError:
        return [-1]


def is_unranked(spec: TensorSpec) -> bool:
    try:
        return spec.shape is None
    except InputError:
        return True


# --- requests


def parse(body: bytes, json_bytes: int | None, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Request:
    """A request. json_bytes: the length of the JSON before binary data, if there is any. Raises RequestError (400)."""
    if json_bytes is not None and not 0 < json_bytes <= len(body):
        raise _bad(BINARY_HEADER, expected=f"1 to {len(body)}, the bytes of the body", got=json_bytes)
    binary = memoryview(b"" if json_bytes is None else body)[json_bytes or 0 :]
    document = _json(body if json_bytes is None else body[:json_bytes])
    request = _mapping(document, "the request")
    request_id = request.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise _bad("id", expected="a string", got=_kind(request_id))
    tensors = request.get("inputs")
    if not isinstance(tensors, list):
        raise _bad("inputs", expected="a list of tensors", got=_kind(tensors))
    specs = {spec.name: spec for spec in inputs}
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for tensor in tensors:
        spec, array, used = _tensor(_mapping(tensor, "an input"), specs, binary[offset:])
        if spec.name in arrays:
            raise _bad(f"input {spec.name!r}", expected="once", got="more than once")
        arrays[spec.name] = array
        offset += used
    if offset != len(binary):
        raise _bad("binary data", expected=f"{offset} bytes by the inputs' binary_data_size", got=len(binary))
    if missing := [str(spec) for name, spec in specs.items() if name not in arrays]:
        raise _bad("inputs", expected=", ".join(map(str, inputs)), got=f"none for {', '.join(missing)}")
    return Request(request_id, tuple(arrays[spec.name] for spec in inputs), _requested_outputs(request, outputs))


def _json(text: bytes) -> object:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise _bad("the body is no JSON", got=f"{type(error).__name__}: {str(error)[:200]}") from error


def _no_constant(name: str) -> None:
    raise _bad("a number of JSON", expected="finite digits", got=name, fix="send it as binary data")


def _tensor(
    tensor: Mapping[str, Any], specs: Mapping[str, TensorSpec], binary: memoryview
) -> tuple[TensorSpec, np.ndarray, int]:
    """(input, its array, the number of bytes of binary data that it uses)."""
    name = tensor.get("name")
    spec = specs.get(name) if isinstance(name, str) else None
    if spec is None:
        raise _bad("an input's name", expected=f"one of {[*specs]}", got=_short(name))
    where = f"input {name!r}"
    if (expected_type := datatype(spec)) != tensor.get("datatype"):
        raise _bad(f"{where}: datatype", expected=expected_type, got=_short(tensor.get("datatype")))
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > _MAX_RANK
        or not all(type(d) is int and 0 <= d < 1 << 62 for d in shape)
    ):
        raise _bad(f"{where}: shape", expected="a list of sizes >= 0", got=_short(shape))
    declared = sizes(spec)
    is_matching = len(shape) == len(declared) and all(d in (-1, s) for d, s in zip(declared, shape, strict=True))
    if not is_matching and not is_unranked(spec):
        raise _bad(f"{where}: shape", expected=declared, got=shape)
    parameters = _mapping(tensor.get("parameters") or {}, f"{where}: parameters")
    if "shared_memory_region" in parameters:
        raise _bad(f"{where}: shared memory", expected="data in the request", got="a region of shared memory")
    count = math.prod(shape)
    if "binary_data_size" not in parameters:
        return spec, _from_json(where, spec, tensor.get("data"), shape, count), 0
    size = parameters["binary_data_size"]
    if "data" in tensor or type(size) is not int or not 0 <= size <= len(binary):
        raise _bad(f"{where}: binary_data_size", expected=f"0 to {len(binary)}, and no data", got=_short(size))
    if expected_type == BYTES:
        return spec, _strings(where, binary[:size], count).reshape(shape), size
    dtype = numpy_dtype(spec.dtype)
    if size != count * dtype.itemsize:
        raise _bad(
            f"{where}: binary_data_size", expected=f"{count * dtype.itemsize} for {shape} {expected_type}", got=size
        )
    # a copy, which is aligned, and in which truth values are 0 or 1
    raw = np.frombuffer(binary[:size], np.uint8)
    return spec, ((raw != 0) if expected_type == "BOOL" else raw.copy().view(dtype)).reshape(shape), size


def _from_json(where: str, spec: TensorSpec, data: object, shape: list[int], count: int) -> np.ndarray:
    if not isinstance(data, list):
        raise _bad(f"{where}: data", expected="a list", got=_kind(data))
    # as objects: with one long string among numbers, numpy would choose a dtype in which all are as long
    try:
        array = np.array(data, dtype=object)
    except ValueError:  # lists of unequal lengths
        array = np.empty(0, object)
    if array.shape not in ((count,), tuple(shape)):
        expected = f"{count} values, flat or nested as {shape}"
        raise _bad(f"{where}: data", expected=expected, got=f"shape {[*array.shape]}")
    kind = datatype(spec)
    values = array.reshape(-1).tolist()
    accepted_types = {str} if kind == BYTES else {bool} if kind == "BOOL" else {int, float} if "F" in kind else {int}
    if wrong_types := set(map(type, values)) - accepted_types:
        raise _bad(f"{where}: data", expected=f"values of {kind}", got=_KINDS.get(wrong_types.pop(), "a number"))
    try:
        if kind == BYTES:
            "".join(values).encode()  # raises for lone surrogates
            return array.reshape(shape)
        dtype = numpy_dtype(spec.dtype)
        if "F" not in kind:  # numpy raises for an int that exceeds the dtype
            return np.array(values, dtype).reshape(shape)
        with np.errstate(over="ignore"):
            converted = np.array(values, np.float64).astype(dtype)
        if np.isfinite(converted.astype(np.float64)).all():
            return converted.reshape(shape)
    except (ValueError, OverflowError):
        pass
    raise _bad(f"{where}: data", expected=f"what {kind} holds", got="a value beyond it")


def _strings(where: str, data: memoryview, count: int) -> np.ndarray:
    """Decode strings, each of which follows its length in bytes."""
    texts = np.empty(count if count <= len(data) // _LENGTH_BYTES else 0, object)
    position = 0
    for index in range(texts.size):
        end = position + _LENGTH_BYTES + int.from_bytes(data[position : position + _LENGTH_BYTES], "little")
        if position + _LENGTH_BYTES > len(data) or end > len(data):
            break
        try:
            texts[index] = str(data[position + _LENGTH_BYTES : end], "utf-8")
        except UnicodeDecodeError as error:
            raise _bad(f"{where}: a string", expected="UTF-8", got=str(error)) from error
        position = end
    else:
        if position == len(data) and texts.size == count:
            return texts
    raise _bad(f"{where}: binary data", expected=f"{count} strings, each after its length", got=f"{len(data)} bytes")


def _requested_outputs(request: Mapping[str, Any], outputs: Sequence[TensorSpec]) -> dict[str, bool]:
    names = [spec.name for spec in outputs]
    default = _flag(_mapping(request.get("parameters") or {}, "parameters"), "binary_data_output", False)
    requested = request.get("outputs")
    if requested is None or requested == []:
        return dict.fromkeys(names, default)
    if not isinstance(requested, list):
        raise _bad("outputs", expected="a list of outputs", got=_kind(requested))
    is_binary: dict[str, bool] = {}
    for output in requested:
        name = _mapping(output, "an output").get("name")
        if name not in names or name in is_binary:
            raise _bad("an output's name", expected=f"one of {names}, each once", got=_short(name))
        parameters = _mapping(output.get("parameters") or {}, f"output {name!r}: parameters")
        for refused in ("classification", "shared_memory_region"):
            if refused in parameters:
                raise _bad(f"output {name!r}", expected="the tensor itself", got=refused)
        is_binary[name] = _flag(parameters, "binary_data", default)
    return is_binary


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise _bad(name, expected="true or false", got=_short(value))
    return value


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _bad(where, expected="an object", got=_kind(value))
    return value


_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "nothing"}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a number")


def _short(value: object) -> str:
    return repr(value)[:200]


def _bad(what: str, *, expected: object = None, got: object = None, fix: str = "") -> RequestError:
    return RequestError(400, what, expected=expected, got=got, fix=fix)


# --- responses


def response(
    request: Request, name: str, version: str, outputs: Sequence[TensorSpec], results: Sequence[object]
) -> tuple[bytes, int | None]:
    """(the body, the length of its JSON if binary data follows, else None). Raises RequestError (406) for numbers that
    JSON lacks."""
    tensors: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for spec, result in zip(outputs, results, strict=True):
        as_binary = request.outputs.get(spec.name)
        if as_binary is None:
            continue
        array = _array(spec, result)
        kind = BYTES if array.dtype.kind in "OSU" else datatype(spec)
        tensor: dict[str, Any] = {"name": spec.name, "datatype": kind, "shape": [*array.shape]}
        if as_binary:
            binary.append(_packed(array) if kind == BYTES else np.ascontiguousarray(array).tobytes())
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            flat = array.reshape(-1)
            tensor["data"] = (flat.astype(np.float64) if flat.dtype.kind == "V" or kind == "BF16" else flat).tolist()
        tensors.append(tensor)
    text: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": tensors}
    if request.id is not None:
        text["id"] = request.id
    try:
        head = json.dumps(text, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        fix = "ask for binary_data_output"
        raise RequestError(
            406, "a result that JSON cannot tell", expected="finite", got="NaN or infinity", fix=fix
        ) from error
    return b"".join([head, *binary]), len(head) if binary else None


def _array(spec: TensorSpec, result: object) -> np.ndarray:
    if isinstance(result, dict | list | tuple) or result is None:
        raise InputError(f"output {spec.name!r} cannot be served", expected="a tensor", got=type(result).__name__)
    return np.asarray(result)


def _packed(array: np.ndarray) -> bytes:
    texts = [v if isinstance(v, bytes) else str(v).encode("utf-8", "surrogateescape") for v in array.reshape(-1)]
    return b"".join(len(t).to_bytes(_LENGTH_BYTES, "little") + t for t in texts)
