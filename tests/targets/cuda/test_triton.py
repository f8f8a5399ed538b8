"""Kernels of tiles as Triton text: a small case of each strategy as it stands in golden files, and cubins made of it
where Triton is installed. `--update-golden` writes the files anew."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, Shape, TensorType, f8e4m3fn, f8e8m0fnu, f16, f32, f64, i4, i64
from ingot.support.cubins import KernelCode
from ingot.support.errors import CompileError
from ingot.targets.cuda.prelude import PRELUDE
from ingot.targets.cuda.triton import Source, print_kernel
from tests.conformance.checked import planned


def operand(label: str, dtype: DType, shape: Shape) -> Node:
    return Input(label, TensorType(dtype, shape))()


def linear() -> Graph:
    """relu(x @ w + b) in f16, summed in f32."""
    x = operand("x", f16, (64, 96))
    w, b = const(np.ones((96, 32), np.float16)), operand("b", f16, (32,))
    y = ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)
    y = ops.Add()(y, ops.BroadcastInDim((64, 32), (1,))(b))
    return Graph((x, b), (ops.Relu()(y),))


def boxes() -> Graph:
    """Many rows: the hardware copies tiles of both matrices."""
    x, w = operand("x", f16, (2000, 96)), const(np.ones((96, 40), np.float16))
    return Graph((x,), (ops.Relu()(ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)),))


def tf32() -> Graph:
    """A convolution of f32 for tensor cores, and one of 1x1, whose operands are copied in boxes."""
    x, w = operand("x", f32, (8, 10, 10, 32)), operand("w", f32, (64, 32, 3, 3))
    one, no = (1, 1), ((0, 0), (0, 0))
    y = ops.Convolution(one, no, one, one, "NHWC", "OIHW", "NHWC", tf32=True)(x, w)
    pointwise = const(np.ones((96, 64), np.float32))
    z = ops.DotGeneral(((), ()), ((1,), (1,)), tf32=True)(ops.reshape(y, (512, 64)), pointwise)
    return Graph((x, w), (ops.Relu()(z),))


def limbs() -> Graph:
    """A product of f32 large enough that its limbs are in memory."""
    x, w = operand("x", f32, (2048, 1024)), operand("w", f32, (1024, 256))
    return Graph((x, w), (ops.DotGeneral(((), ()), ((1,), (0,)))(x, w),))


def bf16x6() -> Graph:
    """A convolution of f32, whose limbs are made in registers."""
    x, w = operand("x", f32, (32, 30, 30, 128)), operand("w", f32, (128, 128, 3, 3))
    one, no = (1, 1), ((0, 0), (0, 0))
    return Graph((x, w), (ops.Relu()(ops.Convolution(one, no, one, one, "NHWC", "OIHW", "NHWC")(x, w)),))


def softmax() -> Graph:
    x = operand("x", f32, (8, 40))
    return Graph((x,), (ops.Softmax(1)(x),))


def shifted() -> Graph:
    x, y = operand("x", f32, (3, 50)), operand("y", f32, (50,))
    return Graph((x, y), (ops.Add()(x, ops.BroadcastInDim((3, 50), (1,))(y)),))


def attention() -> Graph:
    q, key, v = (operand(label, f16, (1, 2, 48, 64)) for label in "qkv")
    return Graph((q, key, v), (ops.Attention("upper_left", 0.125)(q, key, v),))


def dropped() -> Graph:
    """Which weights dropout keeps is computed in registers, from the seed and the positions of scores."""
    q, key, v, seed = *(operand(label, f16, (1, 2, 48, 64)) for label in "qkv"), operand("seed", i64, ())
    return Graph((q, key, v, seed), ops.AttentionWithSums(scale=0.125, dropout=0.25)(q, key, v, seed).results)


def parts() -> Graph:
    """Few rows and a long reduction: the last part to end joins the sums."""
    x, w = operand("x", f16, (40, 2048)), const(np.ones((2048, 64), np.float16))
    return Graph((x,), (ops.Relu()(ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)),))


def token() -> Graph:
    """A decoder's step: a single row, and its queries against keys that four heads share."""
    x, w = operand("x", f16, (1, 2048)), const(np.ones((2048, 256), np.float16))
    q = ops.reshape(ops.DotGeneral(((), ()), ((1,), (0,)))(x, w), (1, 8, 1, 32))
    key, v = (operand(label, f16, (1, 2, 130, 32)) for label in "kv")
    return Graph((x, key, v), (ops.Attention("none", 0.25)(q, key, v),))


def depthwise() -> Graph:
    x, w = operand("x", f16, (1, 12, 12, 64)), const(np.ones((3, 3, 1, 64), np.float16))
    one, no = (1, 1), ((0, 0), (0, 0))
    return Graph((x,), (ops.Convolution(one, no, one, one, "NHWC", "HWIO", "NHWC", 64)(x, w),))


def gated() -> Graph:
    """Two products of the weighted norm of one row, whose results meet."""
    x, scale = operand("x", f16, (1, 256)), operand("scale", f16, (256,))
    y = ops.RMSNorm((1,))(x, scale)
    gate, up = (ops.DotGeneral(((), ()), ((1,), (0,)))(y, const(np.full((256, 64), n, np.float16))) for n in (1, 2))
    return Graph((x, scale), (ops.Mul()(ops.Relu()(gate), up),))


def levels() -> Graph:
    """A single row by weights of 4 bits."""
    x = operand("x", f16, (1, 256))
    q, scale = np.ones((64, 4, 64), ml_dtypes.uint4), np.ones((64, 4, 1), np.float16)
    w = ops.reshape(ops.Dequantize()(const(q), const(np.full((64, 4, 1), 8, ml_dtypes.uint4)), const(scale)), (64, 256))
    return Graph((x,), (ops.DotGeneral(((), ()), ((1,), (1,)))(x, w),))


def eight() -> Graph:
    """Floats of 8 bits: a product, and its result in as many."""
    x, w = operand("x", f8e4m3fn, (32, 64)), const(np.ones((64, 32), np.float32).astype(f8e4m3fn.numpy))
    y = ops.DotGeneral(((), ()), ((1,), (0,)), dtype=f32)(x, w)
    return Graph((x,), (ops.Convert(f8e4m3fn)(ops.Relu()(y)),))


def merged() -> Graph:
    """The largest of three runs."""
    x = operand("x", f16, (1, 700))
    return Graph((x,), (ops.Sort(1, descending=True, count=5)(x),))


def scanned() -> Graph:
    x = operand("x", f32, (3000,))
    return Graph((x,), (ops.CumReduce("sum", 0, exclusive=True)(x),))


def scattered() -> Graph:
    """Gradients of an embedding: rows that may meet."""
    x, rows, updates = operand("x", f32, (50, 24)), operand("i", i64, (300, 1)), operand("u", f32, (300, 24))
    return Graph((x, rows, updates), (ops.Scatter("add", (1,), (0,), (), (), (0,), 1)(x, rows, updates),))


def digits() -> Graph:
    """Many numbers added to few."""
    x, places, updates = operand("x", f32, (10,)), operand("i", i64, (3000, 1)), operand("u", f32, (3000,))
    return Graph((x, places, updates), (ops.Scatter("add", (), (0,), (), (), (0,), 1)(x, places, updates),))


def long() -> Graph:
    """A row that many programs share, two levels of reductions."""
    x = operand("x", f16, (1, 40000))
    return Graph((x,), (ops.Softmax(1)(x),))


def pool() -> Graph:
    """Channels lie side by side, and so do the elements of a program."""
    x = ops.Transpose((0, 3, 1, 2))(operand("x", f32, (2, 12, 12, 8)))
    ones = (1, 1, 1, 1)
    y = ops.ReduceWindow("max", (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)), ones, ones)(x)
    return Graph((x.inputs[0],), (ops.Transpose((0, 2, 3, 1))(y),))


def normed() -> Graph:
    """A group norm of an image whose channels lie side by side: both moments of a group are one kernel's."""
    x, w = operand("x", f16, (1, 8, 6, 6)), const(np.ones((8, 8, 1, 1), np.float16))
    y = ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1))(x, w)
    return Graph((x,), (ops.GroupNorm(2)(y, *(const(np.ones(8, np.float16)) for _ in range(2))),))


def recurrent() -> Graph:
    """Steps are rounds of a kernel, whose programs meet."""
    shapes = (3, 2, 8), (1, 16, 8), (1, 16, 16), (1, 32), (1, 2, 16)
    inputs = tuple(Input(f"x{i}", TensorType(f16, shape))() for i, shape in enumerate(shapes))
    return Graph(inputs, ops.RNN(16)(*inputs).results)


CASES = {
    "linear": linear, "softmax": softmax, "shifted": shifted, "attention": attention, "dropped": dropped,
    "parts": parts, "token": token, "depthwise": depthwise, "gated": gated, "levels": levels, "boxes": boxes,
    "eight": eight, "merged": merged, "scanned": scanned, "scattered": scattered, "digits": digits,
    "long": long, "pool": pool, "recurrent": recurrent, "normed": normed, "tf32": tf32,
    "bf16x6": bf16x6, "limbs": limbs,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    _, kernels = planned(CASES[name](), "cuda:sm_90a")
    golden(name, "\n".join(print_kernel(kernel).text for kernel in kernels.values()))


def test_what_tiles_cannot_say_is_refused() -> None:
    x, y = k.Buffer("x", f32), k.Buffer("y", f32, writable=True)
    line = k.load(x, k.integer(0), 8)
    kernel = k.Kernel("t", (x, y), (), k.var("c"), k.integer(1), (k.Store(y, k.integer(0), line),))
    with pytest.raises(CompileError, match="8 lanes"):
        print_kernel(kernel)


def test_floats_that_integers_do_not_hold_are_cut_as_cpus_do() -> None:
    x, y = k.Buffer("x", f32), k.Buffer("y", i64, writable=True)
    at = k.lane_indices(16, 1)
    value = k.cast(k.gather(x, at), i64)
    kernel = k.Kernel("t", (x, y), (), k.var("c"), k.integer(1), (k.Store(y, at, value),))
    text = print_kernel(kernel).text
    assert ">= -9.223372036854776e+18" in text
    assert "< 9.223372036854776e+18" in text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", CASES)
def test_cubins(name: str, arch: str) -> None:
    """Ahead of time, without a GPU; this also holds the internals of Triton that are called."""
    from ingot.targets.cuda.workers import submit

    _, kernels = planned(CASES[name](), f"cuda:{arch}")
    for kernel in kernels.values():
        source = print_kernel(kernel)
        code = KernelCode.of_record(submit(source, arch).result())
        assert code.cubin[:4] == b"\x7fELF"
        assert code.parameters == len(kernel.params) + len(kernel.dims)
        assert len(code.matrices) == sum(b.matrix is not None for b in kernel.params)
        assert code.cooperative == (kernel.barrier is not None)
        assert code.threads == 32 * dict(kernel.hints)["warps"]
    assert "fold_max" in PRELUDE


def function(fn: str, dtype: DType) -> k.Kernel:
    ins, result = [k.Buffer(n, dtype) for n in "xy"[: k.FUNCTIONS[fn]]], k.Buffer("out", dtype, writable=True)
    at = k.lane_indices(64, 1)
    value = k.call(fn, *(k.gather(b, at) for b in ins))
    return k.Kernel(f"f_{fn}_{dtype}", (*ins, result), (), k.var("c"), k.integer(1), (k.Store(result, at, value),))


def test_functions_are_libdevices_where_those_are_exact() -> None:
    assert "libdevice.erf(" in print_kernel(function("erf", f32)).text
    assert "libdevice.pow(" not in print_kernel(function("pow", f32)).text
    x, result = k.Buffer("x", f64), k.Buffer("out", f64, writable=True)
    at = k.lane_indices(64, 1)
    square = k.call("pow", k.gather(x, at), k.lit(2.0, f64))
    text = print_kernel(k.Kernel("s", (x, result), (), k.var("c"), k.integer(1), (k.Store(result, at, square),))).text
    assert "pow" not in text and "shared1 * shared1" in text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_cubins_of_every_function() -> None:
    from ingot.targets.cuda.workers import submit

    kernels = [function(fn, dtype) for fn in k.FUNCTIONS for dtype in (f32, f64) if (fn, dtype) != ("gelu_narrow", f64)]
    for code in [submit(print_kernel(kernel), "sm_90a") for kernel in kernels]:
        assert KernelCode.of_record(code.result()).cubin[:4] == b"\x7fELF"


@pytest.mark.parametrize("dtype", [f8e8m0fnu, i4])
def test_types_that_kernels_have_no_values_of_are_refused(dtype: DType) -> None:
    x = operand("x", f32, (4, 8))
    _, kernels = planned(Graph((x,), (ops.Convert(dtype)(x),)), "cuda:sm_90a")
    with pytest.raises(CompileError, match=rf"expected values of f16, .*, got {dtype.name}; compile for a CPU"):
        [print_kernel(kernel) for kernel in kernels.values()]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("parameter_count", [4, 6])
def test_a_version_with_other_parameters_is_refused(parameter_count: int) -> None:
    from ingot.targets.cuda.codegen import check_parameters

    source = Source("t", "", (("x", "*fp32", 16, False), ("y", "*fp32", 16, True), ("n", "i64", 1, False)))
    ptx = ".visible .entry t(\n{}\n)\n.reqntid 128"
    check_parameters(source, ptx.format(",\n".join([".param .u64 p"] * 5)))
    with pytest.raises(CompileError, match="expected 5 parameters"):
        check_parameters(source, ptx.format(",\n".join([".param .u64 p"] * parameter_count)))
