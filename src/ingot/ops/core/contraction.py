"""Sums of products: dot_general and convolution, with StableHLO's dimension numbers.

Sums of signs. Words (u32) hold 32 numbers that are 1 or -1, a bit that is set for -1. Such a number times another is -1
where their bits differ, so a sum of K products is K - 2 * (the number of bits that differ). `of_signs` contractions
compute that number in i32 (Courbariaux et al. 2016, "Binarized Neural Networks"; Rastegari et al. 2016, "XNOR-Net").

TF32. Tensor cores of NVIDIA GPUs multiply f32 whose fractions are cut to 10 of 23 bits (NVIDIA A100 whitepaper, 2020),
and add in f32. `tf32` tells whether that suffices: True, False for multiply-adds of f32, None where the option
`precision` decides (`passes.core.dtypes.precision`), by default for errors of at most such multiply-adds, which tensor
cores reach by BF16x6 (`schedule.gpu.contraction.limbs`). It has a meaning for operands of f32 alone; machines without
such products use all bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import ClassVar

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ingot.ir.dims import Dim, DimLike, is_negative, mod, product
from ingot.ir.kernel.arithmetic import to_tf32
from ingot.ir.node import Cropped, Node, Op, Samples
from ingot.ir.types import Box, DType, TensorType, WeightAxes, dtype_of, f32, i32, u32
from ingot.ops.core.base import (
    Category,
    CoreOp,
    Pairs,
    check_count,
    check_dims,
    dilated_size,
    dilation_constraints,
    expect_equal,
    is_full_box,
    round_to,
    widen,
    window_count,
)
from ingot.ops.core.shape import pad_array
from ingot.support.dataclass import dataclass

AxisPairs = tuple[tuple[int, ...], tuple[int, ...]]


def _result_dtype(op: Op, a: TensorType, b: TensorType, dtype: DType | None) -> DType:
    """The dtype of the result: `dtype`, by default that of the operands.

    With a given `dtype`, operands may be different dtypes of one kind, and products of 8-bit operands may be summed in
    floats.
    """
    if op.of_signs:  # type: ignore[attr-defined]
        types = (a.dtype, b.dtype, dtype)
        op.expect(types == (u32, u32, i32), f"of signs: expected u32, u32 and sums in i32, got {types}")
    same_kind = (a.dtype.is_integer and b.dtype.is_integer) or (a.dtype.is_float and b.dtype.is_float)
    op.expect(
        a.dtype == b.dtype or (same_kind and dtype is not None),
        f"expected operands of one dtype (or of one kind and a result dtype), got {a.dtype} and {b.dtype}",
    )
    op.expect(a.dtype.kind != "b", "expected number operands, got bool")
    result = dtype or a.dtype
    bytes_in_floats = result.is_float and max(a.dtype.bits, b.dtype.bits) <= 8
    is_allowed = result.is_float == a.dtype.is_float or bytes_in_floats
    op.expect(is_allowed, f"dtype: expected the kind of the operands {a.dtype}, got {result}")
    return result


def as_multiplied(tf32: bool | None, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
    """The operands as a product with this `tf32` reads them (see module)."""
    return tuple(map(to_tf32, operands)) if tf32 and all(x.dtype == np.float32 for x in operands) else operands


def _widen_operands(a: np.ndarray, b: np.ndarray, out: DType) -> tuple[np.ndarray, np.ndarray]:
    """The operands in a dtype for numpy's product: f32 or f64 for BLAS; small integers as f64, which is exact."""
    a, b = widen(a), widen(b)
    if a.dtype.kind == "f":
        wide = np.result_type(a, b, np.float64 if out.bits == 64 else np.float32)
        return a.astype(wide, copy=False), b.astype(wide, copy=False)
    # |a*b| < 2^32, so sums of fewer than 2^20 products are exact in f64
    fits_f64 = max(a.dtype.itemsize, b.dtype.itemsize) <= 2 and max(a.size, b.size) < 1 << 20
    wide = np.float64 if fits_f64 else np.int64
    return a.astype(wide), b.astype(wide)


def _signs(words: np.ndarray, axis: int) -> np.ndarray:
    """The signs of u32 along `axis`, 32 for each: 1.0 or -1.0."""
    bits = np.unpackbits(np.ascontiguousarray(np.moveaxis(words, axis, -1)).view(np.uint8), axis=-1, bitorder="little")
    return np.moveaxis(1 - 2 * bits.astype(np.float32), -1, axis)


def _differences(sums: np.ndarray, bits: int) -> np.ndarray:
    """Of how many pairs of `bits` the product is -1."""
    return (bits - sums) / 2


def _round(y: np.ndarray, out: DType) -> np.ndarray:
    return round_to(y.astype(np.int64) if out.is_integer else y, out)


@dataclass(frozen=True)
class DotGeneral(CoreOp):
    """The sum over the `contract` axes of lhs * rhs, for each index of the `batch` axes (StableHLO dot_general).

    Result dimensions: batch, free axes of lhs, free axes of rhs. batch, contract: (lhs axes, rhs axes), paired in
    order. dtype: the dtype of the result (i8 x i8 -> i32, bf16 x bf16 -> f32, f32 x f16 -> f32), by default that of the
    operands. f16 and bf16 accumulate in f32. of_signs: see module; there is at least one contracted axis. tf32: see
    module.
    """

    name: ClassVar[str] = "dot_general"
    takes_epilogue: ClassVar[bool] = True
    category: ClassVar[Category] = Category.CONTRACTION
    stored_weights: ClassVar[tuple[int, ...]] = (1,)
    stored_values: ClassVar[tuple[int, ...]] = (0,)
    batch: AxisPairs = ((), ())
    contract: AxisPairs = ((), ())
    dtype: DType | None = None
    of_signs: bool = False
    tf32: bool | None = None

    def free(self, rank_a: int, rank_b: int) -> AxisPairs:
        """The axes of lhs and of rhs that are neither batch nor contracted, ascending."""
        used_a, used_b = (*self.batch[0], *self.contract[0]), (*self.batch[1], *self.contract[1])
        return (
            tuple(d for d in range(rank_a) if d not in used_a),
            tuple(d for d in range(rank_b) if d not in used_b),
        )

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        boxes: list[Box | None] = []
        batch, remaining = len(self.batch[0]), box[len(self.batch[0]) :]
        free = self.free(inputs[0].rank, inputs[1].rank)
        for x, batch_axes, axes in zip(inputs, self.batch, free, strict=True):
            free_box, remaining = remaining[: len(axes)], remaining[len(axes) :]
            ranges = dict(zip((*batch_axes, *axes), (*box[:batch], *free_box), strict=True))
            boxes.append(tuple(ranges.get(d, (0, size)) for d, size in enumerate(x.shape)))
        return self, tuple(boxes)

    def weight_axes(self, *inputs: TensorType) -> WeightAxes | None:
        x, w = inputs
        _, free = self.free(x.rank, w.rank)
        if any(self.batch) or len(free) != 1 or len(self.contract[0]) != 1:
            return None
        return WeightAxes(free[0], x.rank - 1, (self.contract[0][0], self.contract[1][0]), plain=True)

    def with_sums(self, dtype: DType) -> Op:
        return replace(self, dtype=dtype)

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        a, b = inputs
        self.expect(bool(self.contract[0]) or not self.of_signs, "of signs: expected a contracted axis")
        check_dims(self, (*self.batch[0], *self.contract[0]), a.rank, "lhs dims")
        check_dims(self, (*self.batch[1], *self.contract[1]), b.rank, "rhs dims")
        for what, (da, db) in (("batch", self.batch), ("contract", self.contract)):
            self.expect(len(da) == len(db), f"{what}: expected as many lhs as rhs axes, got {da} and {db}")
            for i, j in zip(da, db, strict=True):
                self.expect(
                    a.shape[i] == b.shape[j],
                    f"{what}: expected axis {i} of {a} to equal axis {j} of {b}, got {a.shape[i]} and {b.shape[j]}",
                    (a.shape[i], b.shape[j]),
                )
        free_a, free_b = self.free(a.rank, b.rank)
        shape = (
            *(a.shape[d] for d in self.batch[0]),
            *(a.shape[d] for d in free_a),
            *(b.shape[d] for d in free_b),
        )
        return TensorType(_result_dtype(self, a, b, self.dtype), shape)

    def flops(self, *inputs: TensorType) -> DimLike:
        depth = product(inputs[0].shape[d] for d in self.contract[0])
        return self.infer(*inputs).size * depth * 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        types = tuple(TensorType(dtype_of(x), x.shape) for x in inputs)
        out = self.infer(*types)
        lhs, rhs = as_multiplied(self.tf32, *inputs)
        if self.of_signs:
            lhs, rhs = (_signs(x, dims[0]) for x, dims in zip(inputs, self.contract, strict=True))
        a, b = _widen_operands(lhs, rhs, out.dtype)
        free_a, free_b = self.free(a.ndim, b.ndim)
        batch = [a.shape[d] for d in self.batch[0]]
        depth = int(np.prod([a.shape[d] for d in self.contract[0]]))
        rows, cols = (int(np.prod([x.shape[d] for d in free])) for x, free in ((a, free_a), (b, free_b)))
        a = a.transpose(*self.batch[0], *free_a, *self.contract[0]).reshape(*batch, rows, depth)
        b = b.transpose(*self.batch[1], *self.contract[1], *free_b).reshape(*batch, depth, cols)
        with np.errstate(all="ignore"):
            sums = (a @ b).reshape(tuple(int(d) for d in out.shape))
        return _round(_differences(sums, depth) if self.of_signs else sums, out.dtype)

    @classmethod
    def samples(cls) -> Samples:
        yield cls(contract=((1,), (0,))), (_data(3, 5), _data(5, 2))
        yield cls(((0,), (1,)), ((2,), (0,))), (_data(2, 3, 5), _data(5, 2, 4))
        yield cls(contract=((0, 2), (1, 0))), (_data(3, 2, 4), _data(4, 3))
        yield cls(), (_data(3), _data(2, 2))
        yield cls(contract=((1,), (0,))), (_data(3, 0), _data(0, 2))
        yield cls(contract=((0,), (0,)), dtype=i32), (_data(7, 2, dtype=np.int8), _data(7, 3, dtype=np.int8))
        yield cls(contract=((0,), (0,)), dtype=i32), (_data(7, 2, dtype=np.uint8), _data(7, 3, dtype=np.int8))
        yield cls(contract=((0,), (0,))), (_data(7, dtype=np.int64), _data(7, dtype=np.int64))
        for wide in (np.uint64, np.int64, np.uint32):  # products that need all bits
            yield cls(contract=((1,), (0,))), (_data(5, 7, dtype=wide) << 16, _data(7, 19, dtype=wide) << 16)
        yield cls(contract=((1,), (1,))), (_data(3, 33, dtype=np.float16), _data(4, 33, dtype=np.float16))
        bf16 = ml_dtypes.bfloat16
        yield cls(contract=((1,), (0,)), dtype=f32), (_data(3, 33, dtype=bf16), _data(33, 20, dtype=bf16))
        yield cls(contract=((1,), (1,)), dtype=f32), (_data(3, 33), _data(4, 33, dtype=np.float16))
        yield cls(contract=((1,), (0,)), tf32=True), (_data(3, 33), _data(33, 20))
        yield cls(contract=((1,), (0,)), dtype=i32, of_signs=True), (_words(3, 5), _words(5, 19))
        yield cls(((0,), (0,)), ((2, 1), (1, 2)), i32, of_signs=True), (_words(2, 3, 2, 4), _words(2, 2, 3, 5))


def _words(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 1 << 32, shape, dtype=np.uint32)


def _data(*shape: int, dtype: type = np.float32) -> np.ndarray:
    values = np.random.default_rng(sum(shape)).integers(-99, 99, shape)
    return (values if np.issubdtype(dtype, np.integer) else values / 16).astype(dtype)


@dataclass(frozen=True)
class Convolution(CoreOp):
    """The cross-correlation of lhs and rhs (StableHLO convolution).

    Layouts name each axis by a letter: N, C and spatial letters for lhs and the result, O, I and the same spatial
    letters for rhs, such as "NCHW" and "OIHW". Spatial attributes are in the order of the letters in lhs_layout.

    feature_groups: splits C (I of rhs = C / groups); batch_groups: splits N. dtype: the dtype of the result, by default
    that of the operands. zeros: (low, high) for each spatial axis, how many positions of lhs at its ends are known to
    be zeros because padding was folded into lhs; () for none. of_signs: see module; padding adds words of 0. tf32: see
    module.
    """

    name: ClassVar[str] = "convolution"
    takes_epilogue: ClassVar[bool] = True
    category: ClassVar[Category] = Category.CONTRACTION
    stored_weights: ClassVar[tuple[int, ...]] = (1,)
    stored_values: ClassVar[tuple[int, ...]] = (0,)
    strides: tuple[int, ...]
    padding: Pairs
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    lhs_layout: str
    rhs_layout: str
    out_layout: str
    feature_groups: int = 1
    batch_groups: int = 1
    dtype: DType | None = None
    zeros: Pairs = ()
    of_signs: bool = False
    tf32: bool | None = None

    @property
    def spatial(self) -> str:
        """The spatial letters, in the order of the spatial attributes."""
        return "".join(c for c in self.lhs_layout if c not in "NC")

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        """The result may be cropped along images and output channels, not along spatial axes."""
        x, w = inputs
        ranges, shape = dict(zip(self.out_layout, box, strict=True)), self.infer(*inputs).shape
        spatial = [d for d, c in enumerate(self.out_layout) if c not in "NC"]
        channels = [self.out_layout.index("C")] if self.feature_groups > 1 else []
        if self.batch_groups > 1 or not is_full_box(box, shape, spatial + channels):
            return None
        images = tuple(ranges["N"] if c == "N" else (0, d) for c, d in zip(self.lhs_layout, x.shape, strict=True))
        weights = tuple(ranges["C"] if c == "O" else (0, d) for c, d in zip(self.rhs_layout, w.shape, strict=True))
        return self, (images, weights)

    def weight_axes(self, *inputs: TensorType) -> WeightAxes | None:
        if self.batch_groups > 1:
            return None
        summed = self.lhs_layout.index("C"), self.rhs_layout.index("I")
        return WeightAxes(self.rhs_layout.index("O"), self.out_layout.index("C"), summed, self.feature_groups)

    def with_sums(self, dtype: DType) -> Op:
        return replace(self, dtype=dtype)

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, w = inputs
        letters = self.spatial
        for what, layout, special, rank in (
            ("lhs_layout", self.lhs_layout, "NC", x.rank),
            ("rhs_layout", self.rhs_layout, "OI", w.rank),
            ("out_layout", self.out_layout, "NC", x.rank),
        ):
            self.expect(
                sorted(layout) == sorted(special + letters) and len(layout) == rank,
                f"{what}: expected {special} and {letters or 'no spatial letters'} for rank {rank}, got {layout}",
            )
        spatial_attributes = (self.strides, self.padding, self.lhs_dilation, self.rhs_dilation)
        self.expect(
            all(len(a) == len(letters) for a in spatial_attributes),
            f"expected {len(letters)} strides, paddings and dilations, got {spatial_attributes}",
        )
        self.expect(
            all(v >= 1 for v in (*self.strides, *self.lhs_dilation, *self.rhs_dilation)),
            "expected strides and dilations >= 1",
        )
        sizes = dict(zip(self.lhs_layout, x.shape, strict=True))
        kernel = dict(zip(self.rhs_layout, w.shape, strict=True))
        groups, batches = self.feature_groups, self.batch_groups
        self.expect(groups >= 1 and batches >= 1 and 1 in (groups, batches), "expected one kind of groups at most")
        self.expect(groups == batches == 1 or not self.of_signs, "of signs: expected no groups")
        self.expect(not self.zeros or not self.of_signs, "of signs: expected no zeros, as words of 0 are terms")
        expect_equal(
            self,
            (kernel["I"] * groups,),
            (sizes["C"],),
            f"expected {sizes['C']} input channels = {groups} groups x I of the kernel {w}, got I = {kernel['I']}",
        )
        self.expect(
            all(mod(v, g) == 0 for v, g in ((kernel["O"], groups * batches), (sizes["N"], batches))),
            f"expected O of {w} (and N of {x}) to be multiples of the groups {groups * batches}",
        )
        out: dict[str, DimLike] = {"N": sizes["N"] // batches, "C": kernel["O"]}
        for i, c in enumerate(letters):
            padded = dilated_size(sizes[c], self.lhs_dilation[i]) + sum(self.padding[i])
            self.expect(not is_negative(padded), f"axis {c}: cropped below nothing by {self.padding[i]} of {x}")
            out[c] = window_count(padded, kernel[c], self.strides[i], self.rhs_dilation[i])
        return TensorType(_result_dtype(self, x, w, self.dtype), tuple(out[c] for c in self.out_layout))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        image, window = (
            [x.shape[layout.index(c)] for c in self.spatial]
            for x, layout in zip(inputs, (self.lhs_layout, self.rhs_layout), strict=True)
        )
        yield from dilation_constraints(image, self.lhs_dilation)
        yield from ((n - 1, f"expected a window of elements, got {inputs[1]}") for n in window if isinstance(n, Dim))

    def flops(self, *inputs: TensorType) -> DimLike:
        window = product(d for d, letter in zip(inputs[1].shape, self.rhs_layout, strict=True) if letter != "O")
        return self.infer(*inputs).size * window * 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        out = self.infer(*(TensorType(dtype_of(v), v.shape) for v in inputs))
        lhs, rhs = as_multiplied(self.tf32, *inputs)
        x, w = _widen_operands(lhs, rhs, out.dtype)
        letters = self.spatial
        x = x.transpose([self.lhs_layout.index(c) for c in "NC" + letters])
        w = w.transpose([self.rhs_layout.index(c) for c in "OI" + letters])
        low, high = ([0, 0, *(p[side] for p in self.padding)] for side in (0, 1))
        x = pad_array(x, low, high, (0, 0, *(d - 1 for d in self.lhs_dilation)), np.zeros((), x.dtype))
        bits = prod(w.shape[1:]) * 32
        if self.of_signs:
            x, w = (_signs(words.astype(np.uint32), 1) for words in (x, w))
        sizes = dict(zip(self.out_layout, (int(d) for d in out.shape), strict=True))
        spatial = tuple(sizes[c] for c in letters)
        if self.batch_groups > 1:
            # group n of the batch is convolved with group n of the kernel's output channels
            parts = zip(np.split(x, self.batch_groups, 0), np.split(w, self.batch_groups, 0), strict=True)
            y = np.concatenate([self._convolve(p, q, spatial) for p, q in parts], 1)
        else:
            parts = zip(np.split(x, self.feature_groups, 1), np.split(w, self.feature_groups, 0), strict=True)
            depthwise = w.shape[1] == 1 and w.shape[0] == self.feature_groups
            y = (
                self._depthwise(x, w, spatial)
                if depthwise
                else np.concatenate([self._convolve(p, q, spatial) for p, q in parts], 1)
            )
        y = _differences(y, bits) if self.of_signs else y
        y = y.transpose([("NC" + letters).index(c) for c in self.out_layout])
        return np.ascontiguousarray(_round(y, out.dtype)).reshape(tuple(int(d) for d in out.shape))

    def _convolve(self, x: np.ndarray, w: np.ndarray, spatial: tuple[int, ...]) -> np.ndarray:
        """One group, padded x[N,C,*S] and w[O,C,*K] to [N,O,*spatial], as one product over windows."""
        n, o, rank = x.shape[0], w.shape[0], len(spatial)
        y = np.zeros((n, o, *spatial), np.result_type(x, w))
        if not y.size or not w.size:
            return y
        window = tuple((k - 1) * d + 1 for k, d in zip(w.shape[2:], self.rhs_dilation, strict=True))
        axes = tuple(range(2, 2 + rank))
        taps = sliding_window_view(x, window, axes) if rank else x
        steps = (slice(None, None, s) for s in self.strides)
        dilations = (slice(None, None, d) for d in self.rhs_dilation)
        taps = taps[(slice(None), slice(None), *steps, *dilations)]
        with np.errstate(all="ignore"):
            for i in range(n):  # one image at a time bounds the copy that tensordot makes
                y[i] = np.tensordot(w, taps[i], ((1, *axes), (0, *range(1 + rank, 1 + 2 * rank))))
        return y

    def _depthwise(self, x: np.ndarray, w: np.ndarray, spatial: tuple[int, ...]) -> np.ndarray:
        y = np.zeros((x.shape[0], w.shape[0], *spatial), np.result_type(x, w))
        if not y.size:
            return y
        with np.errstate(all="ignore"):
            for tap in np.ndindex(*w.shape[2:]):
                view = tuple(
                    slice(t * d, t * d + (n - 1) * s + 1, s)
                    for t, d, n, s in zip(tap, self.rhs_dilation, spatial, self.strides, strict=True)
                )
                scale = w[(slice(None), 0, *tap)].reshape(-1, *(1,) * len(spatial))
                y += x[(slice(None), slice(None), *view)] * scale
        return y

    @classmethod
    def samples(cls) -> Samples:
        one, none = (1, 1), ((0, 0), (0, 0))
        nchw = ("NCHW", "OIHW", "NCHW")
        nhwc = ("NHWC", "HWIO", "NHWC")
        yield cls((2, 1), ((1, 1), (0, 2)), one, one, *nchw), (_data(2, 3, 7, 5), _data(4, 3, 3, 2))
        yield cls((1, 2), ((2, 1), (0, -1)), one, (2, 1), *nhwc), (_data(1, 7, 6, 3), _data(2, 3, 3, 4))
        yield cls(one, ((2, 2), (1, 1)), (2, 3), one, *nchw, 2), (_data(1, 4, 3, 3), _data(6, 2, 3, 2))
        yield cls(one, none, one, one, *nchw, 3), (_data(2, 3, 5, 5), _data(3, 1, 3, 3))
        yield cls(one, none, one, one, *nchw, 3), (_data(2, 3, 5, 5), _data(6, 1, 3, 3))
        yield cls(one, none, one, one, *nchw, 1, 2), (_data(4, 3, 4, 4), _data(6, 3, 3, 3))
        yield cls(one, none, one, one, *nchw), (_data(1, 2, 2, 4), _data(3, 2, 3, 3))
        yield cls(one, none, one, one, *nchw), (_data(0, 2, 4, 4), _data(3, 2, 3, 3))
        yield cls((2,), ((1, 1),), (1,), (1,), "NCW", "OIW", "NWC"), (_data(2, 3, 8), _data(5, 3, 3))
        x = _data(2, 2, 5, 5, dtype=np.int8), _data(3, 2, 3, 3, dtype=np.int8)
        yield cls(one, ((1, 1), (1, 1)), one, one, *nchw, dtype=i32), x
        wide = _data(1, 2, 5, 5, dtype=np.uint64) << 16, _data(3, 2, 3, 3, dtype=np.uint64) << 16
        yield cls(one, none, one, one, *nchw), wide
        h = _data(1, 2, 5, 5, dtype=np.float16), _data(3, 2, 3, 3, dtype=np.float16)
        yield cls(one, ((1, 1), (1, 1)), one, one, *nchw), h
        bf16 = ml_dtypes.bfloat16
        narrow = _data(1, 5, 5, 3, dtype=bf16), _data(3, 3, 3, 4, dtype=bf16)
        yield cls(one, ((1, 1), (1, 1)), one, one, *nhwc, dtype=f32), narrow
        yield cls(one, none, one, one, *nchw, 3, dtype=f32), (_data(2, 3, 5, 5, dtype=bf16), _data(3, 1, 3, 3))
        yield cls(one, ((1, 1), (1, 1)), one, one, *nhwc, tf32=True), (_data(2, 7, 6, 3), _data(3, 3, 3, 20))
        signs = _words(2, 7, 5, 3), _words(3, 2, 3, 4)
        yield cls((2, 1), ((1, 1), (0, 2)), one, one, *nhwc, dtype=i32, of_signs=True), signs


def is_depthwise(node: Node) -> bool:
    """Whether the node is a channels-last depthwise convolution: a static kernel, one input channel per group."""
    op = node.op
    if not isinstance(op, Convolution) or op.batch_groups != 1 or op.lhs_layout[-1] != "C":
        return False
    x, w = node.inputs
    if not w.type.is_static:
        return False
    one_channel_each = w.shape[op.rhs_layout.index("I")] == 1 and w.shape[op.rhs_layout.index("O")] == op.feature_groups
    return (
        one_channel_each
        and op.feature_groups > 1
        and x.shape[-1] == op.feature_groups
        and op.lhs_layout == op.out_layout
    )
