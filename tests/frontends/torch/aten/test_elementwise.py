"""Elementwise ops, comparisons, activations, type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from tests.frontends.torch.agree import Function, agree, run

INF, NAN = math.inf, math.nan


def floats(dtype: torch.dtype = torch.float32) -> Tensor:
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 3.0, 1e-6, -7.25, 20.5, INF, -INF, NAN])
    return special.to(dtype)


def ints(dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor([0, 1, 5, 7, 9, 100, 3, 2]).to(dtype)


UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.abs,
    torch.neg,
    torch.sign,
    torch.floor,
    torch.ceil,
    torch.round,
    torch.trunc,
    torch.exp,
    torch.expm1,
    torch.log,
    torch.log1p,
    torch.log2,
    torch.log10,
    torch.sqrt,
    torch.rsqrt,
    torch.reciprocal,
    torch.square,
    torch.sigmoid,
    torch.tanh,
    torch.erf,
    torch.erfinv,
    torch.isnan,
    torch.isinf,
    torch.isfinite,
    torch.logical_not,
    torch.signbit,
    torch.nan_to_num,
    torch.isposinf,
    torch.isneginf,
    F.relu,
    F.relu6,
    F.silu,
    F.hardswish,
    F.hardsigmoid,
    F.hardtanh,
    F.leaky_relu,
    F.elu,
    F.selu,
    F.celu,
    F.softsign,
    F.hardshrink,
    lambda x: F.softshrink(x, 0.3),
    F.logsigmoid,
    lambda x: F.threshold(x, 0.1, -3.0),
    lambda x: x.clamp(-1, 2),
    lambda x: x.clamp(min=0.5),
    lambda x: x.clamp(max=torch.tensor(0.25)),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x**0.5,
    lambda x: x**-1,
    lambda x: x**-0.5,
    lambda x: 2.0**x,
    lambda x: torch.where(x > 0, x, 0.0),
    lambda x: x.masked_fill(x < 0, -9),
    lambda x: torch.round(x, decimals=1),
    lambda x: 1 - x,
    lambda x: torch.rsub(x, 2, alpha=3),
    lambda x: x == 1,
    lambda x: x != x,
    lambda x: x >= 0.5,
    lambda x: x % 2.5,
    lambda x: torch.fmod(x, 2.5),
    lambda x: x // 2,
    lambda x: torch.div(x, 1.5, rounding_mode="trunc"),
]


@pytest.mark.parametrize("index", range(len(UNARY)))
def test_unary_on_special_values(index: int) -> None:
    agree(UNARY[index], floats())


TRANSCENDENTAL = [
    torch.sin,
    torch.cos,
    torch.tan,
    torch.asin,
    torch.acos,
    torch.atan,
    torch.sinh,
    torch.cosh,
    torch.asinh,
    torch.atanh,
    torch.exp2,
    torch.erfc,
    F.mish,
    F.gelu,
    F.softplus,
    F.tanhshrink,
    torch.sinc,
    torch.deg2rad,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.softplus(x, 2.0, 0.5),
    lambda x: torch.logit(x, 0.1),
    lambda x: torch.acosh(1 + x.abs()),
    torch.frac,
]


@pytest.mark.parametrize("index", range(len(TRANSCENDENTAL)))
def test_unary_on_the_unit_interval(index: int) -> None:
    agree(TRANSCENDENTAL[index], torch.linspace(-0.9, 0.9, 13).reshape(13, 1))


@pytest.mark.parametrize("function", [torch.exp2, torch.erfc, torch.sinc])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_small_values_are_as_right_as_large_ones(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.tensor([-7.7, -1.5, 0.0, 0.3, 2.45, 2.55, 3.25, 9.3, 15.3, 100.3, INF, -INF, NAN]).to(dtype)
    model = import_exported(export_module(Function(function).eval(), (x,)))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(run(model, x), function(x), rtol=4 * eps + 1e-11, atol=eps**2, equal_nan=True)
    agree(function, torch.tensor([-2, 0, 1, 3], dtype=torch.int8))


def test_hypot_of_integers() -> None:
    """Their magnitudes are taken as floats: the lowest integer has none."""
    x = torch.tensor([[-128], [3], [0]], dtype=torch.int8)
    agree(torch.hypot, x, torch.tensor([-128.0, 4.0, 0.0]))
    agree(torch.hypot, x > 0, torch.tensor([-128.0, 4.0, 0.0]))


BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    torch.fmax,
    torch.fmin,
    torch.fmod,
    torch.remainder,
    torch.floor_divide,
    torch.pow,
    torch.atan2,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    torch.logical_and,
    torch.logical_or,
    torch.logical_xor,
    torch.copysign,
    torch.hypot,
    torch.heaviside,
    lambda a, b: torch.add(a, b, alpha=2),
    lambda a, b: torch.div(a, b, rounding_mode="floor"),
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    lambda a, b: torch.where(a < b, a, b),
    torch.xlogy,
    lambda a, b: torch.isclose(a, b, equal_nan=True),
    lambda a, b: torch.addcmul(a, a, b, value=0.5),
    lambda a, b: torch.lerp(a, b, 0.3),
    torch.logaddexp,
]


@pytest.mark.parametrize("index", range(len(BINARY)))
def test_binary_on_special_values(index: int) -> None:
    a = floats()
    agree(BINARY[index], a.unsqueeze(1), a.flip(0).unsqueeze(0))


INTEGER: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    torch.remainder,
    torch.fmod,
    torch.floor_divide,
    torch.bitwise_and,
    torch.bitwise_or,
    torch.bitwise_xor,
    torch.eq,
    torch.lt,
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    lambda a, b: a & b,
    lambda a, b: ~a,
    lambda a, b: a << 2,
    lambda a, b: a >> 1,
    lambda a, b: torch.sqrt(a.abs()),
    lambda a, b: a.float() / b,
    lambda a, b: a * 0.5,
    lambda a, b: a.abs().sign(),
    lambda a, b: torch.floor(a),
    lambda a, b: a**2,
]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize("index", range(len(INTEGER)))
def test_binary_on_integers(index: int, dtype: torch.dtype) -> None:
    a = ints(dtype)
    a = a if dtype == torch.uint8 else a - 4
    agree(INTEGER[index], a.unsqueeze(1), torch.tensor([1, 2, 3, 7]).to(dtype))


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("left", DTYPES, ids=str)
def test_promotion(left: torch.dtype) -> None:
    """Tensors, 0-d tensors and numbers of every pair of dtypes promote as PyTorch's result_type says."""
    a = torch.tensor([0, 1, 3]).to(left)

    def mixed(a: Tensor, *others: Tensor) -> list[Tensor]:
        results = []
        for b in others:
            results += [a + b, a * b[0], torch.where(a > 1, a, b), a == b, torch.maximum(a, b), torch.cat([a, b])]
        return [*results, a + 1, a * 1.5, a / 2, a * True, 2 - a.to(torch.int32), a.square()]

    agree(mixed, a, *(torch.tensor([1, 0, 2]).to(d) for d in DTYPES), tolerance=1e-2)


def test_casts() -> None:
    x = torch.tensor([0.0, 1.7, -1.7, 100.9])
    agree(lambda x: [x.to(d) for d in (torch.int64, torch.int8, torch.bool, torch.float16, torch.bfloat16)], x)
    agree(lambda x: (x.int() + x.type_as(x.double()), x.view(torch.int32)), x)
    out_of_range = torch.tensor([-1.0, -1.7, 255.9, 256.0, 300.0, -129.0, -40000.0, 70000.0])
    agree(lambda x: (x.to(torch.uint32), x.double().to(torch.uint32)), out_of_range)
    agree(lambda x: torch.zeros(8, dtype=torch.uint8).copy_(x), out_of_range)
    far = torch.tensor([math.nan, math.inf, -math.inf, 3e9, -3e9, 2.0**31, -(2.0**31), 2.0**63, 1e19, -1e19, 1e20])
    to = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.uint64)
    for source in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        agree(lambda x: [x.to(d) for d in to], torch.cat([out_of_range, far]).to(source))
    odd = torch.tensor([2.0**31 + 5, 2.0**40 + 255.5, -(2.0**33) - 3, 2.0**70], dtype=torch.float64)
    agree(lambda x: [x.to(d) for d in to], odd)


# PyTorch computes these in f32 and rounds once; some take a number beside them as it is, others rounded (`+`, `%`)
ROUNDED_ONCE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "numbers": lambda a, b: (a * 0.3, a / 0.3, 0.3 / a, a + 0.3, 0.3 - a, a // 0.3, a % 0.3, torch.fmod(a, 0.3)),
    "0-d": lambda a, b: (a * torch.tensor(0.3), a / torch.tensor(0.3), a + torch.tensor(0.3)),
    "alpha": lambda a, b: (torch.add(a, b, alpha=0.7), torch.sub(a, b, alpha=0.7), torch.rsub(a, b, alpha=0.7)),
    "lerp": lambda a, b: (torch.lerp(a, b, 0.3), torch.lerp(a, b, 0.7), torch.lerp(a, b, b.sigmoid())),
    "products": lambda a, b: (torch.addcmul(a, b, a, value=0.3), torch.addcdiv(a, b, a, value=0.3), F.glu(a)),
    "logarithms": lambda a, b: (torch.logaddexp(a, b), a.abs().log2(), a.abs().log10(), F.logsigmoid(a)),
    "degrees": lambda a, b: (torch.hypot(a, b), torch.deg2rad(a), torch.rad2deg(a), torch.round(a, decimals=2)),
    "thresholds": lambda a, b: (F.threshold(a, 0.1, 0.7), F.hardshrink(a, 0.1), F.softshrink(a, 0.1)),
    "rows": lambda a, b: (a.view(16, 32).renorm(2, 0, 0.3), F.rms_norm(a.view(16, 32) / 64, (32,))),
    "bags": lambda a, b: (
        F.embedding_bag(
            torch.arange(16).view(2, 8), a.view(16, 32), None, None, 2.0, False, "sum", False, b[:16].view(2, 8)
        ),
    ),
    "division": lambda a, b: [torch.div(a, b, rounding_mode=mode) for mode in (None, "floor", "trunc")],
    "whole": lambda a, b: [torch.div(a, 0.3, rounding_mode=mode) for mode in ("floor", "trunc")],
    "powers": lambda a, b: (a**2, a**3, a.abs() ** 0.3, a.abs() ** -0.5),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_narrow_floats_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = ((torch.randn(512) * torch.exp2(torch.randint(-6, 3, (512,)))).to(dtype) for _ in range(2))
    net = Function(ROUNDED_ONCE[name]).eval()
    got, want = run(import_exported(export_module(net, (a, b))), a, b), net(a, b)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype == dtype
        torch.testing.assert_close(g, w, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny, equal_nan=True)
        assert (g == w).float().mean() > 0.98


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sign_bits(dtype: torch.dtype) -> None:
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    x = torch.cat([floats(dtype), -floats(dtype)])
    x = torch.cat([x, (x[-2:].view(bits) | torch.iinfo(bits).min).view(dtype)])  # a negative NaN
    assert x.isnan().logical_and(x.signbit()).any()
    agree(lambda x: (x.signbit(), torch.ones_like(x).copysign(x), x.copysign(x.flip(0)).signbit()), x)


def test_prelu_and_glu() -> None:
    x = torch.randn(2, 6, 5)
    agree(
        lambda x, w: (F.prelu(x, w), F.prelu(x, w[:1]), F.prelu(-x[0, 0, 0], w[:1]), F.glu(x, 1), F.glu(x[:, :, :4])),
        x,
        torch.rand(6),
    )


def test_gamma_functions() -> None:
    """Computed in f64: the worst of 45,000 samples is 9.5e-15 off for lgamma, 5.5e-13 for digamma (beside a pole)."""
    edges = torch.tensor([0.0, -0.0, 1, 2, -1, -2, math.inf, -math.inf, math.nan, 0.5, -0.5, 1e30, -3.5, 8, 7.9999])
    x = torch.cat([torch.randn(200) * 5, torch.rand(200) * 3, edges])
    agree(lambda x: (x.lgamma(), x.digamma()), x, tolerance=1e-6)
    agree(lambda x: (x.lgamma(), x.digamma()), x[:400].double(), tolerance=1e-11)
    agree(lambda x, n: (torch.ldexp(x, n), torch.dist(x, x * 2)), torch.randn(5), torch.tensor([0, 1, -3, 10, -20]))


@pytest.mark.parametrize("value", [True, False])
def test_whether_all_or_any_are_true(value: bool) -> None:
    """As models ask it that check themselves (VITS)."""
    aten = torch.ops.aten
    for x in (torch.full((3, 4), value), torch.eye(3).bool(), torch.zeros(0, dtype=torch.bool)):
        agree(lambda x: (aten._is_all_true(x), aten._is_any_true(x)), x)


def test_the_sign_of_a_quotient_of_0() -> None:
    zeros = torch.tensor([0.0, -0.0, 0.5, -0.0, 0.0, 1e-42])
    divisors = torch.tensor([1.0, 1.0, 3.0, -2.0, -torch.inf, torch.inf])
    compiled = torch.compile(lambda a, b: torch.floor_divide(a, b), backend="ingot", fullgraph=True)
    with torch.no_grad():
        got, want = compiled(zeros, divisors), torch.floor_divide(zeros, divisors)
    assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())
