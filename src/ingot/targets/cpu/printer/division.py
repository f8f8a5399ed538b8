"""Divisions without vector instructions, as LLVM IR: quotients and remainders of integers, and fmod.

If a float type holds all integers up to 2^p exactly and |x| < 2^p, the rounded quotient of x and y truncates to the
exact one: it is at least 1/|y| below the next integer, and its rounding error is less than |x / y| 2^-p.
"""

from __future__ import annotations

from ingot.ir.types import DTYPES, DType, f32, f64
from ingot.targets.cpu.printer.builder import Builder, literal, mangle, value_type, vector_of
from ingot.targets.cpu.printer.casts import cast

MAX_EXACT_DOUBLE = 1 << 53  # integers up to this are exact as doubles


def quotient(b: Builder, x: str, y: str, dtype: DType, lanes: int) -> str | None:
    """Emit the truncated x / y of integers by float division; None if that does not pay. Undefined for y = 0 and if the
    quotient overflows."""
    if lanes == 1:
        return None
    if dtype.bits == 64:
        return _long_quotient(b, x, y, dtype, lanes)
    wide = f32 if dtype.bits <= 16 else f64
    p, q = (cast(b, v, dtype, wide, lanes) for v in (x, y))
    ratio = b.emit(f"fdiv {value_type(wide, lanes)} {p}, {q}", (p, q))
    # via i32: vectors do not convert to narrower integers
    target = DTYPES[f"{dtype.kind}32"]
    op = "fptosi" if dtype.bits <= 16 or dtype.kind == "i" else "fptoui"
    truncated = b.emit(f"{op} {value_type(wide, lanes)} {ratio} to {vector_of('i32', lanes)}", (ratio,))
    return cast(b, truncated, target, dtype, lanes)


def remainder(b: Builder, x: str, y: str, dtype: DType, lanes: int) -> str | None:
    """Emit x - x / y * y of integers; None as for `quotient`."""
    q = quotient(b, x, y, dtype, lanes)
    if q is None:
        return None
    kind = value_type(dtype, lanes)
    product = b.emit(f"mul {kind} {q}, {y}", (q, y))
    return b.emit(f"sub {kind} {x}, {product}", (x, product))


def _long_quotient(b: Builder, x: str, y: str, dtype: DType, lanes: int) -> str | None:
    """Divide as doubles if all lanes fit, in a private function because it branches."""
    bits = 64 * lanes
    if "avx512dq" not in b.features or (bits != 512 and not (bits in (128, 256) and "avx512vl" in b.features)):
        return None
    sign = "s" if dtype.kind == "i" else "u"
    name, v, d, flags = f"@ingot.{sign}div.v{lanes}", f"<{lanes} x i64>", f"<{lanes} x double>", f"<{lanes} x i1>"
    # signed: shift the range up, so that one comparison tests both ends
    shifted, limit = (MAX_EXACT_DOUBLE, 2 * MAX_EXACT_DOUBLE) if sign == "s" else (0, MAX_EXACT_DOUBLE)
    b.declares.add(f"declare i1 @llvm.vector.reduce.and.v{lanes}i1({flags})")
    b.declares.add(f"""define internal {v} {name}({v} %x, {v} %y) nounwind memory(none) noinline {{
  %x.up = add {v} %x, splat (i64 {shifted})
  %y.up = add {v} %y, splat (i64 {shifted})
  %x.in = icmp ult {v} %x.up, splat (i64 {limit})
  %y.in = icmp ult {v} %y.up, splat (i64 {limit})
  %in = and {flags} %x.in, %y.in
  %all = call i1 @llvm.vector.reduce.and.v{lanes}i1({flags} %in)
  br i1 %all, label %floats, label %integers
floats:
  %p = sitofp {v} %x to {d}
  %q = sitofp {v} %y to {d}
  %ratio = fdiv {d} %p, %q
  %whole = fptosi {d} %ratio to {v}
  ret {v} %whole
integers:
  %slow = {sign}div {v} %x, %y
  ret {v} %slow
}}""")
    return b.effect(f"call {v} {name}({v} {x}, {v} {y})")  # it traps as the division instruction does


def fmod(b: Builder, x: str, y: str, dtype: DType, lanes: int) -> str:
    """Emit IEEE fmod, exact, through a private function: one division if the quotient is small, else long division on
    the bits."""
    scalar, kind = value_type(dtype), value_type(dtype, lanes)
    name = f"@ingot.fmod.{mangle(scalar, 1)}"
    b.declares.add(_fmod_ir(dtype))
    if lanes > 1:
        name = f"@ingot.fmod.{mangle(scalar, lanes)}"
        b.declares.update(_fmods_ir(b, dtype, lanes))
    return b.emit(f"call {kind} {name}({kind} {x}, {kind} {y})", (x, y))


def _fmods_ir(b: Builder, dtype: DType, lanes: int) -> list[str]:
    """The function for vectors. For |x / y| < 2^(p - 1), with p significant bits, the quotient rounds by at most 1/2,
    so its truncation is at most one too large, and |x| - q |y| is exact: it is a multiple of the last place of the
    smaller operand and below |y|. Other lanes are computed one by one, as are all lanes without a fused
    multiply-add."""
    t, v, flags = value_type(dtype), value_type(dtype, lanes), vector_of("i1", lanes)
    suffix, scalar = mangle(t, lanes), mangle(t, 1)
    small = literal(2.0 ** (23 if dtype == f32 else 52) if b.has_fma else -1.0, dtype)
    infinite, fma = literal(float("inf"), dtype), f"llvm.{'fma' if b.has_fma else 'fmuladd'}.{suffix}"
    declared = [
        f"declare {v} @llvm.fabs.{suffix}({v})",
        f"declare {v} @llvm.trunc.{suffix}({v})",
        f"declare {v} @{fma}({v}, {v}, {v})",
        f"declare {v} @llvm.copysign.{suffix}({v}, {v})",
        f"declare i1 @llvm.vector.reduce.and.v{lanes}i1({flags})",
    ]
    text = f"""define internal {v} @ingot.fmod.{suffix}({v} %x, {v} %y) nounwind memory(none) noinline {{
entry:
  %a = call {v} @llvm.fabs.{suffix}({v} %x)
  %b = call {v} @llvm.fabs.{suffix}({v} %y)
  %ratio = fdiv {v} %a, %b
  %q = call {v} @llvm.trunc.{suffix}({v} %ratio)
  %q.neg = fneg {v} %q
  %r = call {v} @{fma}({v} %q.neg, {v} %b, {v} %a)
  %over = fcmp olt {v} %r, zeroinitializer
  %r.up = fadd {v} %r, %b
  %m = select {flags} %over, {v} %r.up, {v} %r
  %fast = call {v} @llvm.copysign.{suffix}({v} %m, {v} %x)
  %near = fcmp olt {v} %ratio, splat ({t} {small})
  %finite = fcmp olt {v} %b, splat ({t} {infinite})
  %done = and {flags} %near, %finite
  %all = call i1 @llvm.vector.reduce.and.v{lanes}i1({flags} %done)
  br i1 %all, label %out, label %lane
lane:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %so.far = phi {v} [ %fast, %entry ], [ %value, %next ]
  %skip = extractelement {flags} %done, i64 %i
  br i1 %skip, label %next, label %slow
slow:
  %xi = extractelement {v} %x, i64 %i
  %yi = extractelement {v} %y, i64 %i
  %one = call {t} @ingot.fmod.{scalar}({t} %xi, {t} %yi)
  %with = insertelement {v} %so.far, {t} %one, i64 %i
  br label %next
next:
  %value = phi {v} [ %so.far, %lane ], [ %with, %slow ]
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, {lanes}
  br i1 %more, label %lane, label %out
out:
  %result = phi {v} [ %fast, %entry ], [ %value, %next ]
  ret {v} %result
}}"""
    return [*declared, text]


def _fmod_ir(dtype: DType) -> str:
    """The function for f32 or f64: reduce |x| by y scaled by powers of two, largest first; each step is exact."""
    t, i, n = value_type(dtype), f"i{dtype.bits}", dtype.bits
    mantissa = 23 if n == 32 else 52
    inf = ((1 << (n - 1 - mantissa)) - 1) << mantissa
    magnitude, nan = (1 << (n - 1)) - 1, literal(float("nan"), dtype)
    return f"""declare {i} @llvm.ctlz.{i}({i}, i1)
define internal {t} @ingot.fmod.f{n}({t} %x, {t} %y) nounwind memory(none) noinline {{
  %xb = bitcast {t} %x to {i}
  %yb = bitcast {t} %y to {i}
  %xm = and {i} %xb, {magnitude}
  %ym = and {i} %yb, {magnitude}
  %sign = xor {i} %xb, %xm
  %x.bad = icmp uge {i} %xm, {inf}
  %y.nan = icmp ugt {i} %ym, {inf}
  %y.zero = icmp eq {i} %ym, 0
  %bad.1 = or i1 %x.bad, %y.nan
  %bad = or i1 %bad.1, %y.zero
  br i1 %bad, label %invalid, label %compare
invalid:
  ret {t} {nan}
compare:
  %less = icmp ult {i} %xm, %ym
  br i1 %less, label %same, label %split
same:
  ret {t} %x
split:
{_split_ir("x", n, mantissa)}
{_split_ir("y", n, mantissa)}
  br label %step
step:
  %m = phi {i} [ %xq, %split ], [ %twice, %shift ]
  %e = phi {i} [ %xe, %split ], [ %e.less, %shift ]
  %fits = icmp uge {i} %m, %yq
  %rest = sub {i} %m, %yq
  %r = select i1 %fits, {i} %rest, {i} %m
  %done = icmp eq {i} %e, %ye
  br i1 %done, label %join, label %shift
shift:
  %twice = shl {i} %r, 1
  %e.less = sub {i} %e, 1
  br label %step
join:
  %none = icmp eq {i} %r, 0
  br i1 %none, label %nothing, label %scale
nothing:
  %zero = bitcast {i} %sign to {t}
  ret {t} %zero
scale:
{_join_ir(n, mantissa)}
  %out.bits = or {i} %mag, %sign
  %out = bitcast {i} %out.bits to {t}
  ret {t} %out
}}"""


def _split_ir(v: str, n: int, mantissa: int) -> str:
    """The magnitude %vm of a float of n bits as %vq * 2**(%ve - constant), with a normalized %vq."""
    i, hidden = f"i{n}", 1 << mantissa
    return f"""  %{v}e.raw = lshr {i} %{v}m, {mantissa}
  %{v}f = and {i} %{v}m, {hidden - 1}
  %{v}.sub = icmp eq {i} %{v}e.raw, 0
  %{v}h = or {i} %{v}f, {hidden}
  %{v}z = call {i} @llvm.ctlz.{i}({i} %{v}f, i1 false)
  %{v}s = sub {i} %{v}z, {n - 1 - mantissa}
  %{v}s.in = and {i} %{v}s, {n - 1}
  %{v}l = shl {i} %{v}f, %{v}s.in
  %{v}e.sub = sub {i} 1, %{v}s
  %{v}q = select i1 %{v}.sub, {i} %{v}l, {i} %{v}h
  %{v}e = select i1 %{v}.sub, {i} %{v}e.sub, {i} %{v}e.raw"""


def _join_ir(n: int, mantissa: int) -> str:
    """%r * 2**(%ye - constant), which is not 0, as the magnitude %mag of a float of n bits."""
    i, hidden = f"i{n}", 1 << mantissa
    return f"""  %lead = call {i} @llvm.ctlz.{i}({i} %r, i1 true)
  %up = sub {i} %lead, {n - 1 - mantissa}
  %e.norm = sub {i} %ye, %up
  %norm = icmp sgt {i} %e.norm, 0
  %up.in = and {i} %up, {n - 1}
  %r.norm = shl {i} %r, %up.in
  %r.frac = and {i} %r.norm, {hidden - 1}
  %e.bits = shl {i} %e.norm, {mantissa}
  %r.full = or {i} %r.frac, %e.bits
  %back = sub {i} %ye, 1
  %back.in = and {i} %back, {n - 1}
  %r.left = shl {i} %r, %back.in
  %forth = sub {i} 1, %ye
  %forth.in = and {i} %forth, {n - 1}
  %r.right = lshr {i} %r, %forth.in
  %left = icmp sge {i} %back, 0
  %r.sub = select i1 %left, {i} %r.left, {i} %r.right
  %mag = select i1 %norm, {i} %r.full, {i} %r.sub"""
