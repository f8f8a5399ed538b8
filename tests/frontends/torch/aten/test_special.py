"""Special functions against PyTorch's, whose f64 is within 2e-7 for Bessel functions, 3e-6 for Airy's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ingot.frontends.torch import export_module, import_exported
from tests.frontends.torch.agree import Function, agree, close, run

INF, NAN = float("inf"), float("nan")
GRID = torch.cat(
    [
        torch.linspace(-30, 30, 801, dtype=torch.float64),
        torch.tensor([0, -0.0, 1e-300, 1e-9, 2, 4.5, 5, 8, 1, -1, 100, 1e6, INF, -INF, NAN], dtype=torch.float64),
    ]
)
UNARY = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "erfc",
    "erfcx",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
]
POLYNOMIALS = [
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_argument(name: str) -> None:
    function: Any = getattr(torch.special, name)
    x = GRID[~(GRID < -5)] if name == "erfcx" else GRID  # it grows as exp(x^2)
    agree(function, x, tolerance=5e-6)
    for dtype in (torch.float32, torch.int32, torch.bool):
        narrow = torch.linspace(-4, 30, 69).to(dtype)
        got = run(import_exported(export_module(Function(function).eval(), (narrow,))), narrow)
        close(got, function(narrow.double()).float(), 5e-6)  # PyTorch's own f32 is within 1e-5


def test_quantiles_of_the_normal_distribution() -> None:
    p = torch.tensor([0, 5e-324, 1e-300, 1e-45, 1e-7, 0.07, 0.075, 0.3, 0.5, 0.9, 1 - 1e-16, 1, -0.1, 2, float("nan")])
    agree(torch.special.ndtri, torch.cat([p.double(), torch.linspace(0, 1, 101).double()]), tolerance=1e-14)
    agree(torch.special.ndtri, p)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_of_any_degree(name: str) -> None:
    function: Any = getattr(torch.special, name)
    edges = torch.tensor([0, 1, -1, 1e-9, 1 - 1e-9, 1e-9 - 1, 0.5, -0.5], dtype=torch.float64)
    x = torch.cat([torch.linspace(-1.5, 1.5, 41, dtype=torch.float64), edges])[:, None]
    degrees = torch.arange(-2, 20, dtype=torch.float64)
    agree(function, x, degrees, tolerance=1e-9)
    agree(lambda x: (function(x, 5), function(x.float(), 5), function(0.5, x * 4)), x[:, 0], tolerance=1e-5)


def test_wronskians() -> None:
    x = torch.linspace(0.1, 40, 500, dtype=torch.float64)
    s = torch.special

    def products(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = s.bessel_j1(x) * s.bessel_y0(x) - s.bessel_j0(x) * s.bessel_y1(x)
        second = s.modified_bessel_i0(x) * s.modified_bessel_k1(x) + s.modified_bessel_i1(x) * s.modified_bessel_k0(x)
        return first * torch.pi * x / 2, second * x

    model = agree(products, x)
    for product in run(model, x):
        torch.testing.assert_close(product, torch.ones_like(x), rtol=0, atol=1e-13)


def test_incomplete_gamma_functions() -> None:
    a = torch.tensor([0, 1e-3, 0.5, 1, 2, 7.3, 30, 200, 1e3, 9e3, 2e4, 1e6, INF, -1], dtype=torch.float64)[:, None]
    near = [0.1, 1, 5, 10, 29, 31, 190, 210, 950, 1050, 9000, 9100, 19900, 20200, 1e6, 1e6 + 1000, 1e6 - 2000]
    x = torch.tensor([0, 1e-9, *near, INF, -2], dtype=torch.float64)
    agree(lambda a, x: (torch.special.gammainc(a, x), torch.special.gammaincc(a, x)), a, x, tolerance=1e-9)
    agree(torch.special.gammaincc, a.float()[1:8], x.float()[1:9])


def test_zeta() -> None:
    s = torch.tensor([0.5, 1, 1.5, 2, 3, 4, 10, 33], dtype=torch.float64)[:, None]
    q = torch.tensor([-30.5, -20.25, -3.7, -1, -0.5, 0, 0.1, 1, 2.5, 10, 100, 1e6], dtype=torch.float64)
    agree(torch.special.zeta, s, q, tolerance=1e-12)
    agree(lambda q: (torch.special.zeta(3.0, q), torch.special.zeta(q, 2)), q[6:].float())
