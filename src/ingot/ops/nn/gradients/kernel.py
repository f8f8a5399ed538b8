"""The gradient of a convolution's kernel, as an op of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, is_static, mod, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, TensorType, dtype_of
from ingot.ops.build import pad
from ingot.ops.core.base import dilated, extent, round_to
from ingot.ops.core.contraction import Convolution
from ingot.ops.core.shape import Reshape, Transpose
from ingot.ops.linalg import matrices as m
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class KernelGradient(Op):
    """x[N,*S,I], g[N,*P,O] -> [O,I,*window]: the sum over images n and places p of x[n, strides p + dilation k, i]
    g[n, p, o]. That is the gradient of a convolution's kernel, where its padding is a part of x.

    depthwise: the convolution has a group for each channel of x, and the result is [O,1,*window]: output channel o has
    read input channel o / (O / I). dtype: of the result; by default the operands'.
    """

    name: ClassVar[str] = "kernel_gradient"
    stored_weights: ClassVar[tuple[int, ...]] = (1,)
    stored_values: ClassVar[tuple[int, ...]] = (0,)
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    depthwise: bool = False
    dtype: DType | None = None

    def with_sums(self, dtype: DType) -> Op:
        return replace(self, dtype=dtype)

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 2, f"expected x and g, got {len(inputs)} operands")
        x, g = inputs
        self.expect(x.dtype == g.dtype and x.dtype.is_float, f"expected x and g of one float dtype, got {x} and {g}")
        fits = x.rank == g.rank >= 3 and x.shape[0] == g.shape[0]
        self.expect(fits, f"expected x[N,*S,I] and g[N,*P,O], got {x} and {g}")
        steps = self.window, self.strides, self.dilation
        self.expect(
            all(len(v) == x.rank - 2 and min(v) >= 1 for v in steps),
            f"expected {x.rank - 2} sizes of the window, strides and dilations of 1 or more, got {steps}",
        )
        places = tuple(extent(size, *v) for size, *v in zip(x.shape[1:-1], *steps, strict=True))
        same = all(p == q or not is_static((p, q)) for p, q in zip(places, g.shape[1:-1], strict=True))
        self.expect(same, f"expected g at the places {places} of x, got {x} and {g}")
        ins, outs = x.shape[-1], g.shape[-1]
        whole = isinstance(ins, int) and ins > 0 and mod(outs, ins) == 0
        self.expect(not self.depthwise or whole, f"expected multiples of {ins} output channels, got {outs}")
        return TensorType(self.dtype or x.dtype, (outs, 1 if self.depthwise else ins, *self.window))

    def flops(self, *inputs: TensorType) -> DimLike:
        x, g = inputs
        return product((*g.shape, 1 if self.depthwise else x.shape[-1], *self.window)) * 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, g = (t.exact(v) for v in inputs)
        out = np.zeros(self.infer(*(TensorType(dtype_of(v), v.shape) for v in inputs)).shape, g.dtype)
        places = tuple(range(x.ndim - 1))
        if self.depthwise:
            x = np.repeat(x, g.shape[-1] // x.shape[-1], -1)
        with np.errstate(all="ignore"):
            for tap in np.ndindex(*out.shape[2:]):
                steps = zip(tap, g.shape[1:-1], self.strides, self.dilation, strict=True)
                seen = x[(slice(None), *(slice(k * d, k * d + n * s, s) for k, n, s, d in steps))]
                here = (slice(None), slice(None), *tap)
                if self.depthwise:
                    out[here] = (seen * g).sum(places)[:, None]
                else:
                    out[here] = np.tensordot(g, seen, (places, places))
        return round_to(out, self.dtype or dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        """A convolution in which batch and channels change places; of depthwise kernels one for each sample, as the
        samples of a channel would be channels beside each other, and the images copied for that."""
        x, g = inputs
        if not self.depthwise:
            return self._exchanged(x, g)
        batch = x.shape[0]
        if not isinstance(batch, int) or batch <= 1:
            return self._of_groups(x, g)
        total = t.full(self.infer(x.type, g.type).shape, 0.0, self.dtype or x.dtype)

        def sample(turn: Term, so_far: Term, x: Term, g: Term) -> list[Term]:
            one = [m.cut(v, 0, turn, 1).node for v in (x, g)]
            return [so_far + t.as_term(self._of_groups(*one))]

        return m.repeat(batch, [total], sample, (t.as_term(x), t.as_term(g)))[0].node

    def _of_groups(self, x: Node, g: Node) -> Node:
        """Samples are the input channels of a group."""
        batch, *places = x.shape[:-1]
        ins = int(x.shape[-1])
        turned = Transpose((*range(1, len(x.shape)), 0))(x)
        return self._exchanged(Reshape((1, *places, ins * batch))(turned), g, "N", "C", ins)

    def _exchanged(self, x: Node, g: Node, first: str = "C", last: str = "N", groups: int = 1) -> Node:
        rank = len(self.window)
        letters, one, none = "DHW"[-rank:] if rank <= 3 else "0123456789"[:rank], (1,) * rank, ((0, 0),) * rank
        # places that no window reaches would give more than the window has
        sizes = zip(x.shape[1:-1], g.shape[1:-1], self.window, self.strides, self.dilation, strict=True)
        more = (dilated(p, s) + dilated(k, d) - 1 - n for n, p, k, s, d in sizes)
        seen = pad(x, (0,) * (rank + 2), (0, *more, 0))
        layouts = f"{first}{letters}{last}", f"I{letters}O", f"CN{letters}"
        return Convolution(self.dilation, none, one, self.strides, *layouts, groups, dtype=self.dtype)(seen, g)

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(3)

        def pair(x: tuple[int, ...], g: tuple[int, ...], dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
            return rng.normal(size=x).astype(dtype), rng.normal(size=g).astype(dtype)

        def of(*window: int, strides: tuple[int, ...] = (), dilation: tuple[int, ...] = (), depthwise: bool = False):
            return cls(window, strides or (1,) * len(window), dilation or (1,) * len(window), depthwise)

        yield of(3, 3), pair((2, 6, 6, 16), (2, 4, 4, 32))  # tiles of 4 by 4 fit
        yield of(3, 3), pair((3, 9, 13, 21), (3, 7, 11, 19))  # nothing does
        yield of(3, 3), pair((1, 7, 6, 40), (1, 5, 4, 17), np.float64)
        yield of(2, 4), pair((2, 5, 4, 3), (2, 4, 1, 5))
        yield of(2), pair((2, 5, 3), (2, 4, 2))
        yield of(3, 3), pair((0, 6, 6, 16), (0, 4, 4, 16))
        yield of(3, 2, strides=(2, 3), dilation=(1, 2)), pair((2, 8, 10, 3), (2, 3, 3, 5))
        yield of(3, 3, depthwise=True), pair((3, 9, 8, 21), (3, 7, 6, 21))
        yield of(5, 4, strides=(3, 2), depthwise=True), pair((2, 9, 9, 7), (2, 2, 3, 14))
        yield of(7, 7, dilation=(1, 2), depthwise=True), pair((1, 9, 14, 5), (1, 3, 2, 5), np.float64)
        yield of(3, strides=(2,), depthwise=True), pair((2, 12, 40), (2, 5, 40))
        yield of(2, 2, 2, depthwise=True), pair((2, 4, 3, 4, 6), (2, 3, 2, 3, 6))
        yield of(3, 3, depthwise=True), pair((0, 6, 6, 16), (0, 4, 4, 16))


__all__ = ["KernelGradient"]
