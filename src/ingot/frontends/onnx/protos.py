"""ONNX's protobuf classes without the rest of the onnx package, which imports 150 modules, as slow as compiling a small
model. Other parts of it (schemas, helpers) are imported where they are used."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = [
    "AttributeProto", "FunctionProto", "GraphProto", "ModelProto", "NodeProto", "OperatorSetIdProto",
    "SparseTensorProto", "TensorProto", "TensorShapeProto", "TypeProto", "ValueInfoProto",
]  # fmt: skip

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        OperatorSetIdProto,
        SparseTensorProto,
        TensorProto,
        TensorShapeProto,
        TypeProto,
        ValueInfoProto,
    )
else:

    def _messages() -> ModuleType:
        """The module of generated classes alone: protobuf creates each class once, so they are the package's classes,
        whichever is imported first."""
        spec = None if "onnx" in sys.modules else find_spec("onnx")
        generated = Path(spec.origin or "").with_name("onnx_ml_pb2.py") if spec is not None else None
        if generated is None or not generated.is_file():
            import onnx

            return onnx
        messages_spec = spec_from_file_location("ingot.frontends.onnx._messages", generated)
        module = module_from_spec(messages_spec)
        messages_spec.loader.exec_module(module)
        return module

    _messages_by_name = _messages()
    globals().update({name: getattr(_messages_by_name, name) for name in __all__})
