"""Convolutions of x[N,C,*S] with any number of spatial dimensions, in the layouts of PyTorch and ONNX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, is_static, mod
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, Shape, TensorType, WeightAxes, dtype_of, f32
from ingot.ops.build import full
from ingot.ops.core.base import Pairs, check_count, dilation_constraints, round_to
from ingot.ops.core.contraction import Convolution, as_multiplied
from ingot.ops.core.shape import Reverse
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

# any letters other than N, C, O and I
_SPATIAL = "XYZUVW"


def layouts(rank: int) -> tuple[str, str]:
    """The layouts (data, kernel) for `rank` spatial dimensions: NCW OIW, NCHW OIHW, NCDHW OIDHW."""
    letters = {1: "W", 2: "HW", 3: "DHW"}.get(rank, _SPATIAL[:rank])
    return "NC" + letters, "OI" + letters


def _check_operands(op: Op, x: TensorType, w: TensorType, spatial: int) -> None:
    op.expect(x.rank == spatial + 2, f"expected x of rank {spatial + 2} (N, C and {spatial} sizes), got {x}")
    op.expect(w.rank == x.rank, f"expected a kernel of rank {x.rank}, got {w}")
    op.expect(x.dtype == w.dtype and x.dtype.kind != "b", f"expected numbers of one dtype, got {x} and {w}")


def _check_positive(op: Op, **values: tuple[int, ...]) -> None:
    for what, value in values.items():
        op.expect(all(v >= 1 for v in value), f"{what}: expected values >= 1, got {value}")


@dataclass(frozen=True)
class Conv(Op):
    """The cross-correlation of x[N,C,*S] and w[O,C/groups,*K] -> [N,O,*S'] (ONNX Conv, torch.nn.Conv2d).

    S' = (S + padding - dilation (K - 1) - 1) // stride + 1. padding: (low, high) for each spatial dimension; negative
    values crop. dtype: the dtype of the result, by default that of x. tf32: see `Convolution`.
    """

    name: ClassVar[str] = "conv"
    strides: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    groups: int = 1
    dtype: DType | None = None
    tf32: bool | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, w = inputs
        spatial = len(self.strides)
        _check_operands(self, x, w, spatial)
        lengths = (len(self.padding), len(self.dilation))
        self.expect(lengths == (spatial, spatial), f"expected {spatial} paddings and dilations, got {lengths}")
        _check_positive(self, strides=self.strides, dilation=self.dilation, groups=(self.groups,))
        self.expect(
            w.shape[1] * self.groups == x.shape[1],
            f"expected a kernel [O, {x.shape[1]} / {self.groups}, ...] for x {x} in {self.groups} groups, got {w}",
        )
        self.expect(mod(w.shape[0], self.groups) == 0, f"expected output channels in {self.groups} groups, got {w}")
        for i, (size, (low, high)) in enumerate(zip(x.shape[2:], self.padding, strict=True)):
            span = (w.shape[2 + i] - 1) * self.dilation[i] + 1
            slack = size + low + high - span
            self.expect(
                not isinstance(slack, int) or slack >= 0, f"spatial axis {i}: kernel {w} exceeds the padded {x}"
            )
        return self._convolution().infer(x, w)

    def _convolution(self) -> Convolution:
        data, kernel = layouts(len(self.strides))
        ones = (1,) * len(self.strides)
        spatial = (self.strides, self.padding, ones, self.dilation)
        return Convolution(*spatial, data, kernel, data, self.groups, dtype=self.dtype, tf32=self.tf32)

    def weight_axes(self, *inputs: TensorType) -> WeightAxes | None:
        return WeightAxes(0, 1, (1, 1), self.groups)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, w = inputs
        return round_to(
            replace(self._convolution(), dtype=None).reference(*map(t.as_f64, as_multiplied(self.tf32, x, w))),
            self.dtype or dtype_of(x),
        )

    def lower(self, *inputs: Node) -> Node:
        return self._convolution()(*inputs)

    @classmethod
    def samples(cls) -> Samples:
        two, none = (1, 1), ((0, 0), (0, 0))
        yield cls((2, 1), ((1, 1), (0, 2)), two), _data((2, 3, 7, 5), (4, 3, 3, 2))
        yield cls(two, ((2, 0), (0, 1)), (2, 3), 2), _data((1, 4, 7, 9), (6, 2, 3, 2))
        yield cls((2, 2), ((1, 1), (1, 1)), two, 5), _data((2, 5, 9, 8), (5, 1, 3, 3))
        yield cls(two, none, two), _data((1, 8, 3, 3), (16, 8, 1, 1))
        yield cls((2,), ((1, 1),), (1,)), _data((2, 3, 8), (5, 3, 3))
        yield cls((1, 2, 1), ((1, 1), (0, 0), (1, 0)), (1, 1, 2)), _data((1, 2, 4, 5, 6), (3, 2, 3, 2, 2))
        yield cls(two, none, two), _data((0, 2, 4, 4), (3, 2, 3, 3))
        yield cls((1,), ((1, 1),), (1,)), _data((2, 3, 8), (4, 3, 3), np.float16)
        yield cls((1,), ((1, 1),), (1,)), _data((2, 3, 8), (4, 3, 3), np.int32)
        yield cls((1,), ((1, 1),), (1,)), _data((2, 3, 8), (4, 3, 3), np.float64)
        yield cls((1,), ((1, 1),), (1,), dtype=f32), _data((2, 3, 8), (4, 3, 3), np.float16)


@dataclass(frozen=True)
class ConvTranspose(Op):
    """The transposed convolution of x[N,C,*S] and w[C,O/groups,*K] -> [N,O,*S'] (ONNX ConvTranspose).

    S' = (S - 1) stride - padding + dilation (K - 1) + output_padding + 1. It is the gradient of Conv with respect to
    its input: each element of x adds a scaled kernel to the result, which is then cropped by `padding`. dtype: the
    dtype of the result, by default that of x. tf32: see `Convolution`.
    """

    name: ClassVar[str] = "conv_transpose"
    strides: tuple[int, ...]
    padding: Pairs
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    dtype: DType | None = None
    tf32: bool | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, w = inputs
        spatial = len(self.strides)
        _check_operands(self, x, w, spatial)
        lengths = (len(self.padding), len(self.output_padding), len(self.dilation))
        self.expect(
            lengths == (spatial,) * 3,
            f"expected {spatial} paddings, output paddings and dilations, got {lengths}",
        )
        _check_positive(self, strides=self.strides, dilation=self.dilation, groups=(self.groups,))
        self.expect(
            x.shape[1] == w.shape[0] and mod(x.shape[1], self.groups) == 0,
            f"expected a kernel [{x.shape[1]}, O / {self.groups}, ...] for x {x} in {self.groups} groups, got {w}",
        )
        self.expect(is_static(w.shape[2:]), f"expected a kernel of static sizes, got {w}")
        out: list[DimLike] = [x.shape[0], w.shape[1] * self.groups]
        for i, size in enumerate(x.shape[2:]):
            span = (w.shape[2 + i] - 1) * self.dilation[i] + 1
            extent = (size - 1) * self.strides[i] - sum(self.padding[i]) + span + self.output_padding[i]
            self.expect(
                not isinstance(extent, int) or extent >= 0, f"spatial axis {i}: padding exceeds the result of {x}"
            )
            out.append(extent)
        return TensorType(self.dtype or x.dtype, tuple(out))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return dilation_constraints(inputs[0].shape[2:], self.strides)

    def _convolution(self, w: Shape) -> Convolution:
        """The convolution of x, dilated by the stride, with the flipped kernel."""
        data, kernel = layouts(len(self.strides))
        padding = []
        for i, (low, high) in enumerate(self.padding):
            span = (w[2 + i] - 1) * self.dilation[i]
            padding.append((span - low, span - high + self.output_padding[i]))
        ones = (1,) * len(self.strides)
        spatial = (ones, tuple(padding), self.strides, self.dilation)
        return Convolution(*spatial, data, kernel, data, self.groups, dtype=self.dtype, tf32=self.tf32)

    def weight_axes(self, *inputs: TensorType) -> WeightAxes | None:
        return WeightAxes(1, 1, (1, 0)) if self.groups == 1 else None

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, w = map(t.as_f64, as_multiplied(self.tf32, *inputs))
        n, c, *sizes = x.shape
        group_outputs, kernel = w.shape[1], w.shape[2:]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilation, strict=True)]
        full_sizes = [
            max(0, (s - 1) * st + span + op)
            for s, st, span, op in zip(sizes, self.strides, spans, self.output_padding, strict=True)
        ]
        y = np.zeros((n, group_outputs * self.groups, *full_sizes), np.result_type(x, w))
        xs = x.reshape(n, self.groups, c // self.groups, *sizes)
        ws = w.reshape(self.groups, c // self.groups, group_outputs, *kernel)
        for tap in np.ndindex(*kernel):
            products = np.einsum("ngc...,gco->ngo...", xs, ws[(..., *tap)])
            slices = tuple(
                slice(k * d, k * d + (s - 1) * st + 1, st) if s else slice(0, 0)
                for k, d, s, st in zip(tap, self.dilation, sizes, self.strides, strict=True)
            )
            y[(slice(None), slice(None), *slices)] += products.reshape(n, group_outputs * self.groups, *sizes)
        # padding crops; negative padding extends
        low = [max(0, p) for p, _ in self.padding]
        high = [r - max(0, p) for r, (_, p) in zip(full_sizes, self.padding, strict=True)]
        y = y[(slice(None), slice(None), *(slice(a, b) for a, b in zip(low, high, strict=True)))]
        added_padding = [(max(0, -p), max(0, -q)) for p, q in self.padding]
        return round_to(np.pad(y, [(0, 0), (0, 0), *added_padding]), self.dtype or dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x, w = inputs
        if 0 in x.shape[2:]:  # x has no elements to dilate
            return full(self.infer(x.type, w.type).shape, 0, self.dtype or x.dtype)
        spatial = len(self.strides)
        core = self._convolution(w.shape)
        kernel = Term(w).map(Reverse(tuple(range(2, 2 + spatial))))
        c, group_outputs, *sizes = w.shape
        grouped = kernel.reshape((self.groups, c // self.groups, group_outputs, *sizes))
        swapped = grouped.transpose((0, 2, 1, *range(3, 3 + spatial)))
        return core(x, swapped.reshape((self.groups * group_outputs, c // self.groups, *sizes)).node)

    @classmethod
    def samples(cls) -> Samples:
        two, no, zero = (1, 1), ((0, 0), (0, 0)), (0, 0)
        yield cls((2, 2), no, zero, two), _data((2, 4, 3, 5), (4, 3, 2, 2))
        yield cls((2, 3), ((1, 0), (2, 1)), (1, 2), (2, 1), 2), _data((1, 4, 4, 3), (4, 3, 3, 2))
        yield cls(two, ((2, 2), (1, 1)), zero, two), _data((1, 2, 5, 5), (2, 3, 3, 3))
        yield cls((3,), ((4, 3),), (0,), (1,)), _data((2, 3, 6), (3, 2, 3))
        yield cls((2,), ((-1, -2),), (0,), (1,)), _data((1, 2, 4), (2, 2, 3))
        yield cls((2, 1, 2), ((1, 1), (0, 0), (0, 1)), (1, 0, 0), (1, 1, 1)), _data((1, 2, 3, 2, 3), (2, 2, 3, 2, 2))
        yield cls((2,), ((1, 1),), (0,), (1,), 3), _data((2, 3, 4), (3, 1, 4), np.float16)
        yield cls((2,), ((1, 1),), (0,), (1,), dtype=f32), _data((2, 3, 4), (3, 1, 4), np.float16)
        yield cls((2,), ((0, 0),), (0,), (1,)), _data((0, 3, 4), (3, 2, 2))
        yield cls((2,), ((0, 0),), (0,), (1,)), _data((1, 3, 0), (3, 2, 4))


def _data(x: tuple[int, ...], w: tuple[int, ...], dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(sum(x))
    a, b = (rng.integers(-32, 33, shape) for shape in (x, w))
    scale = 1 if np.issubdtype(dtype, np.integer) else 16
    return (a / scale).astype(dtype), (b / scale).astype(dtype)
