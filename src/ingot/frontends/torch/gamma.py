"""Gamma functions, which torch has no decomposition for, as torch code; decompose.py lists them.

Stirling's series from 8 up, reached by the recurrence over eight steps, and the reflection below 1/2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_STEPS = 8
# B_2k / (2k (2k - 1)) and B_2k / 2k, k = 1 ...: Abramowitz and Stegun 6.1.41, 6.3.18
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def wide(x: Tensor) -> Tensor:
    """`x` in f64; integers by way of the default dtype."""
    return x.double() if x.is_floating_point() else x.to(torch.get_default_dtype()).double()


def narrow(y: Tensor, x: Tensor) -> Tensor:
    """`y` in the dtype of a function of `x`."""
    return y.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


def _series(z: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    square = 1 / (z * z)
    value = torch.full_like(z, coefficients[-1])
    for c in coefficients[-2::-1]:
        value = value * square + c
    return value


def lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|, in f64; infinite at 0 and the negative integers."""
    a = wide(x)
    low = a < 0.5
    z = torch.where(low, 1 - a, a)
    product, top = torch.ones_like(z), z
    for i in range(_STEPS):
        product = product * torch.where(z < _STEPS, z + i, 1.0)
    top = torch.where(z < _STEPS, z + _STEPS, z)
    value = (top - 0.5) * (torch.log(top) - 1) - 0.5 + 0.5 * math.log(2 * math.pi) + _series(top, _STIRLING) / top
    value = torch.where(torch.isinf(z), math.inf, value - torch.log(product))
    sine = torch.sin(math.pi * (a - torch.round(a))).abs()
    reflected = math.log(math.pi) - torch.log(sine) - value
    return narrow(torch.where(low, torch.where(torch.isinf(a), math.inf, reflected), value), x)


def digamma(x: Tensor) -> Tensor:
    """The derivative of log gamma(x), in f64; NaN at the negative integers, infinite at 0."""
    a = wide(x)
    low = a < 0.5
    z = torch.where(low, 1 - a, a)
    steps = torch.zeros_like(z)
    for i in range(_STEPS):
        steps = steps + torch.where(z < _STEPS, 1 / (z + i), 0.0)
    top = torch.where(z < _STEPS, z + _STEPS, z)
    square = 1 / (top * top)
    value = torch.log(top) - 0.5 / top - square * _series(top, _DIGAMMA) - steps
    value = torch.where(torch.isinf(z), math.inf, value)
    rest = a - torch.round(a)
    reflected = value - math.pi / torch.tan(math.pi * rest)
    reflected = torch.where((rest == 0) | torch.isinf(a), math.nan, reflected)
    zero = torch.where(torch.signbit(a), math.inf, -math.inf)
    return narrow(torch.where(a == 0, zero, torch.where(low, reflected, value)), x)


# B_2k / (2k)!, k = 1 ...: Abramowitz and Stegun 23.2
_BERNOULLI = tuple(b / math.factorial(2 * k) for k, b in enumerate(
    (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510), 1))  # fmt: skip
_TERMS = 12


def _zeta(s: int, q: Tensor) -> Tensor:
    """Hurwitz' zeta function for s > 1 and q > 0: the first terms of its sum, the rest by Euler and Maclaurin."""
    value = torch.zeros_like(q)
    for i in range(_TERMS):
        value = value + (q + i) ** -float(s)
    a = q + _TERMS
    value = value + a ** (1.0 - s) / (s - 1) + a ** -float(s) / 2
    factor, power = float(s), a ** (-s - 1.0)
    for k, b in enumerate(_BERNOULLI):
        value = value + b * factor * power
        factor, power = factor * (s + 2 * k + 1) * (s + 2 * k + 2), power / (a * a)
    return torch.where(torch.isinf(q), 0.0, value)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma, in f64; below 1/2 by the reflection, whose cotangent's derivatives are
    polynomials in it: d/dx cot(pi x) = -pi (1 + cot^2). 0 at infinity, where PyTorch has NaN from n = 2 on."""
    if n == 0:
        return digamma(x)
    a = wide(x)
    low = a < 0.5
    z = torch.where(low, 1 - a, a)
    value = -((-1.0) ** n) * math.factorial(n) * _zeta(n + 1, z)
    derivative = [0.0, 1.0]  # of cot, by its powers
    for _ in range(n):
        slopes = [i * c for i, c in enumerate(derivative)][1:]
        derivative = [
            -math.pi * ((slopes[i] if i < len(slopes) else 0) + (slopes[i - 2] if 0 <= i - 2 < len(slopes) else 0))
            for i in range(len(slopes) + 2)
        ]
    rest = a - torch.round(a)
    cotangent = 1 / torch.tan(math.pi * rest)
    turn = torch.zeros_like(a)
    for c in reversed(derivative):
        turn = turn * cotangent + c
    reflected = (-1.0) ** n * value - math.pi * turn
    pole = torch.full_like(a, math.inf if n % 2 else -math.inf)
    reflected = torch.where(rest == 0, pole, torch.where(torch.isinf(a), math.nan, reflected))
    return narrow(torch.where(low, reflected, value), x)
