"""What quantizers of PyTorch write, against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the library's ops
from torch import Tensor, nn

import ingot
from ingot import ops
from ingot.support.errors import UnsupportedOpError
from tests.frontends.torch.agree import agree

q = torch.ops.quantized_decomposed
X = torch.linspace(-2.1, 2.4, 3 * 5 * 8).reshape(3, 5, 8) ** 3
SCALES = torch.linspace(0.013, 0.11, 5)
ZEROS = torch.arange(-2, 3)


def test_one_scale() -> None:
    """Numbers and tensors; the whole range of a type and less of it; an i32 has no levels of its own."""

    def full(x: Tensor) -> Tensor:
        levels = q.quantize_per_tensor(x, 0.0517, 3, -128, 127, torch.int8)
        return q.dequantize_per_tensor(levels, 0.0517, 3, -128, 127, torch.int8)

    agree(full, X)
    agree(lambda x: q.quantize_per_tensor(x, 0.0517, 100, 5, 240, torch.uint8), X)
    agree(lambda x: q.quantize_per_tensor(x, 2**-14, 0, -(2**31), 2**31 - 1, torch.int32), X)

    def with_scale(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        levels = q.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        return q.dequantize_per_tensor.tensor(levels, scale, zero, 0, 255, torch.uint8)

    agree(with_scale, X, torch.tensor(0.0517), torch.tensor(7))


def test_scales_along_an_axis() -> None:
    def channels(x: Tensor) -> tuple[Tensor, Tensor]:
        levels = q.quantize_per_channel(x, SCALES, ZEROS, 1, -127, 127, torch.int8)
        return levels, q.dequantize_per_channel(levels, SCALES, ZEROS, 1, -127, 127, torch.int8)

    agree(channels, X)
    groups = torch.arange(-60, 60, dtype=torch.int8).reshape(10, 12)
    scales = torch.linspace(0.1, 0.4, 30).reshape(10, 3)
    agree(
        lambda x: x @ q.dequantize_per_channel_group(groups, scales, None, -128, 127, torch.int8, 4, torch.float32),
        torch.randn(2, 10),
    )


def test_scales_of_what_is_known_at_run_time() -> None:
    def dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, zero = q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
        return scale, zero, q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)

    def tokens(x: Tensor) -> Tensor:
        scale, zero = q.choose_qparams_per_token_asymmetric(x, torch.int8)
        levels = q.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return q.dequantize_per_token(levels, scale, zero, -128, 127, torch.int8, torch.float32)

    for x in (X, X * 0, -abs(X)):
        agree(dynamic, x)
        agree(tokens, x)
        agree(lambda x: q.choose_qparams_symmetric.tensor(x, -127, 127, 1e-5, torch.int8), x)
        # torch runs it in other types than it says
        agree(lambda x: tuple(t.double() for t in q.choose_qparams_per_token(x, torch.int8)), x)


def test_fake_quantization() -> None:
    agree(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1013, 3, -128, 127), X)
    agree(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1013, 3, -500, 90000), X)
    zeros = ZEROS.int()
    agree(lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, zeros, 1, -2, 127), X)
    for on in (0, 1):

        def switched(x: Tensor, scale: Tensor, zero: Tensor, on: int = on) -> tuple[Tensor, Tensor]:
            enabled = torch.full((1,), on)
            return torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                x, scale, zero, enabled, -128, 127
            )

        agree(switched, X, torch.tensor(0.1013), torch.tensor(3, dtype=torch.int32))


def test_weights_of_integers() -> None:
    weight = torch.arange(-64, 64, dtype=torch.int8).reshape(16, 8)
    scales = torch.linspace(0.01, 0.1, 16)
    agree(lambda x: torch.ops.aten._weight_int8pack_mm(x, weight, scales), torch.randn(3, 8))
    agree(lambda x: nn.functional.linear(x, weight.to(x.dtype)) * scales, torch.randn(3, 8), tolerance=1e-5)
    agree(lambda a: torch.ops.aten._int_mm(a, weight.t()), torch.randint(-128, 128, (24, 8), dtype=torch.int8))


def test_products_of_levels() -> None:
    """They arrive as such: the passes see `Dequantize` on both sides."""
    weight = torch.arange(-64, 64, dtype=torch.int8).reshape(16, 8)
    scales, zeros = torch.linspace(0.01, 0.1, 16), torch.zeros(16, dtype=torch.int64)

    def linear(x: Tensor) -> Tensor:
        levels = q.quantize_per_tensor(x, 0.0517, 3, -128, 127, torch.int8)
        x = q.dequantize_per_tensor(levels, 0.0517, 3, -128, 127, torch.int8)
        return nn.functional.linear(x, q.dequantize_per_channel(weight, scales, zeros, 0, -128, 127, torch.int8))

    model = agree(linear, torch.randn(3, 8))
    assert sum(isinstance(n.op, ops.Dequantize) for n in model.graph.nodes()) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_with_packed_levels_of_4_bits(dtype: torch.dtype) -> None:
    """As torchao writes weight-only int4 for CPUs."""
    k, n, group = 128, 48, 32
    levels = torch.randint(0, 16, (n, k), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 2)
    parameters = torch.rand(k // group, n, 2).to(dtype)

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("packed", packed)
            self.register_buffer("parameters_", parameters)

        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, group, self.parameters_)

    x = torch.randn(5, k).to(dtype)
    net = Packed()
    compiled = ingot.compile(net, (x,), dynamic={"x": {0: "rows"}}, cache=False)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for rows in (x, x[:1], x.repeat(3, 1), x.repeat(9, 1)):  # more than a chunk takes, too
        torch.testing.assert_close(compiled(rows), net(rows), rtol=tolerance, atol=10 * tolerance)
    assert "u4" in compiled.dump("model")


@pytest.mark.parametrize("rows", [False, True])
def test_scaled_products_of_floats_of_8_bits(rows: bool) -> None:
    """One scale of each operand, or one for each row and column; a bias; two kinds of floats."""
    weight, bias = torch.randn(48, 64).to(torch.float8_e4m3fn), torch.randn(48).bfloat16()
    scale = torch.rand(1, 48) if rows else torch.tensor(0.5)

    def product(x: Tensor) -> Tensor:
        scale_x = (x.abs().amax(1, keepdim=True) if rows else x.abs().amax()) / 448.0
        levels = (x / scale_x).to(torch.float8_e4m3fn)
        return torch.ops.aten._scaled_mm(levels, weight.t(), scale_x, scale, bias=bias, out_dtype=torch.bfloat16)

    # both round f32 sums, in whose order they differ, to 8 bits
    agree(product, torch.randn(32, 64), tolerance=2**-7)


def test_scaled_products_with_other_scales_are_refused() -> None:
    weight, x = torch.randn(48, 64).to(torch.float8_e4m3fn), torch.randn(32, 64).to(torch.float8_e4m3fn)
    one = torch.tensor(1.0)

    class Product(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten._scaled_mm(x, weight.t(), one, one, scale_result=one, out_dtype=torch.bfloat16)

    with pytest.raises(UnsupportedOpError, match="and one of the result"):
        ingot.compile(Product(), (x,))
