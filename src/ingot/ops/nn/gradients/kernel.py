"""The gradient of a convolution with respect to its kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, is_static, mod, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, TensorType, dtype_of
from ingot.ops.build import pad
from ingot.ops.core.base import dilated_size, expect_equal, round_to, window_count
from ingot.ops.core.contraction import Convolution, as_multiplied
from ingot.ops.core.shape import Reshape, Transpose
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class KernelGradient(Op):
    """x[N,*S,I], g[N,*P,O] -> [O,I,*window]: the gradient of a convolution with respect to its kernel.

    result[o, i, k] is the sum over samples n and positions p of x[n, strides p + dilation k, i] * g[n, p, o]. The
    padding of the convolution is already part of x. depthwise: the convolution has one group for each channel of x; the
    result is [O,1,*window], and output channel o reads input channel o // (O / I). dtype: the dtype of the result, by
    default that of the operands. tf32: see `Convolution`.
    """

    name: ClassVar[str] = "kernel_gradient"
    stored_weights: ClassVar[tuple[int, ...]] = (1,)
    stored_values: ClassVar[tuple[int, ...]] = (0,)
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    depthwise: bool = False
    dtype: DType | None = None
    tf32: bool | None = None

    def with_sums(self, dtype: DType) -> Op:
        return replace(self, dtype=dtype)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, g = inputs
        attributes = self.window, self.strides, self.dilation
        for size, count, *v in zip(x.shape[1:-1], g.shape[1:-1], *attributes, strict=True):
            positions = window_count(size, *v)
            for margin in (positions - count, count - positions):
                yield margin, f"expected g at {positions} positions, got {count}"

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 2, f"expected x and g, got {len(inputs)} operands")
        x, g = inputs
        self.expect(x.dtype == g.dtype and x.dtype.is_float, f"expected x and g of one float dtype, got {x} and {g}")
        message = f"expected x[N,*S,I] and g[N,*P,O], got {x} and {g}"
        self.expect(x.rank == g.rank >= 3, message)
        expect_equal(self, x.shape[:1], g.shape[:1], message)
        attributes = self.window, self.strides, self.dilation
        self.expect(
            all(len(v) == x.rank - 2 and min(v) >= 1 for v in attributes),
            f"expected {x.rank - 2} sizes of the window, strides and dilations of 1 or more, got {attributes}",
        )
        positions = tuple(window_count(size, *v) for size, *v in zip(x.shape[1:-1], *attributes, strict=True))
        positions_match = all(p == q or not is_static((p, q)) for p, q in zip(positions, g.shape[1:-1], strict=True))
        self.expect(positions_match, f"expected g at the positions {positions} of x, got {x} and {g}")
        in_channels, out_channels = x.shape[-1], g.shape[-1]
        divides = isinstance(in_channels, int) and in_channels > 0 and mod(out_channels, in_channels) == 0
        self.expect(
            not self.depthwise or divides, f"expected multiples of {in_channels} output channels, got {out_channels}"
        )
        return TensorType(self.dtype or x.dtype, (out_channels, 1 if self.depthwise else in_channels, *self.window))

    def flops(self, *inputs: TensorType) -> DimLike:
        x, g = inputs
        return product((*g.shape, 1 if self.depthwise else x.shape[-1], *self.window)) * 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, g = map(t.as_f64, as_multiplied(self.tf32, *inputs))
        out = np.zeros(self.infer(*(TensorType(dtype_of(v), v.shape) for v in inputs)).shape, g.dtype)
        summed_axes = tuple(range(x.ndim - 1))
        if self.depthwise:
            x = np.repeat(x, g.shape[-1] // x.shape[-1], -1)
        with np.errstate(all="ignore"):
            for tap in np.ndindex(*out.shape[2:]):
                steps = zip(tap, g.shape[1:-1], self.strides, self.dilation, strict=True)
                tap_values = x[(slice(None), *(slice(k * d, k * d + n * s, s) for k, n, s, d in steps))]
                index = (slice(None), slice(None), *tap)
                if self.depthwise:
                    out[index] = (tap_values * g).sum(summed_axes)[:, None]
                else:
                    out[index] = np.tensordot(g, tap_values, (summed_axes, summed_axes))
        return round_to(out, self.dtype or dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        """A convolution with batch and channels swapped.

        Depthwise gradients are one convolution for each sample, in a loop: all samples at once would need a transposed
        copy of the images.
        """
        x, g = inputs
        if not self.depthwise:
            return self._swapped_convolution(x, g)
        batch = x.shape[0]
        if not isinstance(batch, int) or batch <= 1:
            return self._grouped_convolution(x, g)
        total = t.full(self.infer(x.type, g.type).shape, 0.0, self.dtype or x.dtype)

        def sample(index: Term, total: Term, x: Term, g: Term) -> list[Term]:
            one = [m.dynamic_slice(v, 0, index, 1).node for v in (x, g)]
            return [total + t.as_term(self._grouped_convolution(*one))]

        return m.for_loop(batch, [total], sample, (t.as_term(x), t.as_term(g)))[0].node

    def _grouped_convolution(self, x: Node, g: Node) -> Node:
        """A convolution with one group for each channel, whose input channels are the samples."""
        batch, *spatial = x.shape[:-1]
        in_channels = int(x.shape[-1])
        batch_last = Transpose((*range(1, len(x.shape)), 0))(x)
        return self._swapped_convolution(
            Reshape((1, *spatial, in_channels * batch))(batch_last), g, "N", "C", in_channels
        )

    def _swapped_convolution(
        self, x: Node, g: Node, batch_letter: str = "C", channel_letter: str = "N", groups: int = 1
    ) -> Node:
        rank = len(self.window)
        letters, one, none = "DHW"[-rank:] if rank <= 3 else "0123456789"[:rank], (1,) * rank, ((0, 0),) * rank
        # crop positions that no window reaches: they would make the result larger than the window
        sizes = zip(x.shape[1:-1], g.shape[1:-1], self.window, self.strides, self.dilation, strict=True)
        excess = (dilated_size(p, s) + dilated_size(k, d) - 1 - n for n, p, k, s, d in sizes)
        cropped = pad(x, (0,) * (rank + 2), (0, *excess, 0))
        layouts = f"{batch_letter}{letters}{channel_letter}", f"I{letters}O", f"CN{letters}"
        return Convolution(self.dilation, none, one, self.strides, *layouts, groups, dtype=self.dtype, tf32=self.tf32)(
            cropped, g
        )

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(3)

        def pair(x: tuple[int, ...], g: tuple[int, ...], dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
            return rng.normal(size=x).astype(dtype), rng.normal(size=g).astype(dtype)

        def gradient(
            *window: int, strides: tuple[int, ...] = (), dilation: tuple[int, ...] = (), depthwise: bool = False
        ):
            return cls(window, strides or (1,) * len(window), dilation or (1,) * len(window), depthwise)

        yield gradient(3, 3), pair((2, 6, 6, 16), (2, 4, 4, 32))  # tiles of 4 by 4 fit
        yield gradient(3, 3), pair((3, 9, 13, 21), (3, 7, 11, 19))  # nothing does
        yield gradient(3, 3), pair((1, 7, 6, 40), (1, 5, 4, 17), np.float64)
        yield gradient(2, 4), pair((2, 5, 4, 3), (2, 4, 1, 5))
        yield gradient(2), pair((2, 5, 3), (2, 4, 2))
        yield gradient(3, 3), pair((0, 6, 6, 16), (0, 4, 4, 16))
        yield gradient(3, 2, strides=(2, 3), dilation=(1, 2)), pair((2, 8, 10, 3), (2, 3, 3, 5))
        yield gradient(3, 3, depthwise=True), pair((3, 9, 8, 21), (3, 7, 6, 21))
        yield gradient(5, 4, strides=(3, 2), depthwise=True), pair((2, 9, 9, 7), (2, 2, 3, 14))
        yield gradient(7, 7, dilation=(1, 2), depthwise=True), pair((1, 9, 14, 5), (1, 3, 2, 5), np.float64)
        yield gradient(3, strides=(2,), depthwise=True), pair((2, 12, 40), (2, 5, 40))
        yield gradient(2, 2, 2, depthwise=True), pair((2, 4, 3, 4, 6), (2, 3, 2, 3, 6))
        yield gradient(3, 3, depthwise=True), pair((0, 6, 6, 16), (0, 4, 4, 16))


__all__ = ["KernelGradient"]
