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


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x.to(torch.get_default_dtype()).double()


def _narrow(y: Tensor, x: Tensor) -> Tensor:
    return y.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


def _series(z: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    square = 1 / (z * z)
    value = torch.full_like(z, coefficients[-1])
    for c in coefficients[-2::-1]:
        value = value * square + c
    return value


def lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|, in f64; infinite at 0 and the negative integers."""
    a = _wide(x)
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
    return _narrow(torch.where(low, torch.where(torch.isinf(a), math.inf, reflected), value), x)


def digamma(x: Tensor) -> Tensor:
    """The derivative of log gamma(x), in f64; NaN at the negative integers, infinite at 0."""
    a = _wide(x)
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
    return _narrow(torch.where(a == 0, zero, torch.where(low, reflected, value)), x)
