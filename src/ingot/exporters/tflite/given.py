"""Quantization of records by a graph's own QDQ nodes: operators between DEQUANTIZE and QUANTIZE compute levels.

    QUANTIZE(CONV_2D(DEQUANTIZE(q), w))   ->   CONV_2D(q, levels of w)

An operator stays in floats if its result is not quantized, or has a reader that is not QUANTIZE. Views and max pools
keep the levels of their operand, and need no QUANTIZE after them.
"""

from __future__ import annotations

import numpy as np

from ingot.exporters.tflite.fold import CHANNEL_AXIS, WEIGHTED
from ingot.exporters.tflite.levels import Conversion, Grid, operands
from ingot.exporters.tflite.ranges import spread
from ingot.exporters.tflite.records import Model, Operator, Tensor
from ingot.frontends.tflite.file import Quantization

_VIEWS = (
    "RESHAPE",
    "TRANSPOSE",
    "STRIDED_SLICE",
    "GATHER",
    "MAX_POOL_2D",
    "RESIZE_NEAREST_NEIGHBOR",
)  # results are among the operands' elements


def is_quantized(model: Model) -> bool:
    """Whether a model has quantized values already."""
    return any(op.name == "QUANTIZE" for op in model.operators)


def to_given_levels(model: Model) -> None:
    """Quantize `model` in place, to i8, and to i16 without a zero point; u8 levels become i8."""
    _QuantizedConversion(model).run()
    model.compact()


class _QuantizedConversion(Conversion):
    """exact: the grids of float tensors whose elements lie on one. requested: the grids to which all readers of a
    float tensor quantize it. signed: for each integer tensor of levels, the tensor with these levels as i8 or i16."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.readers: dict[int, list[Operator | None]] = {}
        for op in model.operators:
            for i in op.inputs:
                self.readers.setdefault(i, []).append(op)
        for i in model.outputs:
            self.readers.setdefault(i, []).append(None)
        self.exact: dict[int, Grid] = {}
        self.requested: dict[int, Grid] = {}
        self.signed: dict[int, int] = {}

    def run(self) -> None:
        model = self.model
        for op in model.operators:
            t = model.tensors[op.outputs[0]]
            if t.dtype != "f32" and op.name in _VIEWS:
                t.quantization = t.quantization or model.tensors[op.inputs[0]].quantization
            self._find_exact(op)
        for op in reversed(model.operators):
            self._find_requested_grid(op)
        float_operators, model.operators = model.operators, self.operators
        for op in float_operators:
            result = op.outputs[0]
            if op.name == "QUANTIZE":
                self.signed[result] = self._rounded(op.inputs[0], self._grid_of(model.tensors[result]))
            elif op.name == "DEQUANTIZE" and self._grid_of(model.tensors[op.inputs[0]]) is not None:
                self.as_levels[result] = self._signed(op.inputs[0])
            else:
                op.inputs = [i if i < 0 or model.tensors[i].dtype == "f32" else self._stored(i) for i in op.inputs]
                self.convert(op)
        for position, i in enumerate(model.outputs):
            number = self.float(i) if model.tensors[i].dtype == "f32" else self._stored(i)
            model.outputs[position] = number
            model.tensors[number].name = model.output_names[position]

    # --- which tensors have levels

    def _find_exact(self, op: Operator) -> None:
        result = op.outputs[0]
        if op.name == "DEQUANTIZE":
            grid = self._grid_of(self.model.tensors[op.inputs[0]])
        else:
            grid = self._exact(op.inputs[0])
            grid = grid if grid is not None and self._keeps_levels(op, grid) else None
        if grid is not None:
            self.exact[result] = grid

    def _keeps_levels(self, op: Operator, grid: Grid) -> bool:
        """Whether the results of an operator are on the grid of its first operand."""
        if op.name != "PADV2":
            return op.name in (*_VIEWS, "PAD")
        filler = self.model.tensors[op.inputs[2]].data
        assert filler is not None
        readers = self.readers.get(op.outputs[0], [])
        if float(filler.min()) == np.finfo(np.float32).min:  # the lowest level is equivalent in a maximum
            return all(r is not None and r.name == "MAX_POOL_2D" for r in readers)
        q = grid.quantization
        return bool(
            ((grid.levels(filler).astype(np.float32) - np.float32(q.zero)) * np.float32(q.scale) == filler).all()
        )

    def _exact(self, i: int) -> Grid | None:
        t = self.model.tensors[i]
        return self.exact.get(i) or (self._grid_of(t) if t.data is not None else None)

    def _find_requested_grid(self, op: Operator) -> None:
        x, result = op.inputs[0], op.outputs[0]
        grid = self._grid_of(self.model.tensors[result]) if op.name == "QUANTIZE" else None
        if op.name in (*_VIEWS, "PAD") and result not in self.exact:
            grid = self.requested.get(result)
        if grid is None or x in self.exact:
            return
        if all(r is op or (op.name == "QUANTIZE" and self._rounds(r, grid)) for r in self.readers[x]):
            self.requested[x] = grid

    def _rounds(self, op: Operator | None, grid: Grid) -> bool:
        if op is None or op.name != "QUANTIZE":
            return False
        return self._grid_of(self.model.tensors[op.outputs[0]]) == grid

    def _grid_of(self, t: Tensor) -> Grid | None:
        """The grid of a tensor, for signed levels; None if it has none, or one scale per channel."""
        q = t.quantization
        if q is None or len(q.scales) > 1:
            return None
        if t.dtype in ("u8", "u16"):
            bits = int(t.dtype[1:])
            q = Quantization(q.scales, (q.zero - (1 << (bits - 1)),), q.axis)
        dtype = {"u8": "i8", "u16": "i16", "f32": "i8"}.get(t.dtype, t.dtype)
        return Grid(dtype, q) if dtype == "i8" or (dtype == "i16" and q.zero == 0) else None

    # --- what operators compute

    def is_of_levels(self, op: Operator) -> bool:
        tensors = self.model.tensors
        grid = self._grid_or_none(op.outputs[0])
        if grid is None or not self.has_kernel(op, grid.dtype):
            return False
        values = [op.inputs[k] for k in operands(op)]
        if not all(self._has_grid(i, grid.dtype) for i in values if tensors[i].dtype == "f32"):
            return False
        return op.name not in WEIGHTED or self._has_weights(op)

    def _grid_or_none(self, i: int) -> Grid | None:
        return self.requested.get(i) or self._exact(i)

    def _has_grid(self, i: int, dtype: str) -> bool:
        t, grid = self.model.tensors[i], self._grid_or_none(i)
        if grid is None and t.data is not None and is_one_number(t.data):
            # there is a grid that represents a single number exactly
            low, high = min(0.0, float(t.data.min())), max(0.0, float(t.data.max()))
            grid = self.exact[i] = spread((low, high), dtype)
        return grid is not None and grid.dtype == dtype

    def _has_weights(self, op: Operator) -> bool:
        """Whether the weights have levels without a zero point, with one scale or one per output channel."""
        w = self.model.tensors[op.inputs[1]]
        if w.data is None or (q := w.quantization) is None or any(q.zeros):
            return False
        return len(q.scales) == 1 or q.axis == CHANNEL_AXIS[op.name]

    def grid(self, i: int) -> Grid:
        grid = self._grid_or_none(i)
        assert grid is not None
        return grid

    # --- integer tensors

    def _rounded(self, i: int, grid: Grid | None) -> int:
        """The tensor of a float tensor's levels on a grid."""
        assert grid is not None
        if i in self.as_levels:
            levels = self.as_levels[i]
            return (
                levels
                if self._grid_of(self.model.tensors[levels]) == grid
                else self.add_conversion("QUANTIZE", levels, grid)
            )
        if self._grid_or_none(i) == grid:
            return self.levels(i)
        return self.add_conversion("QUANTIZE", self.float(i), grid)

    def _signed(self, i: int) -> int:
        """The tensor of an integer tensor's levels as i8 or i16."""
        if i not in self.signed:
            t = self.model.tensors[i]
            grid = self._grid_of(t)
            assert grid is not None
            self.signed[i] = i if t.dtype == grid.dtype else self.add_conversion("QUANTIZE", i, grid)
        return self.signed[i]

    def _stored(self, i: int) -> int:
        """The tensor of an integer tensor's levels in its original type."""
        signed = self.signed.get(i, i)
        t, signed_tensor = self.model.tensors[i], self.model.tensors[signed]
        if t.dtype == signed_tensor.dtype:
            return signed
        assert t.quantization is not None
        return self.add_conversion("QUANTIZE", signed, Grid(t.dtype, t.quantization))


def is_one_number(data: np.ndarray) -> bool:
    return data.size > 0 and bool((data == data.reshape(-1)[0]).all())
