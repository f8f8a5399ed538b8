"""Fit the polynomials and rational functions of ir/kernel/math. Needs mpmath; prints tables.

    python tools/vecmath_fit.py [name...]

Near-minimax fits: least squares on Chebyshev points, reweighted towards the largest error (Lawson's algorithm).
Coefficients are rounded to the working type one by one, lowest first, and the others fitted again around them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import mpmath as mp
import numpy as np

mp.mp.prec = 160
Function = Callable[[mp.mpf], mp.mpf]


def nodes(a: float, b: float, count: int) -> list[mp.mpf]:
    half, mid = (mp.mpf(b) - a) / 2, (mp.mpf(b) + a) / 2
    return [mid + half * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / count) for i in range(count)]


def _weighted(columns: list[list[mp.mpf]], target: list[mp.mpf], weight: list[mp.mpf]) -> tuple[list, list]:
    """Weighted minimax solution of columns . c = target, and its errors."""
    n, rows = len(columns), len(target)
    lawson = [mp.mpf(1)] * rows
    best, best_errors, best_max = None, None, None
    for _ in range(24):
        w = [weight[i] ** 2 * lawson[i] for i in range(rows)]
        matrix = mp.matrix(n, n)
        right = mp.matrix(n, 1)
        for p in range(n):
            wp = [w[i] * columns[p][i] for i in range(rows)]
            right[p] = mp.fsum(x * y for x, y in zip(wp, target, strict=True))
            for q in range(p, n):
                matrix[p, q] = matrix[q, p] = mp.fsum(x * y for x, y in zip(wp, columns[q], strict=True))
        c = mp.lu_solve(matrix, right)
        errors = [weight[i] * (sum(columns[p][i] * c[p] for p in range(n)) - target[i]) for i in range(rows)]
        biggest = max(abs(e) for e in errors)
        if best_max is None or biggest < best_max:
            best, best_errors, best_max = [c[p] for p in range(n)], errors, biggest
        if not biggest:
            break
        lawson = [v * abs(e) / biggest + mp.mpf(2) ** -60 for v, e in zip(lawson, errors, strict=True)]
    return best, best_errors


def rounded(value: mp.mpf, dtype: type) -> float:
    # via f64: the double rounding is harmless, later coefficients absorb it
    return float(dtype(float(value)))


def polynomial(
    f: Function, a: float, b: float, terms: int, dtype: type, relative: Function | None = None, fixed: Sequence = ()
) -> list[float]:
    """Coefficients, lowest first, of f on [a, b], minimising |p - f| / |relative|; the first ones may be `fixed`."""
    xs = nodes(a, b, 8 * terms)
    wanted = [f(x) for x in xs]
    weight = [1 / abs(relative(x)) if relative else mp.mpf(1) for x in xs]
    done = [float(v) for v in fixed]
    error = mp.mpf(0)
    while len(done) < terms:
        target = [y - sum(c * x**i for i, c in enumerate(done)) for x, y in zip(xs, wanted, strict=True)]
        columns = [[x**i for x in xs] for i in range(len(done), terms)]
        solution, errors = _weighted(columns, target, weight)
        error = max(abs(e) for e in errors)
        # high coefficients matter little: round the tail at once
        take = 1 if len(done) < 3 else len(solution)
        done += [rounded(c, dtype) for c in solution[:take]]
    print(f"#   fit error 2^{float(mp.log(error, 2)):.1f}")
    return done


def show(name: str, values: Sequence[float]) -> None:
    print(f"{name} = ({', '.join(repr(v) for v in values)})")


def _exp_tail(r: mp.mpf) -> mp.mpf:
    """(e^r - 1 - r) / r^2"""
    if abs(r) < mp.mpf(2) ** -20:
        return mp.mpf(1) / 2 + r / 6 + r * r / 24
    return (mp.exp(r) - 1 - r) / (r * r)


def _log_tail(f: mp.mpf) -> mp.mpf:
    """(log(1 + f) - f + f^2/2) / f^3"""
    if abs(f) < mp.mpf(2) ** -20:
        return mp.mpf(1) / 3 - f / 4 + f * f / 5
    return (mp.log1p(f) - f + f * f / 2) / f**3


def _odd(f: Function) -> Function:
    """z -> (f(sqrt z) / sqrt z - 1) / z, the series of an odd function after its first term."""

    def g(z: mp.mpf) -> mp.mpf:
        x = mp.sqrt(z)
        if x < mp.mpf(2) ** -24:
            x = mp.mpf(2) ** -24
        return (f(x) / x - 1) / (x * x)

    return g


def _cos_tail(z: mp.mpf) -> mp.mpf:
    z = max(z, mp.mpf(2) ** -30)
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / (z * z)


def _quotient(f: Function) -> Function:
    def g(z: mp.mpf) -> mp.mpf:
        x = mp.sqrt(max(z, mp.mpf(2) ** -60))
        return f(x) / x

    return g


def _atanh_tail(z: mp.mpf) -> mp.mpf:
    """log((1+s)/(1-s)) = 2 s + 2 s z R(z), z = s^2"""
    x = mp.sqrt(max(z, mp.mpf(2) ** -60))
    return (mp.atanh(x) / x - 1) / (x * x)


def _erfc_scaled(u: mp.mpf) -> mp.mpf:
    """erfc(x) exp(x^2) as a function of u = (x - 2) / (x + 2)"""
    x = 2 * (1 + u) / (1 - u)
    return mp.erfc(x) * mp.exp(x * x)


LN2 = float(np.log(2.0))
F32, F64 = np.float32, np.float64


def fit_exp() -> None:
    wide, narrow = LN2 * 1.0001, LN2 / 2 * 1.0001
    relative = lambda r: mp.exp(r) / max(r * r, mp.mpf(2) ** -30)  # noqa: E731
    show("EXP_F32", polynomial(_exp_tail, -wide, wide, 6, F32, relative))
    show("EXP_F64", polynomial(_exp_tail, -wide, wide, 12, F64, relative))
    show("DECAY_F32", polynomial(mp.exp, -0.3473, 0.3473, 6, F32, mp.exp, fixed=(1.0,)))
    relative = lambda r: mp.expm1(r) / (r * r) if abs(r) > 1e-9 else mp.mpf(1e9)  # noqa: E731
    show("EXPM1_F32", polynomial(_exp_tail, -narrow, narrow, 5, F32, relative))
    show("EXPM1_F64", polynomial(_exp_tail, -narrow, narrow, 10, F64, relative))


def fit_log() -> None:
    a, b = float(mp.sqrt(0.5)) - 1, float(mp.sqrt(2)) - 1
    relative = lambda f: mp.log1p(f) / f**3 if abs(f) > 1e-9 else mp.mpf(1e18)  # noqa: E731
    show("LOG_F32", polynomial(_log_tail, a, b, 8, F32, relative))
    rest = lambda z: (_atanh_tail(z) - mp.mpf(1) / 3) / z if z > 1e-12 else mp.mpf(1) / 5  # noqa: E731
    show("LOG_F64_REST", polynomial(rest, 0, 0.02944, 9, F64, lambda z: 1 / max(z, mp.mpf(2) ** -40) ** 2))
    show("LOG_F64", polynomial(_atanh_tail, 0, 0.02944, 8, F64, lambda z: 1 / max(z, mp.mpf(2) ** -40)))


LOG_STEP, LOG_START = 1 << 18, 0x3F800000 - (1 << 19) // 3 - 18 * (1 << 18)


def fit_power() -> None:
    """log of f32 by a table: x c = 1 + r exactly, and -log c in two parts. The first is a multiple of 2^-17, as that of
    ln 2 is: sums of it and of multiples of ln 2 are exact. 2^(j/16) in two parts."""
    inverses, most = [], 0.0
    for i in range(32):
        ends = [float(np.uint32(LOG_START + at).view(F32)) for at in (i * LOG_STEP, (i + 1) * LOG_STEP - 1)]
        found = []
        for bits in (5, 6, 7, 8):
            # the product's last bit must not fall below that of the largest r
            last = bits + (24 if ends[0] < 0.999 else 23)
            for n in range(2**bits // 2, 2 * 2**bits):
                r = max(abs(end * n / 2**bits - 1) for end in ends)
                if r < 2.0 ** (24 - last):
                    found.append((r, n / 2**bits))
        r, c = (max(abs(end - 1) for end in ends), 1.0) if ends[0] < 1 <= ends[1] else min(found)
        inverses.append(c)
        most = max(most, r)
    logs = [-mp.log(c) for c in inverses]
    high = [float(mp.nint(v * 2**17) / 2**17) for v in logs]
    show("LOG_INVERSES", inverses)
    show("LOG_HIGH", high)
    show("LOG_LOW", [rounded(v - h, F32) for v, h in zip(logs, high, strict=True)])
    first = float(mp.nint(mp.log(2) * 2**17) / 2**17)
    show("LN2_SHORT", (first, rounded(mp.log(2) - first, F32)))
    print(f"#   |r| <= {most}")
    relative = lambda r: mp.log1p(r) / r**3 if abs(r) > 1e-9 else mp.mpf(1e18)  # noqa: E731
    show("LOG_TABLE_TAIL", polynomial(_log_tail, -most, most, 4, F32, relative))
    powers = [mp.mpf(2) ** (mp.mpf(j) / 16) for j in range(16)]
    show("EXP2_HIGH", [rounded(v, F32) for v in powers])
    show("EXP2_LOW", [rounded(v - rounded(v, F32), F32) for v in powers])
    step = mp.log(2) / 16
    show("LN2_16", (rounded(step, F32), rounded(step - rounded(step, F32), F32)))
    half = float(step) / 2 * 1.0001
    relative = lambda r: mp.exp(r) / max(r * r, mp.mpf(2) ** -30)  # noqa: E731
    show("EXP_TABLE_TAIL", polynomial(_exp_tail, -half, half, 3, F32, relative))


def fit_log1p() -> None:
    # log(1 + x) / x up to 1; at 0 it is 1
    ratio = lambda x: mp.log1p(x) / x if x > 1e-12 else mp.mpf(1)  # noqa: E731
    show("LOG1P_UNIT", polynomial(ratio, 0, 1, 10, F32, ratio, fixed=(1.0,)))


def fit_trig() -> None:
    top = float((mp.pi / 4) ** 2) * 1.0001
    show("SIN_F32", polynomial(_odd(mp.sin), 0, top, 3, F32, lambda z: 1 / max(z, mp.mpf(2) ** -30)))
    show("SIN_F64", polynomial(_odd(mp.sin), 0, top, 7, F64, lambda z: 1 / max(z, mp.mpf(2) ** -30)))
    show("COS_F32", polynomial(_cos_tail, 0, top, 3, F32, lambda z: 1 / max(z, mp.mpf(2) ** -15) ** 2))
    show("COS_F64", polynomial(_cos_tail, 0, top, 7, F64, lambda z: 1 / max(z, mp.mpf(2) ** -15) ** 2))


def fit_inverse_trig() -> None:
    relative = lambda z: 1 / max(z, mp.mpf(2) ** -30)  # noqa: E731
    show("ASIN_F32", polynomial(_odd(mp.asin), 0, 0.25, 5, F32, relative))
    show("ASIN_F64", polynomial(_odd(mp.asin), 0, 0.25, 13, F64, relative))
    top = float(mp.tan(mp.pi / 8) ** 2) * 1.0001
    show("ATAN_F32", polynomial(_odd(mp.atan), 0, top, 5, F32, relative))
    show("ATAN_F64", polynomial(_odd(mp.atan), 0, top, 13, F64, relative))


def fit_atan2() -> None:
    """atan(i/16), i <= 16, and pi/2 in two parts, the first a multiple of 2^-21."""
    angles = [mp.atan(mp.mpf(i) / 16) for i in range(17)]
    half = mp.pi / 2
    *high, first = (float(mp.nint(v * 2**21) / 2**21) for v in (*angles, half))
    show("ATAN_HIGH", high)
    show("ATAN_LOW", [rounded(v - h, F32) for v, h in zip(angles, high, strict=True)])
    show("HALF_PI_SHORT", (first, rounded(half - first, F32)))
    tail = lambda z: _odd(mp.atan)(max(z, mp.mpf(2) ** -40))  # noqa: E731
    show("ATAN_TABLE_TAIL", polynomial(tail, 0, 1.001 / 32**2, 2, F32, lambda z: 1 / max(z, mp.mpf(2) ** -30)))


def fit_tanh() -> None:
    # e^(2r) = 1 + 2 r + r^2 T(r)
    tail = lambda r: 4 * _exp_tail(2 * r)  # noqa: E731
    relative = lambda r: mp.expm1(2 * r) / (r * r) if abs(r) > 1e-9 else mp.mpf(1e9)  # noqa: E731
    show("TANH_F32", polynomial(tail, -LN2 / 4 * 1.0001, LN2 / 4 * 1.0001, 5, F32, relative))


def fit_erf() -> None:
    # erf(x) = 1 - (1 - x S(x) / 4)^4; S(0) comes in two parts, its rest in the polynomial's first coefficient
    first = rounded(2 / mp.sqrt(mp.pi), F32)
    root = lambda x: mp.erfc(x) ** mp.mpf("0.25")  # noqa: E731
    rest = lambda x: 4 * (1 - root(x)) / x - first  # noqa: E731
    # twice as exact at the end, where the result must round to 1
    scale = lambda x: mp.erf(x) / (root(x) ** 3 * x) / (1 + (x / 4) ** 8)  # noqa: E731
    tail = polynomial(rest, 2.0**-30, 4.1, 10, F32, scale)
    show("ERF_F32", (first, *tail))
    small = lambda z: _quotient(mp.erf)(z) - 1  # noqa: E731
    show("ERF_SMALL_F64", polynomial(small, 0, 1.0, 14, F64, _quotient(mp.erf)))
    a, b = (1.0 - 2) / (1 + 2), (6.0 - 2) / (6 + 2)
    show("ERFC_F64", polynomial(_erfc_scaled, a, b, 20, F64, _erfc_scaled))


def fit_gelu() -> None:
    # the normal distribution as P(-x) = root(x)^4: x P(-x) as exact as x up to 1, and as 1 beyond
    root = lambda x: mp.ncdf(-x) ** mp.mpf("0.25")  # noqa: E731
    scale = lambda x: min(1, 1 / max(x, mp.mpf(2) ** -30)) / root(x) ** 3  # noqa: E731
    show("GELU_F32", polynomial(root, 0, 5.8, 11, F32, scale))
    # relative errors up to 3.5, where those of bf16 count; absolute ones beyond, as 1 + erf has them
    root = lambda x: mp.ncdf(-x) ** mp.mpf("0.0625")  # noqa: E731
    end = 3.5 * mp.ncdf(-3.5)
    scale = lambda x: root(x) * min(300, end / (x * mp.ncdf(-x)) if x > 3.5 else 1)  # noqa: E731
    show("GELU_BF16", polynomial(root, 0, 5.8, 7, F32, scale))


def main() -> None:
    fits = {k[4:]: v for k, v in globals().items() if k.startswith("fit_")}
    for name in sys.argv[1:] or fits:
        print(f"# {name}")
        fits[name]()


if __name__ == "__main__":
    main()
