"""Float records as int8 ones, by the ranges of their values.

    CONV_2D f32   ->   CONV_2D int8: weights by channel within +-127, bias i32 at scale(x) * scale(w)

The rules of scales and zero points are TFLite's (https://ai.google.dev/edge/litert/models/quantization_spec). Operators
that have no int8 kernel stay in floats, between DEQUANTIZE and QUANTIZE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ingot.exporters.tflite.fold import WEIGHTED
from ingot.exporters.tflite.records import Model, Operator, Tensor
from ingot.frontends.tflite.file import Quantization

Range = tuple[float, float]
_JOINED = ("CONCATENATION", "MAXIMUM", "MINIMUM")  # all operands have the scale of the result
_SAME_SCALE = (
    *_JOINED, "RESHAPE", "TRANSPOSE", "PAD", "PADV2", "MAX_POOL_2D", "AVERAGE_POOL_2D", "STRIDED_SLICE",
)  # fmt: skip
_FIXED = {
    "SOFTMAX": Quantization((1 / 256,), (-128,), 0), "LOGISTIC": Quantization((1 / 256,), (-128,), 0),
    "TANH": Quantization((1 / 128,), (0,), 0),
}  # fmt: skip
_INT8 = frozenset((*WEIGHTED, *_SAME_SCALE, *_FIXED, "ADD", "SUB", "MUL", "MEAN", "RELU", "RELU6", "LEAKY_RELU",
                   "HARD_SWISH"))  # fmt: skip
_CHANNEL_AXIS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}  # of weights; those of FULLY_CONNECTED have one scale
_MOST = 127
_LARGEST = 1e30  # what masks are made of has no level of its own


def to_int8(model: Model, ranges: Mapping[int, Range], float_edges: bool = False) -> None:
    """Change `model` in place. ranges: of the values of float tensors, by number; all that have a node. float_edges:
    keep the model's inputs and outputs in floats."""
    _Levels(model, ranges, float_edges).run()
    model.compact()


class _Levels:
    def __init__(self, model: Model, ranges: Mapping[int, Range], float_edges: bool) -> None:
        self.model, self.ranges, self.float_edges = model, ranges, float_edges
        self.parent = list(range(len(model.tensors)))
        self.makers = {op.outputs[0]: op for op in model.operators}
        self.operators: list[Operator] = []
        self.as_int8: dict[int, int] = {}
        self.as_float: dict[int, int] = {}

    def run(self) -> None:
        model = self.model
        for op in model.operators:
            if self._is_int8(op) and op.name in _SAME_SCALE:
                for i in op.inputs if op.name in _JOINED else op.inputs[:1]:
                    if not self._is_fixed(i) or op.name not in _JOINED:
                        self._unite(i, op.outputs[0])
        self.levels = self._quantizations()
        before, model.operators = model.operators, self.operators
        for position, i in enumerate(model.inputs):
            if model.tensors[i].dtype == "f32" and not self.float_edges:
                given = model.add(Tensor(model.tensors[i].name, "i8", model.tensors[i].shape, None, self._of(i)))
                self.as_int8[i] = model.inputs[position] = given
        for op in before:
            self._convert(op)
        for position, i in enumerate(model.outputs):
            if model.tensors[i].dtype == "f32":
                model.outputs[position] = self._float(i) if self.float_edges else self._int8(i)
                model.tensors[model.outputs[position]].name = model.output_names[position]

    # --- scales

    def _is_int8(self, op: Operator) -> bool:
        first = self.model.tensors[op.outputs[0]]
        return op.name in _INT8 and first.dtype == "f32" and self.model.tensors[op.inputs[0]].dtype == "f32"

    def _is_fixed(self, i: int) -> bool:
        return i in self.makers and self.makers[i].name in _FIXED

    def _root(self, i: int) -> int:
        while self.parent[i] != i:
            i = self.parent[i]
        return i

    def _unite(self, a: int, b: int) -> None:
        self.parent[self._root(a)] = self._root(b)

    def _quantizations(self) -> dict[int, Quantization]:
        """Of each set of tensors with one scale: by the union of their ranges, or as an operator fixes it."""
        found: dict[int, Range] = {}
        fixed: dict[int, Quantization] = {}
        for i, t in enumerate(self.model.tensors):
            if t.dtype != "f32":
                continue
            root = self._root(i)
            if self._is_fixed(i):
                fixed.setdefault(root, _FIXED[self.makers[i].name])
            range_ = self.ranges.get(i)
            if t.data is not None and t.data.size:
                range_ = float(t.data.min()), float(t.data.max())
            if range_ is not None and not np.isnan(range_).any():
                low, high = found.get(root, (0.0, 0.0))
                found[root] = min(low, range_[0]), max(high, range_[1])
        return {root: _asymmetric(range_) for root, range_ in found.items()} | fixed

    def _of(self, i: int) -> Quantization:
        return self.levels.get(self._root(i), Quantization((1.0,), (0,), 0))

    # --- operators

    def _int8(self, i: int) -> int:
        """The levels of a float tensor."""
        if i not in self.as_int8:
            t = self.model.tensors[i]
            if t.data is not None:
                self.as_int8[i] = self._constant(t, self._of(i))
            else:
                self.as_int8[i] = self._between("QUANTIZE", i, "i8", self._of(i))
        return self.as_int8[i]

    def _float(self, i: int) -> int:
        if i in self.as_int8 and i not in self.as_float and self.model.tensors[i].data is None:
            made_in_floats = i in self.model.inputs or any(i in op.outputs for op in self.operators)
            self.as_float[i] = i if made_in_floats else self._between("DEQUANTIZE", self.as_int8[i], "f32", None)
        return self.as_float.get(i, i)

    def _between(self, name: str, i: int, dtype: str, quantization: Quantization | None) -> int:
        t = self.model.tensors[i]
        new = self.model.add(Tensor(f"{t.name}/{name.lower()}", dtype, t.shape, None, quantization))
        self.operators.append(Operator(name, [i], [new]))
        return new

    def _constant(self, t: Tensor, q: Quantization) -> int:
        assert t.data is not None
        levels = np.clip(np.rint(t.data.astype(np.float64) / q.scale) + q.zero, -128, 127).astype(np.int8)
        return self.model.add(Tensor(t.name, "i8", t.shape, levels, q))

    def _convert(self, op: Operator) -> None:
        model = self.model
        if not self._is_int8(op):
            op.inputs = [i if i < 0 or model.tensors[i].dtype != "f32" else self._float(i) for i in op.inputs]
            self.operators.append(op)
            return
        (out,) = op.outputs
        data = op.inputs[:1] if op.name in (*WEIGHTED, "PADV2") else op.inputs
        if op.name == "PADV2":
            op.inputs[2] = self._constant(model.tensors[op.inputs[2]], self._of(out))
        op.inputs = [*(self._aligned(op, i, out) for i in data), *op.inputs[len(data) :]]
        if op.name in WEIGHTED:
            self._weights(op)
        t = model.tensors[out]
        new = model.add(Tensor(t.name, "i8", t.shape, None, self._of(out), t.node))
        self.as_int8[out] = new
        op.outputs = [new]
        self.operators.append(op)

    def _aligned(self, op: Operator, i: int, out: int) -> int:
        """An operand as levels, at the scale of the result where the operator asks for that."""
        if self.model.tensors[i].dtype != "f32":
            return i
        levels = self._int8(i)
        if op.name in _JOINED and self.model.tensors[levels].quantization != self._of(out):
            return self._between("QUANTIZE", levels, "i8", self._of(out))
        return levels

    def _weights(self, op: Operator) -> None:
        model = self.model
        w = model.tensors[op.inputs[1]]
        assert w.data is not None
        axis = _CHANNEL_AXIS.get(op.name)
        others = tuple(d for d in range(w.data.ndim) if d != axis) if axis is not None else None
        most = np.atleast_1d(np.abs(w.data).max(axis=others)).astype(np.float64)
        scales = np.where(most > 0, most / _MOST, 1.0).astype(np.float32)
        shape = [-1 if d == axis else 1 for d in range(w.data.ndim)] if axis is not None else [1] * w.data.ndim
        levels = np.clip(np.rint(w.data / scales.astype(np.float64).reshape(shape)), -_MOST, _MOST).astype(np.int8)
        q = Quantization(tuple(map(float, scales)), (0,) * len(scales), axis or 0)
        op.inputs[1] = model.add(Tensor(w.name, "i8", w.shape, levels, q))
        x = model.tensors[op.inputs[0]].quantization
        assert x is not None
        sums = np.float32(x.scale) * scales
        channels = model.tensors[op.outputs[0]].shape[-1]
        bias = model.tensors[op.inputs[2]].data if op.inputs[2] >= 0 else None
        given = np.zeros(channels) if bias is None else bias.astype(np.float64).reshape(-1)
        limits = np.iinfo(np.int32)
        whole = np.clip(np.rint(given / sums.astype(np.float64)), limits.min, limits.max).astype(np.int32)
        q = Quantization(tuple(map(float, sums)), (0,) * len(sums), 0)
        op.inputs[2] = model.add(Tensor(f"{w.name}/bias", "i32", (channels,), whole, q))


def _asymmetric(range_: Range) -> Quantization:
    """255 steps over the range, which holds 0."""
    low, high = (max(min(end, _LARGEST), -_LARGEST) for end in range_)
    scale = float(np.float32((high - low) / 255)) or 1.0
    return Quantization((scale,), (int(np.clip(round(-128 - low / scale), -128, 127)),), 0)


def measured(model: Model) -> Sequence[int]:
    """The numbers of the float tensors whose ranges `to_int8` takes."""
    return [i for i, t in enumerate(model.tensors) if t.dtype == "f32" and t.node is not None and t.data is None]
