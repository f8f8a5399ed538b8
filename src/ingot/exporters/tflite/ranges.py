"""Quantization by the ranges of values over samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ingot.exporters.tflite.levels import JOINED, SAME_SCALE, Conversion, Grid, fixed_grid
from ingot.exporters.tflite.records import Model, Operator, Tensor

Range = tuple[float, float]
_MAX_MAGNITUDE = 1e30  # larger values, such as those of masks, do not widen a range


def to_levels(model: Model, ranges: Mapping[int, Range], float_edges: bool = False, dtype: str = "i8") -> None:
    """Quantize `model` in place. ranges: of the values of all float tensors with a node, by number. float_edges: keep
    the model's inputs and outputs in floats. dtype: of the levels, "i8" or "i16"."""
    _ByRange(model, ranges, dtype).run(float_edges)
    model.compact()


def measured(model: Model) -> Sequence[int]:
    """The numbers of the float tensors whose ranges `to_levels` needs."""
    return [i for i, t in enumerate(model.tensors) if t.dtype == "f32" and t.node is not None and t.data is None]


class _ByRange(Conversion):
    """parent: a union-find forest of the tensors; each set has one scale."""

    def __init__(self, model: Model, ranges: Mapping[int, Range], dtype: str) -> None:
        super().__init__(model)
        self.ranges, self.dtype = ranges, dtype
        self.parent = list(range(len(model.tensors)))

    def run(self, float_edges: bool) -> None:
        model = self.model
        for op in model.operators:
            if self.is_of_levels(op) and op.name in SAME_SCALE:
                for i in op.inputs if op.name in JOINED else op.inputs[:1]:
                    if self._fixed(i) is None or op.name not in JOINED:
                        self._unite(i, op.outputs[0])
        self.grids = self._grids()
        float_operators, model.operators = model.operators, self.operators
        for position, i in enumerate(model.inputs):
            if model.tensors[i].dtype == "f32" and not float_edges:
                t, grid = model.tensors[i], self.grid(i)
                number = model.add(Tensor(t.name, grid.dtype, t.shape, None, grid.quantization))
                self.as_levels[i] = model.inputs[position] = number
        for op in float_operators:
            self.convert(op)
        for position, i in enumerate(model.outputs):
            if model.tensors[i].dtype == "f32":
                model.outputs[position] = self.float(i) if float_edges else self.levels(i)
                model.tensors[model.outputs[position]].name = model.output_names[position]

    def is_of_levels(self, op: Operator) -> bool:
        return self.has_kernel(op, self.dtype)

    def grid(self, i: int) -> Grid:
        return self.grids.get(self._root(i), Grid.of(self.dtype, 1.0, 0))

    def _fixed(self, i: int) -> Grid | None:
        return fixed_grid(self.makers[i], self.dtype) if i in self.makers else None

    def _root(self, i: int) -> int:
        while self.parent[i] != i:
            i = self.parent[i]
        return i

    def _unite(self, a: int, b: int) -> None:
        self.parent[self._root(a)] = self._root(b)

    def _grids(self) -> dict[int, Grid]:
        """The grid of each set of tensors with one scale: by the union of their ranges, or fixed by an operator."""
        ranges: dict[int, Range] = {}
        fixed: dict[int, Grid] = {}
        for i, t in enumerate(self.model.tensors):
            if t.dtype != "f32":
                continue
            root = self._root(i)
            if (grid := self._fixed(i)) is not None:
                fixed.setdefault(root, grid)
            range_ = self.ranges.get(i)
            if t.data is not None and t.data.size:
                range_ = float(t.data.min()), float(t.data.max())
            if range_ is not None and not np.isnan(range_).any():
                low, high = ranges.get(root, (0.0, 0.0))
                ranges[root] = min(low, range_[0]), max(high, range_[1])
        return {root: spread(range_, self.dtype) for root, range_ in ranges.items()} | fixed


def spread(range_: Range, dtype: str) -> Grid:
    """A grid over a range that contains 0: 255 steps of i8, or 65,534 of i16 around 0."""
    low, high = (max(min(end, _MAX_MAGNITUDE), -_MAX_MAGNITUDE) for end in range_)
    if dtype == "i16":
        return Grid.of(dtype, float(np.float32(max(-low, high) / 32767)) or 1.0, 0)
    scale = float(np.float32((high - low) / 255)) or 1.0
    return Grid.of(dtype, scale, int(np.clip(round(-128 - low / scale), -128, 127)))
