"""Index arithmetic: every form of an index has the value of the plain one."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, dim_max, symbol
from ingot.ir.kernel import Ramp, integer
from ingot.schedule import index as ix
from tests.ops.evaluate import evaluate

S, T = symbol("s"), symbol("t")
I = k.var("i")


def value(e: k.Expr, **env: int) -> int:
    return int(evaluate(e, {n: np.asarray(v, np.int64) for n, v in env.items()}))


BELOW_ZERO = [(1 - dim_max(0, S - 5)) // 2, (S - 4) // T, (S - 1) // T + 1, (S - 4) % T]  # floors, not whole parts


@pytest.mark.parametrize(
    "d", [7, S * 3 + T - 2, (S * T + 5) // 4, ceildiv(S, 16), (S + 3) % 4, -1 % T, dim_max(S, T * 2), *BELOW_ZERO]
)
def test_dimensions(d: object) -> None:
    from ingot.ir.dims import substitute

    for s, t in ((0, 2), (1, 1), (1, 3), (9, 4), (16, 3)):
        assert value(ix.dim_expr(d), s=s, t=t) == substitute(d, {"s": s, "t": t})  # type: ignore[arg-type]


def test_ramps_stay_ramps() -> None:
    r = k.ramp(I, 8)
    e = ix.add(ix.mul(ix.sub(r, integer(2)), integer(3)), integer(5))
    assert isinstance(e, Ramp) and e.step == 3 and value(e.base, i=4) == 3 * (4 - 2) + 5
    assert ix.lane_step(e) == 3 and ix.lane_step(k.splat(I, 8)) == 0 and ix.lane_step(k.mul(r, r)) is None


def test_division_inside_a_block_stays_a_ramp() -> None:
    r = k.ramp(k.add(I, integer(8)), 8)
    assert isinstance(ix.rem(r, integer(16), {"i": 8}), Ramp)
    assert ix.div(r, integer(16), {"i": 8}).lanes == 1
    assert not isinstance(ix.rem(r, integer(16), {"i": 4}), Ramp)  # may straddle a multiple of 16
    assert not isinstance(ix.rem(r, integer(12), {"i": 8}), Ramp)


def test_multiples() -> None:
    e = k.add(k.mul(I, integer(6)), integer(4))
    assert ix.multiple_of(e, {"i": 4}) == 4 and ix.multiple_of(integer(0), {}) == 0


@pytest.mark.parametrize("extents", [(3, 4, 5), (7,), (2, 1, 3), (1, 1)])
def test_delinearize_is_the_inverse_of_linear(extents: tuple[int, ...]) -> None:
    strides = tuple(int(np.prod(extents[d + 1 :])) for d in range(len(extents)))
    for flat in range(int(np.prod(extents))):
        at = ix.delinearize(I, extents, {})
        assert [value(e, i=flat) for e in at] == [int(v) for v in np.unravel_index(flat, extents)]
        assert value(ix.linear(at, strides), i=flat) == flat


def test_linear_joins_what_split_took_apart() -> None:
    parts = ix.split(I, (1, 4, 5))
    index = ix.linear(parts, (20, 5, 1), 3)
    for flat in range(20):
        assert value(index, i=flat) == flat + 3
        assert value(ix.linear(parts, (40, 7, 1)), i=flat) == flat // 5 * 7 + flat % 5
