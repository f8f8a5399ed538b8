"""ONNX's messages, as its package defines them, without the package around them: it imports 150 modules, which takes
as long as compiling a small model. What else of it is needed (schemas, helpers) is imported where it is used."""

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
        """The module of generated classes, on its own: protobuf makes each class once, so they are those of the package
        whichever comes first."""
        spec = None if "onnx" in sys.modules else find_spec("onnx")
        generated = Path(spec.origin or "").with_name("onnx_ml_pb2.py") if spec is not None else None
        if generated is None or not generated.is_file():
            import onnx

            return onnx
        alone = spec_from_file_location("ingot.frontends.onnx._messages", generated)
        module = module_from_spec(alone)
        alone.loader.exec_module(module)
        return module

    _made = _messages()
    globals().update({name: getattr(_made, name) for name in __all__})
