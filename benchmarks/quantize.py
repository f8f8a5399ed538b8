"""Models of the zoo in 8 and 4 bits, as ONNX Runtime's quantizer makes them: what its users deploy.

static: activations in u8, calibrated on two seeded inputs, weights in i8 with a scale for each output channel, as
QuantizeLinear and DequantizeLinear around each op. dynamic: matmuls alone, activations by their range in each call.
weights: those of matmuls alone, in 4 bits, blocks of 32 with a scale each (MatMulNBits), activations as they are.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import (  # pyright: ignore[reportMissingImports]
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import (  # pyright: ignore[reportMissingImports]
    MatMulNBitsQuantizer,
)
from onnxruntime.quantization.shape_inference import quant_pre_process  # pyright: ignore[reportMissingImports]

from benchmarks import zoo


class _Seeded(CalibrationDataReader):
    """The model's example inputs, twice with other numbers."""

    def __init__(self, model: zoo.Model) -> None:
        given = {n: np.asarray(t) for n, t in zip(model.input_names, model.inputs(1), strict=True)}
        turned = {n: np.flip(x, -1).copy() if x.dtype.kind == "f" else x for n, x in given.items()}
        self.left = iter((given, turned))

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        return next(self.left, None)


def quantized(model: zoo.Model, style: str) -> Path:
    """The cached ONNX file of `model` in this style, made if it is missing."""
    target = zoo.cache_folder() / f"{model.name}.{style}.onnx"
    if target.exists():
        return target
    logging.getLogger().setLevel(logging.ERROR)  # advice on each model
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.onnx"
        quant_pre_process(model.to_onnx(), plain, skip_symbolic_shape=True)
        if style == "dynamic":
            quantize_dynamic(plain, target, weight_type=QuantType.QInt8)
        elif style == "weights":
            quantizer: Any = MatMulNBitsQuantizer(onnx.load(plain), block_size=32, is_symmetric=True)
            quantizer.process()
            quantizer.model.save_model_to_file(str(target))
        else:
            quantize_static(
                plain, target, _Seeded(model), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8, per_channel=True,
            )  # fmt: skip
    return target


__all__ = ["quantized"]
