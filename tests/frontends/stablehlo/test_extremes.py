"""Numbers of a program at their extremes: an answer or an error of Ingot's, and no work that grows with them."""

from __future__ import annotations

import pytest

import ingot
from ingot.support.errors import IngotError
from tests.frontends.stablehlo.programs import PROGRAMS

FAR = (1 << 63) - 1
TEXTS = {p.name: p.text for p in PROGRAMS}
# a program, what it has, and what it gets instead
CASES = [
    ("dot_general", "contracting_dims = [2]", "contracting_dims = [{}]"),
    ("dot_general", "batching_dims = [0]", "batching_dims = [{}]"),
    ("argmax", "across dimensions = [1]", "across dimensions = [{}]"),
    ("fold_of_its_own", "across dimensions = [1]", "across dimensions = [{}]"),
    ("convolution", "[b, 0, f]x", "[b, {}, f]x"),
    ("convolution", "stride = [1]", "stride = [{}]"),
    ("convolution", "pad = [[1, 0]]", "pad = [[1, {}]]"),
    ("slice_pad", "high = [1, 0]", "high = [1, {}]"),
    ("running_sum", "array<i64: 6, 1>", "array<i64: {}, 1>"),
    ("pool_from_2", "window_strides = array<i64: 2>", "window_strides = array<i64: {}>"),
    ("pool_from_2", "window_strides = array<i64: 2>", "window_strides = array<i64: 2, {}>"),
]


@pytest.mark.parametrize("number", [-1 << 63, -1, 9, 1 << 40, FAR])
@pytest.mark.parametrize(("name", "old", "new"), CASES)
def test_an_extreme_number(name: str, old: str, new: str, number: int) -> None:
    assert old in TEXTS[name]
    text = TEXTS[name].replace(old, new.format(number))
    with pytest.raises(IngotError) as e:
        ingot.compile(text, cache=False, threads=1, limits=ingot.Limits(seconds=10))
    assert "report" not in str(e.value)


@pytest.mark.parametrize("batch", [-1, 2, FAR])
def test_batch_dimensions_that_there_are_not(batch: int) -> None:
    text = f"""func.func public @main(%x: tensor<2x3xf32>, %i: tensor<2xi32>) -> tensor<2xf32> {{
      %0 = "stablehlo.torch_index_select"(%x, %i) <{{dim = 1 : i64, batch_dims = {batch} : i64}}>
        : (tensor<2x3xf32>, tensor<2xi32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }}"""
    with pytest.raises(IngotError, match="batch dimensions"):
        ingot.compile(text, cache=False, threads=1)


@pytest.mark.parametrize("declared", ["tensor<i64>", "tensor<4xf32>", "tensor<3x1xf32>"])
def test_a_result_of_another_type_than_declared(declared: str) -> None:
    text = f"func.func public @main(%x: tensor<3xf32>) -> {declared} {{\n  return %x : {declared}\n}}"
    with pytest.raises(IngotError, match="result of @main"):
        ingot.compile(text, cache=False, threads=1)


@pytest.mark.parametrize(("name", "old", "new"), [
    ("convolution", "pad = [[1, 0]]", "pad = [[1, -7]]"), ("pool_from_2", "2>}>", "2>, PADDING}>"),
])  # fmt: skip
def test_windows_over_less_than_nothing(name: str, old: str, new: str) -> None:
    """A size of 0 with other padding is an empty result; of less than 0 there is none."""
    text = TEXTS[name].replace(old, new.replace("PADDING", "padding = dense<[[1, -8]]> : tensor<1x2xi64>"))
    assert text != TEXTS[name]
    with pytest.raises(IngotError, match="cropped below nothing"):
        ingot.compile(text, cache=False, threads=1)


def test_a_function_whose_result_has_no_type() -> None:
    text = """func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = call @f(%x) : (tensor<3xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>
    }
    func.func private @f(%x: tensor<3xf32>) -> tensor<3x24xx6xf32> {
      return %x : tensor<3xf32>
    }"""
    with pytest.raises(IngotError, match="a result of @f"):
        ingot.compile(text, cache=False, threads=1)
