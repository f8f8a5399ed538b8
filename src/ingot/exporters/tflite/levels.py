"""Quantization: float records as int8 or int16 ones. "Levels" are the quantized values of a tensor.

    CONV_2D f32   ->   CONV_2D int8: weights by channel within +-127, bias i32 at scale(x) * scale(w)

The rules of scales and zero points are TFLite's (https://ai.google.dev/edge/litert/models/quantization_spec); weights
of int16 operators are int8, their biases i64. Operators without an integer kernel stay in floats, between DEQUANTIZE
and QUANTIZE. The scales come from samples (`ranges.py`), or from the graph itself (`given.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ingot.exporters.tflite.fold import CHANNEL_AXIS, WEIGHTED, places
from ingot.exporters.tflite.records import Model, Operator, Tensor
from ingot.frontends.tflite.file import Quantization
from ingot.support.dataclass import dataclass

JOINED = ("CONCATENATION", "MAXIMUM", "MINIMUM")  # all operands must have the scale of the result
SAME_SCALE = (
    *JOINED, "RESHAPE", "TRANSPOSE", "PAD", "PADV2", "MAX_POOL_2D", "AVERAGE_POOL_2D", "STRIDED_SLICE", "GATHER",
    "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR",
)  # fmt: skip
_INT8 = frozenset((*WEIGHTED, *SAME_SCALE, "SOFTMAX", "LOGISTIC", "TANH", "ADD", "SUB", "MUL", "MEAN", "RELU", "RELU6",
                   "LEAKY_RELU", "HARD_SWISH", "BATCH_MATMUL"))  # fmt: skip
_OPERATORS = {"i8": _INT8, "i16": _INT8 - {"HARD_SWISH"}}  # with integer kernels
_LEVEL_RANGES = {"i8": (-128, 127), "i16": (-32768, 32767)}
_ARRAYS = {"i8": np.int8, "i16": np.int16}
_MAX_WEIGHT = 127


@dataclass(frozen=True)
class Grid:
    """The quantization of a tensor: the type of its levels, "i8" or "i16", their scale and their zero point."""

    dtype: str
    quantization: Quantization

    @staticmethod
    def of(dtype: str, scale: float, zero: int) -> Grid:
        return Grid(dtype, Quantization((scale,), (zero,), 0))

    def levels(self, x: np.ndarray) -> np.ndarray:
        q = self.quantization
        low, high = _LEVEL_RANGES[self.dtype]
        return np.clip(np.rint(x.astype(np.float64) / q.scale) + q.zero, low, high).astype(_ARRAYS[self.dtype])


def operands(op: Operator) -> Sequence[int]:
    """The indices of the operands that are values, not weights or parameters."""
    return places(op)[:1] if op.name in (*WEIGHTED, "PADV2") else range(len(op.inputs))


def fixed_grid(op: Operator, dtype: str) -> Grid | None:
    """The grid that an operator's results have by definition; None for most operators."""
    if op.name in ("SOFTMAX", "LOGISTIC"):
        return Grid.of(dtype, 1 / 256, -128) if dtype == "i8" else Grid.of(dtype, 1 / 32768, 0)
    if op.name == "TANH":
        return Grid.of(dtype, 1 / 128 if dtype == "i8" else 1 / 32768, 0)
    return None


class Conversion(ABC):
    """Quantizes a model in place. as_levels, as_float: for the number of a float tensor, the tensor with its levels and
    the one with its values. operators: the new operators so far."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.makers = {op.outputs[0]: op for op in model.operators}
        self.operators: list[Operator] = []
        self.as_levels: dict[int, int] = {}
        self.as_float: dict[int, int] = {}

    @abstractmethod
    def grid(self, i: int) -> Grid:
        """The grid for a float tensor."""

    @abstractmethod
    def is_of_levels(self, op: Operator) -> bool:
        """Whether an operator is to compute levels."""

    def has_kernel(self, op: Operator, dtype: str) -> bool:
        """Whether an operator is of floats, and TFLite also has it for levels of a type."""
        tensors = self.model.tensors
        return op.name in _OPERATORS[dtype] and tensors[op.outputs[0]].dtype == tensors[places(op)[0]].dtype == "f32"

    # --- values

    def levels(self, i: int) -> int:
        """The tensor of a float tensor's levels."""
        if i not in self.as_levels:
            t, grid = self.model.tensors[i], self.grid(i)
            tensor = self._constant(t, grid) if t.data is not None else self.add_conversion("QUANTIZE", i, grid)
            self.as_levels[i] = tensor
        return self.as_levels[i]

    def float(self, i: int) -> int:
        """The tensor of a float tensor's values."""
        if i in self.as_levels and i not in self.as_float and self.model.tensors[i].data is None:
            is_float = i in self.model.inputs or any(i in op.outputs for op in self.operators)
            self.as_float[i] = i if is_float else self.add_conversion("DEQUANTIZE", self.as_levels[i], None)
        return self.as_float.get(i, i)

    def add_conversion(self, name: str, i: int, grid: Grid | None) -> int:
        """Add a QUANTIZE to a grid, or a DEQUANTIZE if there is none."""
        t = self.model.tensors[i]
        label = f"{t.name}/{name.lower()}"
        new = (
            Tensor(label, "f32", t.shape)
            if grid is None
            else Tensor(label, grid.dtype, t.shape, None, grid.quantization)
        )
        number = self.model.add(new)
        self.operators.append(Operator(name, [i], [number]))
        return number

    def _constant(self, t: Tensor, grid: Grid) -> int:
        assert t.data is not None
        return self.model.add(Tensor(t.name, grid.dtype, t.shape, grid.levels(t.data), grid.quantization))

    # --- operators

    def convert(self, op: Operator) -> None:
        """Add an operator, as one of levels if possible, else unchanged."""
        model = self.model
        if not self.is_of_levels(op):
            op.inputs = [i if i < 0 or model.tensors[i].dtype != "f32" else self.float(i) for i in op.inputs]
            self.operators.append(op)
            return
        (result,) = op.outputs
        result_grid, t = self.grid(result), model.tensors[result]
        data = operands(op)
        parts = [self._aligned(op, op.inputs[k], result_grid) for k in data]
        grid = fixed_grid(op, result_grid.dtype) or result_grid
        if op.name in SAME_SCALE and op.name not in JOINED:
            q = model.tensors[parts[0]].quantization
            assert q is not None
            grid = Grid(result_grid.dtype, q)
        if op.name == "PADV2":
            op.inputs[2] = self._constant(model.tensors[op.inputs[2]], grid)
        for k, part in zip(data, parts, strict=True):
            op.inputs[k] = part
        if op.name in WEIGHTED:
            self._weights(op, result_grid.dtype)
        if op.name in ("ADD", "SUB") and result_grid.dtype == "i16":
            op.options["pot_scale_int16"] = False
        new = model.add(Tensor(t.name, grid.dtype, t.shape, None, grid.quantization, t.node))
        op.outputs = [new]
        self.operators.append(op)
        self.as_levels[result] = new if grid == result_grid else self.add_conversion("QUANTIZE", new, result_grid)

    def _aligned(self, op: Operator, i: int, grid: Grid) -> int:
        """An operand as levels, at the scale of the result if the operator requires that."""
        if self.model.tensors[i].dtype != "f32":
            return i
        levels = self.levels(i)
        if op.name in JOINED and self.model.tensors[levels].quantization != grid.quantization:
            return self.add_conversion("QUANTIZE", levels, grid)
        return levels

    def _weights(self, op: Operator, dtype: str) -> None:
        model = self.model
        x_place, w_place, bias_place = places(op)
        w = model.tensors[op.inputs[w_place]]
        assert w.data is not None
        q = w.quantization or symmetric(w.data, None if op.name == "FULLY_CONNECTED" else CHANNEL_AXIS[op.name])
        shape = [-1 if d == q.axis and len(q.scales) > 1 else 1 for d in range(w.data.ndim)]
        scales = np.array(q.scales, np.float32)
        levels = np.clip(np.rint(w.data / scales.astype(np.float64).reshape(shape)), -128, 127).astype(np.int8)
        op.inputs[w_place] = model.add(Tensor(w.name, "i8", w.shape, levels, q))
        x = model.tensors[op.inputs[x_place]].quantization
        assert x is not None
        sums = np.float32(x.scale) * scales
        channels = model.tensors[op.outputs[0]].shape[-1]
        bias = model.tensors[op.inputs[bias_place]].data if op.inputs[bias_place] >= 0 else None
        bias_values = np.zeros(channels) if bias is None else bias.astype(np.float64).reshape(-1)
        limits = np.iinfo(np.int32 if dtype == "i8" else np.int64)
        # 2^62 instead of the largest i64, which a float cannot represent
        bias_levels = np.clip(
            np.rint(bias_values / sums.astype(np.float64)), limits.min, limits.max if dtype == "i8" else 2.0**62
        )
        bias_q = Quantization(tuple(map(float, sums)), (0,) * len(sums), 0)
        name, kind = f"{w.name}/bias", "i32" if dtype == "i8" else "i64"
        op.inputs[bias_place] = model.add(Tensor(name, kind, (channels,), bias_levels.astype(limits.dtype), bias_q))


def symmetric(w: np.ndarray, axis: int | None) -> Quantization:
    """The quantization of weights: within +-127, with one scale, or one per channel."""
    other_axes = tuple(d for d in range(w.ndim) if d != axis) if axis is not None else None
    max_magnitudes = np.atleast_1d(np.abs(w).max(axis=other_axes)).astype(np.float64)
    scales = np.where(max_magnitudes > 0, max_magnitudes / _MAX_WEIGHT, 1.0).astype(np.float32)
    return Quantization(tuple(map(float, scales)), (0,) * len(scales), axis or 0)
