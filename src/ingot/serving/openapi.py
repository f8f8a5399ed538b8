"""The OpenAPI description of a server: the protocol's routes, with the tensors of its models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot import __version__
from ingot.runtime.program import TensorSpec
from ingot.serving.protocol import BINARY_HEADER, BYTES, is_unranked, metadata
from ingot.serving.repository import ServedModel

_ERRORS = {
    400: "an invalid request", 404: "no such model or version", 406: "a result that JSON cannot tell",
    408: "the body took too long", 413: "the body is too large", 415: "the body is compressed",
    500: "the model failed", 503: "the queue is full", 504: "no answer in time",
}  # fmt: skip
_NUMBERS: dict[str, tuple[int, int]] = {
    f"{'U' * unsigned}INT{bits}": (0 if unsigned else -(1 << bits - 1), (1 << bits - 1 + unsigned) - 1)
    for bits in (8, 16, 32, 64) for unsigned in (False, True)
}  # fmt: skip


def page(models: Sequence[ServedModel], title: str) -> dict[str, Any]:
    """The description, of OpenAPI 3.1."""
    json_error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {str(code): {"description": text, "content": json_error} for code, text in _ERRORS.items()}
    any_object = {"application/json": {"schema": {"type": "object"}}}

    def got(summary: str, content: Any = None) -> dict[str, Any]:
        body = {"description": "as asked"} | ({"content": content} if content else {})
        return {"summary": summary, "responses": {"200": body}}

    paths: dict[str, Any] = {
        "/v2": {"get": got("the server's name, version and extensions", any_object)},
        "/v2/health/live": {"get": got("whether the server runs", any_object)},
        "/v2/health/ready": {"get": got("whether all models are ready", any_object)},
        "/v2/models/stats": {"get": got("counts of all models", any_object)},
        "/v2/repository/index": {
            "post": got("the models and their versions", {"application/json": {"schema": {"type": "array"}}})
        },
        "/metrics": {"get": got("metrics in Prometheus' format", {"text/plain": {"schema": {"type": "string"}}})},
    }
    for model in models:
        path = f"/v2/models/{model.name}/versions/{model.version}"
        paths[path] = {"get": got(f"the tensors of {model.name}", any_object)}
        paths[f"{path}/ready"] = {"get": got(f"whether {model.name} is ready", any_object)}
        paths[f"{path}/config"] = {"get": got(f"how {model.name} is configured", any_object)}
        paths[f"{path}/stats"] = {"get": got(f"counts of {model.name}", any_object)}
        paths[f"{path}/infer"] = {
            "post": {
                "summary": f"run {model.name}",
                "description": f"Tensors in binary follow the JSON, which ends where {BINARY_HEADER} says.",
                "requestBody": {"required": True, "content": {"application/json": {"schema": _request(model)}}},
                "responses": errors | got("", any_object)["responses"],
            }
        }
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": error}},
    }


def _request(model: ServedModel) -> dict[str, Any]:
    inputs = [_tensor(spec) for spec in model.inputs]
    names = [spec.name for spec in model.outputs]
    output = {"type": "object", "required": ["name"], "properties": {"name": {"enum": names}}}
    count = len(inputs)
    tensors = {"type": "array", "prefixItems": inputs, "items": False, "minItems": count, "maxItems": count}
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "inputs": tensors,
            "outputs": {"type": "array", "items": output},
        },
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    facts = metadata(spec)
    sizes = [{"type": "integer", "minimum": 0} if d < 0 else {"const": d} for d in facts["shape"]]
    shape: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    if not is_unranked(spec):
        shape = {"type": "array", "prefixItems": sizes, "items": False, "minItems": len(sizes), "maxItems": len(sizes)}
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": spec.name},
            "datatype": {"const": facts["datatype"]},
            "shape": shape,
            "data": {"type": "array", "items": _value(facts["datatype"])},
        },
    }


def _value(datatype: str) -> dict[str, Any]:
    if datatype == BYTES:
        return {"type": "string"}
    if datatype == "BOOL":
        return {"type": "boolean"}
    if datatype in _NUMBERS:
        low, high = _NUMBERS[datatype]
        return {"type": "integer", "minimum": low, "maximum": high}
    return {"type": "number"}
