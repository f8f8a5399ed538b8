"""Canonical forms of sizes: what is equal is written alike."""

from __future__ import annotations

import operator
import random

from ingot.ir.dims import (
    DimLike,
    bounds,
    ceildiv,
    dim_max,
    dim_min,
    exact_quotient,
    floordiv,
    mod,
    narrow_bounds,
    parse_dim,
    substitute,
    symbol,
)

S = symbol("s")


def test_quotients_of_quotients() -> None:
    # a 3x3 convolution of stride 2, three times
    assert (((S + 1) // 2 + 1) // 2 + 1) // 2 == (S + 7) // 8
    rng = random.Random(0)
    for _ in range(200):
        n, m = rng.randint(1, 7), rng.randint(1, 7)
        inner, outer = rng.randint(-4, 4), rng.randint(-4, 4)
        nested = floordiv(floordiv(S + inner, n) + outer, m)
        for s in range(1, 30):
            assert substitute(nested, {"s": s}) == ((s + inner) // n + outer) // m


def test_quotients_of_negative_sizes() -> None:
    assert floordiv(-S, 2) == -((S + 1) // 2) and floordiv(5 - S, 3) == -((S - 3) // 3)
    rng = random.Random(1)
    for _ in range(200):
        n, slope, plus = rng.randint(1, 7), rng.randint(-5, 5), rng.randint(-9, 9)
        quotient = floordiv(slope * S + plus, n)
        for s in range(12):
            assert substitute(quotient, {"s": s}) == (slope * s + plus) // n


def test_no_size_is_as_large_as_an_end_that_means_all() -> None:
    end = 2**63 - 1
    assert dim_min(end, S + 1) == S + 1 == dim_min(S + 1, end)
    assert dim_max(S, end) == end


def test_bounds_of_sums_with_extremes() -> None:
    assert bounds(S - 1 - dim_max(0, S - 3)) == (0, 2)
    assert dim_min(dim_max(0, S - 3), S) == dim_max(0, S - 3)
    assert bounds(S - dim_min(5, S), {"s": (0, 64)}) == (0, 59)


def test_sums_divide_products_of_them() -> None:
    n, b = S // 3 - 1, symbol("b")
    assert exact_quotient(4 * b * n * n, n * n) == 4 * b and exact_quotient(4 * b * n * n, n) == 4 * b * n
    assert exact_quotient(b * S * S - b, S + 1) == b * S - b and exact_quotient(b * S + 1, S + 1) is None


def test_bounds_narrow_from_both_sides() -> None:
    assert narrow_bounds(S // 4 - 3, {"s": (1, 100)}) == {"s": (12, 100)}
    assert narrow_bounds(S - 5, {"s": (1, 5)}) == {"s": (5, 5)} and narrow_bounds(S - 5, {"s": (1, 4)}) is None
    assert narrow_bounds(7 - S // 2, {"s": (2, 100)}) == {"s": (2, 15)}


def test_the_two_parts_of_a_number_are_the_number() -> None:
    p, n = symbol("p.0"), symbol("n")
    assert n + dim_max(p, 0) - dim_max(-p, 0) == n + p
    assert 2 * dim_max(-p, 0) - 2 * dim_max(p, 0) == -2 * p
    assert dim_max(p - 3, 0) - dim_max(3 - p, 0) + 3 == p
    # of other factors they stay
    assert 2 * dim_max(p, 0) - dim_max(-p, 0) != p


def test_quotients_beside_other_terms_are_bounded_together() -> None:
    n = symbol("n")
    assert bounds(floordiv(n, 3) + 1 - ceildiv(n, 3)) == (0, 1)
    assert bounds(n - 2 * floordiv(n, 2)) == (0, 1)
    assert dim_min(floordiv(n, 3) + 1, ceildiv(n, 3)) == ceildiv(n, 3)
    assert bounds(floordiv(n, 2) - floordiv(n, 3))[0] == 0


def test_bounds_hold() -> None:
    """Of sums of quotients, with random factors, at random sizes."""
    rng = random.Random(0)
    n, m = symbol("n"), symbol("m")
    for _ in range(500):
        d: DimLike = rng.randint(-3, 3) + rng.randint(-2, 2) * n
        for _ in range(rng.randint(1, 3)):
            a = rng.randint(-2, 3) * n + rng.randint(-2, 2) * m + rng.randint(-7, 7)
            d = d + rng.randint(-3, 3) * floordiv(a, rng.choice([1, 2, 3, 4, 6]))
        low, high = bounds(d)
        for _ in range(5):
            value = substitute(d, {"n": rng.randint(1, 30), "m": rng.randint(1, 30)})
            assert isinstance(value, int)
            assert (low is None or low <= value) and (high is None or value <= high), (d, low, high, value)


def test_what_stands_beside_an_extreme_goes_into_it_where_it_gets_shorter() -> None:
    n, m, p = symbol("n"), symbol("m"), symbol("p.0")
    assert n + dim_max(256 - n, 0) == dim_max(n, 256)
    assert n - dim_max(n - 3, 0) == dim_min(n, 3) and dim_max(n // 4 - 1, 0) + 1 == n // 4 + dim_max(1 - n // 4, 0)
    assert -dim_max(-p, 0) == dim_min(p, 0) and dim_max(p, m) + dim_min(p, m) == m + p
    assert dim_max(n, 2) - dim_max(n - 2, 0) == 2 and dim_min(p, m) + 2 * dim_max(m - p, 0) == dim_max(m, 2 * m - p)
    assert dim_max(dim_max(p, m), 7) == dim_max(m, dim_max(7, p)) == dim_max(dim_max(m, 7), dim_max(p, m))
    assert dim_min(2 * n, 2 * m + 6) == 2 * dim_min(n, m + 3) and dim_max(n + 5, m + 5) == dim_max(n, m) + 5
    assert 4 * (n // 4) + n % 4 == n and 3 * n % 7 + 7 * floordiv(3 * n, 7) - 3 * n == 0
    # a product with an extreme keeps its sign
    assert bounds(m * dim_max(n - p, 0))[0] == 0


def test_the_algebra_is_that_of_integers() -> None:
    """Random expressions, told by sizes and by numbers, are equal wherever they are evaluated, and within bounds."""
    rng = random.Random(1)
    names = ("n", "m", "e", "p.0")
    operations = {
        "+": (operator.add, operator.add), "-": (operator.sub, operator.sub), "*": (operator.mul, operator.mul),
        "//": (floordiv, operator.floordiv), "%": (mod, operator.mod), "max": (dim_max, max), "min": (dim_min, min),
    }  # fmt: skip
    for _ in range(200):
        points = [{k: rng.randint(-9 if "." in k else int(k != "e"), 40) for k in names} for _ in range(6)]
        pool: list[tuple[DimLike, list[int]]] = [(symbol(k, k == "e"), [at[k] for at in points]) for k in names]
        for _ in range(rng.randint(2, 9)):
            name = rng.choice(("+", "+", "-", "-", "*", "//", "%", "max", "max", "min", "min"))
            (a, u), (b, v) = rng.choice(pool), rng.choice(pool)
            if name in ("//", "%") or rng.random() < 0.3:
                b = rng.randint(1, 9) if name in ("//", "%") else rng.randint(-9, 9)
                v = [b] * len(points)
            size, number = operations[name]
            pool.append((size(a, b), [number(x, y) for x, y in zip(u, v, strict=True)]))
        for d, values in pool:
            low, high = bounds(d)
            assert parse_dim(str(d)) == d
            for at, value in zip(points, values, strict=True):
                assert substitute(d, at) == value, (d, at)
                assert (low is None or low <= value) and (high is None or value <= high), (d, low, high, at)
