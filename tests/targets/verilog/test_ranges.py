from __future__ import annotations

import pytest

from ingot.support.errors import CompileError
from ingot.targets.verilog.nest import Nest
from ingot.targets.verilog.ranges import exact, ranges, width


@pytest.mark.parametrize(
    ("limits", "bits"), [((0, 0), 1), ((0, 1), 2), ((-1, 0), 1), ((-128, 127), 8), ((-129, 0), 9), ((0, 255), 9)]
)
def test_the_width_of_a_signed_wire(limits: tuple[int, int], bits: int) -> None:
    assert width(limits) == bits


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "min", "max", "div", "rem", "ashr", "lshr", "shl"])
def test_ranges_hold_all_results(fn: str) -> None:
    """By trying them all: div and rem truncate."""
    left = [(-9, 5), (0, 7), (-4, -2), (3, 3)]
    right = [(1, 4), (2, 2), (0, 3)] if fn in ("ashr", "lshr", "shl") else [(1, 4), (3, 3)]
    right = right if fn in ("div", "rem", "ashr", "lshr", "shl") else [*right, (-3, 2)]
    truncated = {
        "div": lambda x, y: abs(x) // y * (1 if x >= 0 else -1),
        "rem": lambda x, y: abs(x) % y * (1 if x >= 0 else -1),
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "min": min, "max": max,
        "ashr": lambda x, y: x >> y, "lshr": lambda x, y: x >> y, "shl": lambda x, y: x << y,
    }  # fmt: skip
    for a in left if fn != "lshr" else [r for r in left if r[0] >= 0]:
        for b in right:
            low, high = exact(fn, [a, b], "i32")
            for x in range(a[0], a[1] + 1):
                for y in range(b[0], b[1] + 1):
                    assert low <= truncated[fn](x, y) <= high


def test_a_sum_has_the_bits_of_its_terms_and_an_overflow_wraps() -> None:
    def nest(terms: int) -> Nest:
        values = (
            ("literal", "i32", 0),
            ("acc", "i32"),
            ("literal", "i64", 0),
            ("load", "i32", 0, 2),
            ("add", "i32", 1, 3),
        )
        return Nest("n", (("x", "i32"), ("y", "i32")), (4,), (terms,), values, 0, 4, (1, 2, 1))

    assert ranges(nest(10), [(-128, 127), (0, 0)])[4] == (-1280, 1270)
    assert ranges(nest(1 << 26), [(-128, 127), (0, 0)])[4] == (-(1 << 31), (1 << 31) - 1)


def test_division_by_what_may_be_zero_is_refused() -> None:
    with pytest.raises(CompileError, match="got div"):
        exact("div", [(0, 9), (0, 3)], "i32")
