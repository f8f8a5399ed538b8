"""Ingot as a backend of ONNX (`onnx.backend.base`).

from onnx.backend.test import BackendTest
from ingot.integrations.onnx import IngotBackend
tests = BackendTest(IngotBackend, __name__)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from ingot.api.compile import compile
from ingot.support.errors import UnsupportedOpError


class IngotRep(BackendRep):
    """A compiled model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run on inputs in order or by name. Returns a tuple of the outputs."""
        if isinstance(inputs, dict):
            results = self.model(**inputs)
        else:
            results = self.model(*(inputs if isinstance(inputs, list | tuple) else [inputs]))
        return results if isinstance(results, tuple) else (results,)


class IngotBackend(Backend):
    """Runs models and single nodes on the CPU. Keyword arguments are those of `ingot.compile`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether Ingot supports all ops of the model. Raises any other error."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedOpError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> IngotRep:
        return IngotRep(compile(model, **kwargs))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run a single node of opset `opset_version`, by default the newest."""
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        arrays = [np.asarray(x) for x in (inputs.values() if isinstance(inputs, dict) else inputs)]
        names = list(dict.fromkeys(name for name in node.input if name))
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, arrays, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain or "", version)])
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return Device(device).type == DeviceType.CPU
