"""Axes of open size with 0, 1, 5 and 7 elements, under guard pages: what the specification says, or an error of Ingot's
where an op needs elements, never memory that was not written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import ingot
from ingot.support.errors import IngotError
from tests.guard import ENDS, End, check_all

Array = np.ndarray
REGION = """({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    {0}
  }})"""
ADD = REGION.format("%s = stablehlo.add %a, %b : tensor<f32>\n stablehlo.return %s : tensor<f32>")
HYPOT = REGION.format("""%p = stablehlo.multiply %a, %a : tensor<f32>
    %q = stablehlo.multiply %b, %b : tensor<f32>
    %r = stablehlo.add %p, %q : tensor<f32>
    %s = stablehlo.sqrt %r : tensor<f32>
    stablehlo.return %s : tensor<f32>""")
FARTHER = REGION.format("""%p = stablehlo.abs %a : tensor<f32>
    %q = stablehlo.abs %b : tensor<f32>
    %r = stablehlo.subtract %p, %q : tensor<f32>
    %s = stablehlo.compare GT, %r, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %s : tensor<i1>""")
AT_LEAST = REGION.format("""%s = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %s : tensor<i1>""")

# of x[n, 3] and i[4], indices of 0 to 3: an operation, its type, and what it means; None for an error
Meaning = Callable[[Array, Array], Array | None]
CASES: dict[str, tuple[str, str, Meaning]] = {
    "slice": (
        "stablehlo.slice %x [1:3, 0:3] : (tensor<?x3xf32>) -> tensor<2x3xf32>",
        "tensor<2x3xf32>", lambda x, i: x[1:3] if len(x) > 2 else None,
    ),
    "real_dynamic_slice": (
        '"stablehlo.real_dynamic_slice"(%x, %one_zero, %three, %ones) : (tensor<?x3xf32>, tensor<2xi64>, tensor<2xi64>,'
        " tensor<2xi64>) -> tensor<2x3xf32>",
        "tensor<2x3xf32>", lambda x, i: x[1:3] if len(x) > 2 else None,
    ),
    "dynamic_slice": (
        "stablehlo.dynamic_slice %x, %first, %first, sizes = [1, 2] : (tensor<?x3xf32>, tensor<i32>, tensor<i32>) ->"
        " tensor<1x2xf32>",
        "tensor<1x2xf32>", lambda x, i: x[min(i[0], len(x) - 1) :][:1, min(i[0], 1) :][:, :2] if len(x) else None,
    ),
    "dynamic_update_slice": (
        "stablehlo.dynamic_update_slice %x, %row, %c0, %c0 : (tensor<?x3xf32>, tensor<1x3xf32>, tensor<i32>,"
        " tensor<i32>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: np.r_[np.full((1, 3), 7, np.float32), x[1:]] if len(x) else None,
    ),
    "dynamic_pad": (
        '"stablehlo.dynamic_pad"(%x, %zero, %one_zero, %one_zero, %one_zero) : (tensor<?x3xf32>, tensor<f32>,'
        " tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: _dilated(x),
    ),
    "set_dimension_size": (
        "stablehlo.set_dimension_size %x, %c2, dim = 0 : (tensor<?x3xf32>, tensor<i32>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: x[:2],
    ),
    "torch_index_select": (
        '"stablehlo.torch_index_select"(%x, %i) <{dim = 0 : i64, batch_dims = 0 : i64}> : (tensor<?x3xf32>,'
        " tensor<4xi32>) -> tensor<4x3xf32>",
        "tensor<4x3xf32>", lambda x, i: x[np.minimum(i, len(x) - 1)] if len(x) else None,
    ),
    "gather": (
        '"stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims ='
        " [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<?x3xf32>,"
        " tensor<4xi32>) -> tensor<4x3xf32>",
        "tensor<4x3xf32>", lambda x, i: x[np.minimum(i, len(x) - 1)] if len(x) else None,
    ),
    "scatter of its own": (
        '"stablehlo.scatter"(%x, %i, %four) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],'
        " inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> " + HYPOT +
        " : (tensor<?x3xf32>, tensor<4xi32>, tensor<4x3xf32>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: _scattered(x, i),
    ),
    "top_k": (
        "chlo.top_k(%x, k = 2) : tensor<?x3xf32> -> (tensor<?x2xf32>, tensor<?x2xi32>)",
        "tensor<?x2xf32>", lambda x, i: -np.sort(-x, 1)[:, :2],
    ),
    "top_k of rows": (
        "chlo.top_k(%t, k = 2) : tensor<3x?xf32> -> (tensor<3x2xf32>, tensor<3x2xi32>)",
        "tensor<3x2xf32>", lambda x, i: -np.sort(-x.T, 1)[:, :2] if len(x) > 1 else None,
    ),
    "sort by its own": (
        '"stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ' + FARTHER
        + " : (tensor<?x3xf32>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: np.take_along_axis(x, np.argsort(-np.abs(x), 0, kind="stable"), 0),
    ),
    "fold": (
        '"stablehlo.reduce"(%x, %zero) <{dimensions = array<i64: 0>}> ' + HYPOT
        + " : (tensor<?x3xf32>, tensor<f32>) -> tensor<3xf32>",
        "tensor<3xf32>", lambda x, i: np.sqrt((x.astype(np.float64) ** 2).sum(0)),
    ),
    "window": (
        '"stablehlo.reduce_window"(%x, %zero) <{window_dimensions = array<i64: 2, 1>, padding = dense<[[1, 0], [0, 0]]>'
        " : tensor<2x2xi64>}> " + ADD + " : (tensor<?x3xf32>, tensor<f32>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: x + np.r_[np.zeros((1, 3), np.float32), x][: len(x)],
    ),
    "window of its own": (
        '"stablehlo.reduce_window"(%x, %zero) <{window_dimensions = array<i64: 2, 1>, padding = dense<[[1, 0], [0, 0]]>'
        " : tensor<2x2xi64>}> " + HYPOT + " : (tensor<?x3xf32>, tensor<f32>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: np.hypot(x, np.r_[np.zeros((1, 3), np.float32), x][: len(x)]),
    ),
    "select_and_scatter": (
        '"stablehlo.select_and_scatter"(%x, %x, %zero) <{window_dimensions = array<i64: 1, 1>}> '
        + AT_LEAST[:-1] + ", " + ADD[1:] + " : (tensor<?x3xf32>, tensor<?x3xf32>, tensor<f32>) -> tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: x,
    ),
    "product": (
        "stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<?x3xf32>, tensor<?x3xf32>) ->"
        " tensor<3x3xf32>",
        "tensor<3x3xf32>", lambda x, i: x.T @ x,
    ),
    "reverse": ("stablehlo.reverse %x, dims = [0] : tensor<?x3xf32>", "tensor<?x3xf32>", lambda x, i: x[::-1]),
    "concatenate": (
        "stablehlo.concatenate %x, %row, %x, dim = 0 : (tensor<?x3xf32>, tensor<1x3xf32>, tensor<?x3xf32>) ->"
        " tensor<?x3xf32>",
        "tensor<?x3xf32>", lambda x, i: np.r_[x, np.full((1, 3), 7, np.float32), x],
    ),
}  # fmt: skip
TEXT = """func.func public @main(%x: tensor<?x3xf32>, %i: tensor<4xi32>) -> TYPE {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %row = stablehlo.constant dense<7.0> : tensor<1x3xf32>
  %four = stablehlo.constant dense<2.0> : tensor<4x3xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %one_zero = stablehlo.constant dense<[1, 0]> : tensor<2xi64>
  %three = stablehlo.constant dense<3> : tensor<2xi64>
  %ones = stablehlo.constant dense<1> : tensor<2xi64>
  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x3xf32>) -> tensor<3x?xf32>
  %cut = stablehlo.slice %i [0:1] : (tensor<4xi32>) -> tensor<1xi32>
  %first = stablehlo.reshape %cut : (tensor<1xi32>) -> tensor<i32>
  %yRESULTS = OP
  return %yFIRST : TYPE
}"""


def _dilated(x: Array) -> Array:
    """Between rows, before the first and behind the last, a row of zeros."""
    y = np.zeros((2 + max(2 * len(x) - 1, 0), 3), np.float32)
    y[1 : 1 + 2 * len(x) : 2] = x
    return y


def _scattered(x: Array, i: Array) -> Array:
    y = x.copy()
    for at in i[i < len(x)]:
        y[at] = np.hypot(y[at], 2)
    return y


def _check(name: str) -> None:
    op, type, meaning = CASES[name]
    has_several = name.startswith("top_k")
    text = TEXT.replace("TYPE", type).replace("OP", op)
    text = text.replace("RESULTS", ":2" if has_several else "").replace("FIRST", "#0" if has_several else "")
    compiled = ingot.compile(text, threads=1, cache=False)
    rng = np.random.default_rng(0)
    for n in (0, 1, 5, 7):
        x, i = rng.normal(size=(n, 3)).astype(np.float32), np.array([1, 0, 3, 1], np.int32)
        want = meaning(x, i)
        try:
            got = compiled(x, i)
        except IngotError as e:
            assert want is None, f"{n}: {e}"
            continue
        assert want is not None, f"{n}: expected an error, got {got}"
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(n))


@pytest.mark.parametrize("end", ENDS)
def test_sizes_that_may_be_0(end: End) -> None:
    check_all({name: partial(_check, name) for name in CASES}, [end])
