from __future__ import annotations

from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch")
import sympy

from ingot.frontends.torch.convert import Sizes
from ingot.ir.dims import substitute

_symbols: Any = sympy.symbols("s0 s1", integer=True, positive=True)
_a, _b = _symbols


@pytest.mark.parametrize(
    "condition",
    [
        _a < _b, _a <= _b, _a > _b, _a >= _b, sympy.Eq(_a, _b), sympy.Ne(_a, _b), (_a > 2) & (_b > 3),
        (_a > 2) | sympy.Eq(_b, 2), ~((_a > 2) & (_b > 3)), ~((_a > 2) | (_b < _a)),
    ],
    ids=str,
)  # fmt: skip
def test_pieces_of_a_size(condition: Any) -> None:
    e: Any = sympy.Piecewise((_a * 2 + _b, condition), (_a * _b, _a > 3), (7, sympy.true))
    size = Sizes().expression(e)
    for a, b in product(range(1, 6), repeat=2):
        assert substitute(size, {"s0": a, "s1": b}) == int(e.subs({_a: a, _b: b})), (a, b)
