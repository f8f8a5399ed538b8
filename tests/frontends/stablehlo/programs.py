"""Programs in every form that printers write, with what they mean in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

F, I = np.float32, np.int32


@dataclass(frozen=True)
class Program:
    """main's arguments, its text without the module, inputs, and the results that numpy gives."""

    name: str
    text: str
    inputs: tuple[np.ndarray, ...]
    expected: Callable[..., object]


def _data(*shape: int, dtype: type = F) -> np.ndarray:
    values = np.random.default_rng(sum(shape) + len(shape)).normal(size=shape) * 3
    return values.astype(dtype)


def _main(arguments: str, result: str, body: str, tail: str = "") -> str:
    return f"func.func public @main({arguments}) -> {result} {{\n{body}\n}}\n{tail}"


PROGRAMS = (
    Program("compare_select", _main("%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>", "tensor<3x4xf32>", """
  %0 = stablehlo.compare  LT, %arg0, %arg1,  FLOAT : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xi1>
  %1 = stablehlo.select %0, %arg1, %arg0 : tensor<3x4xi1>, tensor<3x4xf32>
  return %1 : tensor<3x4xf32>"""), (_data(3, 4), _data(3, 4) * -1), np.maximum),
    Program("slice_pad", _main("%arg0: tensor<4x9xf32>", "tensor<4x7xf32>", """
  %cst = stablehlo.constant dense<-1.5> : tensor<f32>
  %0 = stablehlo.slice %arg0 [1:3, 0:9:4] : (tensor<4x9xf32>) -> tensor<2x3xf32>
  %1 = stablehlo.pad %0, %cst, low = [1, 2], high = [1, 0], interior = [0, 1] : (tensor<2x3xf32>, tensor<f32>)
    -> tensor<4x7xf32>
  return %1 : tensor<4x7xf32>"""), (_data(4, 9),), lambda x: _padded(x)),
    Program("dot_general", _main("%arg0: tensor<2x3x4xf32>, %arg1: tensor<2x5x4xf32>", "tensor<2x3x5xf32>", """
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [2],
    precision = [HIGHEST, HIGHEST] : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x3x5xf32>
  return %0 : tensor<2x3x5xf32>"""), (_data(2, 3, 4), _data(2, 5, 4)), lambda a, b: np.einsum("bik,bjk->bij", a, b)),
    Program("convolution", _main("%arg0: tensor<1x5x3xf32>, %arg1: tensor<2x3x4xf32>", "tensor<1x5x4xf32>", """
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
    window = {stride = [1], pad = [[1, 0]], lhs_dilate = [1], rhs_dilate = [1], reverse = [true]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x5x3xf32>, tensor<2x3x4xf32>)
    -> tensor<1x5x4xf32>
  return %0 : tensor<1x5x4xf32>"""), (_data(1, 5, 3), _data(2, 3, 4)), lambda x, w: _convolved(x, w[::-1])),
    Program("reduce_init", _main("%arg0: tensor<3x4xf32>", "tensor<3xf32>", """
  %cst = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1]
    : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>"""), (_data(3, 4),), lambda x: x.sum(1) + 1),
    Program("argmax", _main("%arg0: tensor<3x6xf32>", "(tensor<3xf32>, tensor<3xi32>)", """
  %0 = stablehlo.iota dim = 1 : tensor<3x6xi32>
  %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %1:2 = stablehlo.reduce(%arg0 init: %cst), (%0 init: %c) across dimensions = [1]
    : (tensor<3x6xf32>, tensor<3x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
   reducer(%a: tensor<f32>, %b: tensor<f32>) (%i: tensor<i32>, %j: tensor<i32>)  {
    %2 = stablehlo.compare  GT, %a, %b,  FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = stablehlo.compare  NE, %a, %a,  FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %4 = stablehlo.or %2, %3 : tensor<i1>
    %5 = stablehlo.compare  EQ, %a, %b,  FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %6 = stablehlo.compare  LT, %i, %j,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %7 = stablehlo.and %5, %6 : tensor<i1>
    %8 = stablehlo.or %4, %7 : tensor<i1>
    %9 = stablehlo.select %4, %a, %b : tensor<i1>, tensor<f32>
    %10 = stablehlo.select %8, %i, %j : tensor<i1>, tensor<i32>
    stablehlo.return %9, %10 : tensor<f32>, tensor<i32>
  }
  return %1#0, %1#1 : tensor<3xf32>, tensor<3xi32>"""), (np.array(
        [[1, 5, 5, 2, 0, -1], [np.nan, 1, np.nan, 0, 0, 0], [-np.inf] * 6], F),),
        lambda x: (x.max(1), np.argmax(x, 1).astype(I))),
    Program("fold_of_its_own", _main("%arg0: tensor<2x7xf32>", "tensor<2xf32>", """
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%arg0 init: %cst) across dimensions = [1] : (tensor<2x7xf32>, tensor<f32>) -> tensor<2xf32>
   reducer(%a: tensor<f32>, %b: tensor<f32>)  {
    %1 = stablehlo.multiply %a, %a : tensor<f32>
    %2 = stablehlo.multiply %b, %b : tensor<f32>
    %3 = stablehlo.add %1, %2 : tensor<f32>
    %4 = stablehlo.sqrt %3 : tensor<f32>
    stablehlo.return %4 : tensor<f32>
  }
  return %0 : tensor<2xf32>"""), (_data(2, 7),), lambda x: np.sqrt((x * x).sum(1))),
    Program("running_sum", _main("%arg0: tensor<6x2xf32>", "tensor<6x2xf32>", """
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%arg0, %cst) <{padding = dense<[[5, 0], [0, 0]]> : tensor<2x2xi64>,
    window_dimensions = array<i64: 6, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<6x2xf32>, tensor<f32>) -> tensor<6x2xf32>
  return %0 : tensor<6x2xf32>"""), (_data(6, 2),), lambda x: np.cumsum(x, 0)),
    Program("pool_from_2", _main("%arg0: tensor<6xf32>", "tensor<3xf32>", """
  %cst = stablehlo.constant dense<2.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%arg0, %cst) <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<6xf32>, tensor<f32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>"""), (_data(6),), lambda x: np.maximum(x.reshape(3, 2).max(1), 2)),
    Program("select_and_scatter", _main("%arg0: tensor<6xf32>, %arg1: tensor<3xf32>", "tensor<6xf32>", """
  %cst = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.select_and_scatter"(%arg0, %arg1, %cst) <{window_dimensions = array<i64: 2>,
    window_strides = array<i64: 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.compare  GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<6xf32>, tensor<3xf32>, tensor<f32>) -> tensor<6xf32>
  return %0 : tensor<6xf32>"""), (_data(6), _data(3)), lambda x, s: _unpooled(x, s)),
    Program("scatter_of_its_own", _main(
        "%arg0: tensor<4xf32>, %arg1: tensor<5x1xi32>, %arg2: tensor<5xf32>", "tensor<4xf32>", """
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{scatter_dimension_numbers = #stablehlo.scatter<
    inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.multiply %a, %a : tensor<f32>
    %2 = stablehlo.subtract %1, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) : (tensor<4xf32>, tensor<5x1xi32>, tensor<5xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>"""), (_data(4), np.array([[1], [3], [1], [9], [-1]], I), _data(5)),
        lambda x, i, u: _scattered(x, i, u)),
    Program("sort_by_absolute", _main("%arg0: tensor<3x5xf32>", "tensor<3x5xf32>", """
  %0 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.abs %a : tensor<f32>
    %2 = stablehlo.abs %b : tensor<f32>
    %3 = stablehlo.compare  GT, %1, %2 : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  }) : (tensor<3x5xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>"""), (_data(3, 5),), lambda x: np.take_along_axis(x, np.argsort(-np.abs(x), 1), 1)),
    Program("sort_ranked", _main("%arg0: tensor<9xi32>", "tensor<9xi32>", """
  %c = stablehlo.constant dense<3> : tensor<i32>
  %0 = "stablehlo.sort"(%arg0) <{dimension = 0 : i64}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %1 = stablehlo.remainder %a, %c : tensor<i32>
    %2 = stablehlo.remainder %b, %c : tensor<i32>
    %3 = stablehlo.subtract %1, %2 : tensor<i32>
    %4 = stablehlo.negate %c : tensor<i32>
    %5 = stablehlo.add %4, %c : tensor<i32>
    %6 = stablehlo.compare  LT, %3, %5,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %6 : tensor<i1>
  }) : (tensor<9xi32>) -> tensor<9xi32>
  return %0 : tensor<9xi32>"""), (np.array([5, 3, 8, 1, 0, 7, 6, 2, 4], I),),
        lambda x: x[np.argsort(x % 3, kind="stable")]),
    Program("while_captures", _main("%arg0: tensor<3xf32>, %arg1: tensor<i32>", "tensor<3xf32>", """
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.add %arg0, %arg0 : tensor<3xf32>
  %1:2 = stablehlo.while(%i = %c, %x = %arg0) : tensor<i32>, tensor<3xf32>
   cond {
    %2 = stablehlo.compare  LT, %i, %arg1,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %c_0 : tensor<i32>
    %3 = func.call @step(%x, %0) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    stablehlo.return %2, %3 : tensor<i32>, tensor<3xf32>
  }
  return %1#1 : tensor<3xf32>""", """
func.func private @step(%arg0: tensor<3xf32>, %arg1: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.subtract %arg1, %arg0 : tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""), (_data(3), np.array(3, I)), lambda x, n: 2 * x - (2 * x - (2 * x - x))),
    Program("case", _main("%arg0: tensor<i32>, %arg1: tensor<2xf32>", "tensor<2xf32>", """
  %0 = "stablehlo.case"(%arg0) ({
    %1 = stablehlo.negate %arg1 : tensor<2xf32>
    stablehlo.return %1 : tensor<2xf32>
  }, {
    stablehlo.return %arg1 : tensor<2xf32>
  }) : (tensor<i32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>"""), (np.array(0, I), _data(2)), lambda i, x: -x),
    Program("total_order", _main("%arg0: tensor<5xf32>, %arg1: tensor<5xf32>", "tensor<5xi1>", """
  %0 = stablehlo.compare  LT, %arg0, %arg1,  TOTALORDER : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xi1>
  return %0 : tensor<5xi1>"""), (
        np.array([-0.0, np.nan, -np.nan, 1, np.inf], F), np.array([0.0, 1, 1, np.nan, 2], F)),
        lambda a, b: np.array([True, False, True, True, False])),
    Program("bytes", _main("%arg0: tensor<3xf32>", "tensor<3x4xui8>", """
  %0 = stablehlo.bitcast_convert %arg0 : (tensor<3xf32>) -> tensor<3x4xui8>
  return %0 : tensor<3x4xui8>"""), (_data(3),), lambda x: x.view(np.uint8).reshape(3, 4)),
    Program("quantized", _main("%arg0: tensor<4xf32>", "tensor<4xf32>", """
  %0 = stablehlo.uniform_quantize %arg0 : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 0.5:3>>
  %1 = stablehlo.add %0, %0 : tensor<4x!quant.uniform<i8:f32, 0.5:3>>
  %2 = stablehlo.uniform_dequantize %1 : (tensor<4x!quant.uniform<i8:f32, 0.5:3>>) -> tensor<4xf32>
  return %2 : tensor<4xf32>"""), (np.array([0.2, -1.3, 100, 4.75], F),),
        lambda x: np.clip(2 * np.clip(np.round(x * 2), -131, 124), -131, 124) * F(0.5)),
)  # fmt: skip


def _padded(x: np.ndarray) -> np.ndarray:
    padded = np.full((4, 7), -1.5, F)
    padded[1:3, 2::2] = x[1:3, ::4]
    return padded


def _convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (1, 0), (0, 0)))
    return padded[:, :5] @ w[0] + padded[:, 1:6] @ w[1]


def _unpooled(x: np.ndarray, source: np.ndarray) -> np.ndarray:
    result = np.zeros(6, F)
    for k in range(3):
        result[2 * k + int(x[2 * k + 1] > x[2 * k])] = source[k]
    return result


def _scattered(x: np.ndarray, at: np.ndarray, updates: np.ndarray) -> np.ndarray:
    result = x.copy()
    for (i,), u in zip(at, updates, strict=True):
        if 0 <= i < 4:
            result[i] = result[i] * result[i] - u
    return result
