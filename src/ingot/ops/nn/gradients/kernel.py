"""The gradient of a convolution's kernel, as an op of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, TensorType, dtype_of
from ingot.ops.core.base import finish
from ingot.ops.core.contraction import Convolution
from ingot.ops.nn import terms as t
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class KernelGradient(Op):
    """x[N,*S,I], g[N,*P,O] -> [O,I,*K]: the sum over images n and places p of x[n, p + k, i] g[n, p, o], K = S - P + 1.

    That is what a kernel's gradient is where a convolution has stride 1 and its padding is a part of x. dtype: of the
    result; by default the operands'.
    """

    name: ClassVar[str] = "kernel_gradient"
    stored_weights: ClassVar[tuple[int, ...]] = (1,)
    stored_values: ClassVar[tuple[int, ...]] = (0,)
    dtype: DType | None = None

    def with_sums(self, dtype: DType) -> Op:
        return replace(self, dtype=dtype)

    @staticmethod
    def window(x: Sequence[DimLike], g: Sequence[DimLike]) -> tuple[DimLike, ...]:
        return tuple(a - b + 1 for a, b in zip(x[1:-1], g[1:-1], strict=True))

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) == 2, f"expected x and g, got {len(inputs)} operands")
        x, g = inputs
        self.expect(x.dtype == g.dtype and x.dtype.is_float, f"expected x and g of one float dtype, got {x} and {g}")
        fits = x.rank == g.rank >= 3 and x.shape[0] == g.shape[0]
        self.expect(fits, f"expected x[N,*S,I] and g[N,*P,O], got {x} and {g}")
        window = self.window(x.shape, g.shape)
        self.expect(
            all(isinstance(k, int) and k >= 1 for k in window), f"expected S - P + 1 of 1 or more, got {window}"
        )
        return TensorType(self.dtype or x.dtype, (g.shape[-1], x.shape[-1], *window))

    def flops(self, *inputs: TensorType) -> DimLike:
        x, g = inputs
        return product((*g.shape, x.shape[-1], *self.window(x.shape, g.shape))) * 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, g = (t.exact(v) for v in inputs)
        out = np.zeros(self.infer(*(TensorType(dtype_of(v), v.shape) for v in inputs)).shape, g.dtype)
        places = tuple(range(x.ndim - 1))
        with np.errstate(all="ignore"):
            for tap in np.ndindex(*out.shape[2:]):
                seen = x[(slice(None), *(slice(k, k + n) for k, n in zip(tap, g.shape[1:-1], strict=True)))]
                out[(slice(None), slice(None), *tap)] = np.tensordot(g, seen, (places, places))
        return finish(out, self.dtype or dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        """A convolution in which batch and channels change places."""
        rank = len(inputs[0].shape) - 2
        letters, one, none = "DHW"[-rank:] if rank <= 3 else "0123456789"[:rank], (1,) * rank, ((0, 0),) * rank
        layouts = f"C{letters}N", f"I{letters}O", f"CN{letters}"
        return Convolution(one, none, one, one, *layouts, dtype=self.dtype)(*inputs)

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(3)

        def pair(x: tuple[int, ...], g: tuple[int, ...], dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
            return rng.normal(size=x).astype(dtype), rng.normal(size=g).astype(dtype)

        yield cls(), pair((2, 6, 6, 16), (2, 4, 4, 32))  # tiles of 4 by 4 fit
        yield cls(), pair((3, 9, 13, 21), (3, 7, 11, 19))  # nothing does
        yield cls(), pair((1, 7, 6, 40), (1, 5, 4, 17), np.float64)
        yield cls(), pair((2, 5, 4, 3), (2, 4, 1, 5))
        yield cls(), pair((2, 5, 3), (2, 4, 2))
        yield cls(), pair((0, 6, 6, 16), (0, 4, 4, 16))


__all__ = ["KernelGradient"]
