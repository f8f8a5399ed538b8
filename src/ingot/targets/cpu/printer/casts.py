"""Numeric conversions as LLVM IR, free of calls into compiler-rt.

LLVM turns conversions without an instruction (float to bfloat, double to half, ...) into library calls, which a blob
does not contain; they are expanded here to integer arithmetic, rounding to nearest even.
"""

from __future__ import annotations

from functools import reduce

from ingot.ir.types import DTYPES, FLOAT_FORMATS, DType, FloatFormat, f8e4m3fn, f8e5m2, f16, f32, truncation_type
from ingot.targets.cpu.printer.builder import Builder, literal, mangle, value_type, vector_of
from ingot.targets.cpu.printer.lanes import join, split


def cast(b: Builder, x: str, source: DType, target: DType, lanes: int) -> str:
    """Convert `x` as `kernel.Cast` specifies."""
    if source == target:
        return x
    if target.kind == "b":
        return _to_bool(b, x, source, lanes)
    if source.kind == "b":
        return _from_bool(b, x, target, lanes)
    if source.is_float and target.is_float:
        return _float_to_float(b, x, source, target, lanes)
    if source.is_float:
        return _float_to_int(b, x, source, target, lanes)
    if target.is_float:
        return _int_to_float(b, x, source, target, lanes)
    return _int_to_int(b, x, source, target, lanes)


def _bits(dtype: DType) -> int:
    return max(8, dtype.bits)


def _op(b: Builder, op: str, x: str, source: str, target: str, lanes: int) -> str:
    return b.emit(f"{op} {vector_of(source, lanes)} {x} to {vector_of(target, lanes)}", (x,), cheap=lanes == 1)


def _to_bool(b: Builder, x: str, source: DType, lanes: int) -> str:
    if source.is_float and source.bits < 32:
        x, source = cast(b, x, source, f32, lanes), f32
    compare = "fcmp une" if source.is_float else "icmp ne"
    return b.emit(f"{compare} {value_type(source, lanes)} {x}, zeroinitializer", (x,))


def _from_bool(b: Builder, x: str, target: DType, lanes: int) -> str:
    if not target.is_float:
        return _op(b, "zext", x, "i1", value_type(target), lanes)
    if not _has_zero(target):
        return _narrow_bits(b, _from_bool(b, x, f32, lanes), target, lanes)
    kind = value_type(target, lanes)
    one, zero = b.splat(literal(1, target), value_type(target), lanes), "zeroinitializer"
    return b.emit(f"select {vector_of('i1', lanes)} {x}, {kind} {one}, {kind} {zero}", (x,))


def _int_to_int(b: Builder, x: str, source: DType, target: DType, lanes: int) -> str:
    source_bits, target_bits = _bits(source), _bits(target)
    if target_bits > source_bits:
        x = _op(b, "sext" if source.kind == "i" else "zext", x, f"i{source_bits}", f"i{target_bits}", lanes)
    elif target_bits < source_bits:
        x = _op(b, "trunc", x, f"i{source_bits}", f"i{target_bits}", lanes)
    return x if target.bits >= 8 or (source.bits < 8 and source.kind == target.kind) else low_bits(b, x, target, lanes)


def low_bits(b: Builder, x: str, dtype: DType, lanes: int) -> str:
    """Sign- or zero-extend the low bits of bytes, which hold a sub-byte `dtype`."""
    kind, by = vector_of("i8", lanes), b.splat(str(8 - dtype.bits), "i8", lanes)
    shifted = b.emit(f"shl {kind} {x}, {by}", (x,))
    return b.emit(f"{'ashr' if dtype.kind == 'i' else 'lshr'} {kind} {shifted}, {by}", (shifted,))


def _int_to_float(b: Builder, x: str, source: DType, target: DType, lanes: int) -> str:
    op = "sitofp" if source.kind == "i" else "uitofp"
    if target.bits >= 32:
        return _op(b, op, x, f"i{_bits(source)}", value_type(target), lanes)
    # f32 holds every 16-bit integer, f64 every 32-bit one: one rounding. 64-bit values above 2**53 are far beyond
    # the precision of 16-bit floats; rounding them to f64 first can round twice at exact ties only.
    wide = "float" if source.bits <= 16 else "double"
    y = _op(b, op, x, f"i{_bits(source)}", wide, lanes)
    return _narrow(b, y, wide, target, lanes)


def _float_to_int(b: Builder, x: str, source: DType, target: DType, lanes: int) -> str:
    if source.bits < 32:
        x, source = cast(b, x, source, f32, lanes), f32
    bits = truncation_type(target).bits
    y = _truncate(b, x, source, bits, lanes)
    if target.kind == "u" and target.bits == 64:
        kind, scalar, longs = value_type(source, lanes), value_type(source), vector_of("i64", lanes)
        limit = b.splat(literal(2.0**63, source), scalar, lanes)
        reduced = _truncate(b, b.emit(f"fsub {kind} {x}, {limit}", (x,)), source, bits, lanes)
        top = b.emit(f"xor {longs} {reduced}, {b.splat(str(-(1 << 63)), 'i64', lanes)}", (reduced,))
        upper = b.emit(f"fcmp oge {kind} {x}, {limit}", (x,))
        return b.emit(f"select {vector_of('i1', lanes)} {upper}, {longs} {top}, {longs} {y}", (upper, top, y))
    return y if bits == target.bits else _int_to_int(b, y, DTYPES[f"i{bits}"], target, lanes)


# x86's truncating conversions and their lanes, by the bits of float and integer
_TRUNCATING_CONVERSIONS = {
    (32, 32): ("ps2dq", 16),
    (64, 32): ("pd2dq", 8),
    (32, 64): ("ps2qq", 8),
    (64, 64): ("pd2qq", 8),
}


def _truncate(b: Builder, x: str, source: DType, bits: int, lanes: int) -> str:
    """Truncate `x` to a signed integer of 32 or 64 bits; NaN and values out of range become the lowest integer. LLVM's
    conversion is undefined for them, and its saturating one is scalarized on x86."""
    kind, scalar, ints = value_type(source, lanes), value_type(source), vector_of(f"i{bits}", lanes)
    name, width = _TRUNCATING_CONVERSIONS[source.bits, bits]
    if lanes % width == 0 and lanes & (lanes - 1) == 0 and "avx512dq" in b.features:
        floats, words = vector_of(scalar, width), vector_of(f"i{bits}", width)
        mask_operands = ((words, "zeroinitializer"), (f"i{width}", "-1"), ("i32", "4"))
        parts = split(b, x, scalar, lanes, width)
        call = f"llvm.x86.avx512.mask.cvtt{name}.512"
        return join(b, [b.call(call, words, ((floats, y), *mask_operands)) for y in parts], f"i{bits}", width)
    limit = 1 << (bits - 1)
    magnitude = b.call(f"llvm.fabs.{mangle(scalar, lanes)}", kind, ((kind, x),))
    is_in_range = b.emit(
        f"fcmp olt {kind} {magnitude}, {b.splat(literal(float(limit), source), scalar, lanes)}", (magnitude,)
    )
    y = _op(b, "fptosi", x, scalar, f"i{bits}", lanes)
    lowest = b.splat(str(-limit), f"i{bits}", lanes)
    return b.emit(f"select {vector_of('i1', lanes)} {is_in_range}, {ints} {y}, {ints} {lowest}", (is_in_range, y))


def _float_to_float(b: Builder, x: str, source: DType, target: DType, lanes: int) -> str:
    if source.bits < 32:
        x, source = _widen(b, x, source, lanes), f32
    if target == source:
        return x
    if target.bits == 64:
        return _op(b, "fpext", x, "float", "double", lanes)
    if target.bits == 32:
        return _op(b, "fptrunc", x, "double", "float", lanes)
    return _narrow(b, x, value_type(source), target, lanes)


def _widen(b: Builder, x: str, source: DType, lanes: int) -> str:
    """Convert a 16-bit or 8-bit float to f32, exactly."""
    if source.name == "f16":
        return _half_to_float(b, x, lanes)
    ints = vector_of("i32", lanes)
    if source.name == "bf16":
        wide = _op(b, "zext", x, "i16", "i32", lanes)
        shifted = b.emit(f"shl {ints} {wide}, {b.splat('16', 'i32', lanes)}", (wide,))
        return _op(b, "bitcast", shifted, "i32", "float", lanes)
    if source not in (f8e4m3fn, f8e5m2):
        return _widen_bits(b, x, source, lanes)
    # 8-bit floats via f16: e5m2 is its upper byte; e4m3fn has the same layout shifted, with a bias of 7 instead of 15
    # (2**8), no infinity, and NaN at 0x7f.
    wide = _op(b, "zext", x, "i8", "i16", lanes)
    shorts = vector_of("i16", lanes)
    if source.name == "f8e5m2":
        shifted = b.emit(f"shl {shorts} {wide}, {b.splat('8', 'i16', lanes)}", (wide,))
        return _half_to_float(b, _op(b, "bitcast", shifted, "i16", "half", lanes), lanes)
    low = b.emit(f"and {shorts} {wide}, {b.splat('127', 'i16', lanes)}", (wide,))
    shifted = b.emit(f"shl {shorts} {low}, {b.splat('7', 'i16', lanes)}", (low,))
    sign = b.emit(f"shl {shorts} {wide}, {b.splat('8', 'i16', lanes)}", (wide,))
    sign = b.emit(f"and {shorts} {sign}, {b.splat('-32768', 'i16', lanes)}", (sign,))
    bits = b.emit(f"or {shorts} {shifted}, {sign}", (shifted, sign))
    y = _half_to_float(b, _op(b, "bitcast", bits, "i16", "half", lanes), lanes)
    floats = vector_of("float", lanes)
    scaled = b.emit(f"fmul {floats} {y}, {b.splat(literal(256.0, f32), 'float', lanes)}", (y,))
    nan = b.emit(f"icmp eq {shorts} {low}, {b.splat('127', 'i16', lanes)}", (low,))
    quiet = b.splat(literal(float("nan"), f32), "float", lanes)
    return b.emit(f"select {vector_of('i1', lanes)} {nan}, {floats} {quiet}, {floats} {scaled}", (nan, scaled))


# features with conversions of f16, by architecture; all AArch64 has them
_HALVES = {"x86_64": ("f16c", "avx512f"), "riscv64": ("zvfhmin", "zvfh")}
_HALF = FloatFormat(10, 15, 0x7BFF, 0x7C00, 0x7E00)


def _has_halves(b: Builder) -> bool:
    arch = b.features.arch
    return arch == "aarch64" or any(name in b.features for name in _HALVES.get(arch, ()))


def _half_to_float(b: Builder, x: str, lanes: int) -> str:
    if _has_halves(b):
        return _op(b, "fpext", x, "half", "float", lanes)
    ints, flags, floats = vector_of("i32", lanes), vector_of("i1", lanes), vector_of("float", lanes)

    def const(value: int) -> str:
        return b.splat(str(value), "i32", lanes)

    def op(name: str, x: str, y: str) -> str:
        return b.emit(f"{name} {ints} {x}, {y}", (x, y))

    wide = _op(b, "zext", _op(b, "bitcast", x, "half", "i16", lanes), "i16", "i32", lanes)
    low = op("and", wide, const(0x7FFF))
    normal = op("add", op("shl", low, const(13)), const(112 << 23))
    # of a subnormal: its digits below those of 2^-14, which is then taken away
    lifted = _op(b, "bitcast", op("add", normal, const(1 << 23)), "i32", "float", lanes)
    base = _op(b, "bitcast", const(113 << 23), "i32", "float", lanes)
    subnormal = _op(b, "bitcast", b.emit(f"fsub {floats} {lifted}, {base}", (lifted, base)), "float", "i32", lanes)
    is_subnormal = b.emit(f"icmp ult {ints} {low}, {const(0x400)}", (low,))
    value = b.emit(
        f"select {flags} {is_subnormal}, {ints} {subnormal}, {ints} {normal}", (is_subnormal, subnormal, normal)
    )
    special = op("add", normal, const(112 << 23))  # infinities and NaN
    is_special = b.emit(f"icmp ugt {ints} {low}, {const(0x7BFF)}", (low,))
    value = b.emit(f"select {flags} {is_special}, {ints} {special}, {ints} {value}", (is_special, special, value))
    sign = op("shl", op("and", wide, const(0x8000)), const(16))
    return _op(b, "bitcast", op("or", value, sign), "i32", "float", lanes)


def _widen_bits(b: Builder, x: str, source: DType, lanes: int) -> str:
    """Convert a float of at most 8 bits to f32 on the bits, without subnormal f32 values, which threads may flush to
    zero."""
    form = FLOAT_FORMATS[source]
    ints, flags, floats = vector_of("i32", lanes), vector_of("i1", lanes), vector_of("float", lanes)

    def const(value: int) -> str:
        return b.splat(str(value), "i32", lanes)

    def op(name: str, x: str, y: str) -> str:
        return b.emit(f"{name} {ints} {x}, {y}", (x, y))

    wide = _op(b, "zext", x, "i8", "i32", lanes)
    code = op("and", wide, const((1 << source.bits) - 1))
    if not form.has_sign:
        # 2^-127, the smallest, is a subnormal f32
        least = b.emit(f"icmp eq {ints} {code}, zeroinitializer", (code,))
        power = op("shl", code, const(23))
        value = b.emit(f"select {flags} {least}, {ints} {const(1 << 22)}, {ints} {power}", (least, power))
    else:
        low = op("and", code, const((1 << (source.bits - 1)) - 1))
        shifted = op("shl", low, const(23 - form.mantissa))
        normal = op("add", shifted, const((127 - form.bias) << 23))
        step = (128 - form.bias) << 23
        lifted = _op(b, "bitcast", op("add", shifted, const(step)), "i32", "float", lanes)
        base = _op(b, "bitcast", const(step), "i32", "float", lanes)
        rebased = b.emit(f"fsub {floats} {lifted}, {base}", (lifted, base))
        subnormal = _op(b, "bitcast", rebased, "float", "i32", lanes)
        is_subnormal = b.emit(f"icmp ult {ints} {low}, {const(1 << form.mantissa)}", (low,))
        magnitude = b.emit(
            f"select {flags} {is_subnormal}, {ints} {subnormal}, {ints} {normal}", (is_subnormal, subnormal, normal)
        )
        sign = op("and", op("shl", code, const(32 - source.bits)), const(-(1 << 31)))
        value = op("or", magnitude, sign)
    if not form.has_negative_zero:
        is_nan = b.emit(f"icmp eq {ints} {code}, {const(form.nan)}", (code,))
        value = b.emit(f"select {flags} {is_nan}, {ints} {const(0x7FC00000)}, {ints} {value}", (is_nan, value))
    return _op(b, "bitcast", value, "i32", "float", lanes)


def _narrow(b: Builder, x: str, wide: str, target: DType, lanes: int) -> str:
    """Convert a float or double to a 16-bit or 8-bit float, rounding once."""
    if wide == "double" and not _has_zero(target):  # values that underflow to 0 in f32 become NaN
        x = _op(b, "fptrunc", x, "double", "float", lanes)
    elif wide == "double":
        x = _round_to_odd(b, x, lanes)
    if target.name == "f16":
        return _to_half(b, x, lanes)
    if target.name == "bf16":
        return _to_bfloat(b, x, lanes)
    return _narrow_bits(b, x, target, lanes)


def _has_zero(dtype: DType) -> bool:
    form = FLOAT_FORMATS.get(dtype)
    return form is None or form.has_sign


def _round_to_odd(b: Builder, x: str, lanes: int) -> str:
    """double -> float such that a second rounding, to 16 bits or less, gives the result of a single rounding.

    Round towards zero and set the last bit if the result is inexact (Boldo and Melquiond, 2008).
    """
    rounded = _op(b, "fptrunc", x, "double", "float", lanes)
    widened = _op(b, "fpext", rounded, "float", "double", lanes)
    ints, longs, flags = vector_of("i32", lanes), vector_of("i64", lanes), vector_of("i1", lanes)
    doubles = vector_of("double", lanes)
    bits = _op(b, "bitcast", rounded, "float", "i32", lanes)
    # overshoot in magnitude: |widened| > |x|; both have the same sign
    a, c = (_op(b, "bitcast", v, "double", "i64", lanes) for v in (widened, x))
    top = b.splat(str((1 << 63) - 1), "i64", lanes)
    a, c = (b.emit(f"and {longs} {v}, {top}", (v,)) for v in (a, c))
    is_overshoot = b.emit(f"icmp ugt {longs} {a}, {c}", (a, c))
    step = b.emit(f"sext {flags} {is_overshoot} to {ints}", (is_overshoot,))
    toward_zero = b.emit(f"add {ints} {bits}, {step}", (bits, step))
    is_exact = b.emit(f"fcmp ueq {doubles} {widened}, {x}", (widened, x))
    odd = b.emit(f"or {ints} {toward_zero}, {b.splat('1', 'i32', lanes)}", (toward_zero,))
    result = b.emit(f"select {flags} {is_exact}, {ints} {bits}, {ints} {odd}", (is_exact, bits, odd))
    return _op(b, "bitcast", result, "i32", "float", lanes)


def _to_half(b: Builder, x: str, lanes: int) -> str:
    """Use the instruction's intrinsic if possible: LLVM 22 has no non-temporal stores of vectors of halves."""
    if lanes > 16 and lanes & (lanes - 1) == 0 and "avx512f" in b.features:
        return join(b, [_to_half(b, y, 16) for y in split(b, x, "float", lanes, 16)], "half", 16)
    if lanes == 16 and "avx512f" in b.features:
        floats, shorts = vector_of("float", lanes), vector_of("i16", lanes)
        operands = ((floats, x), ("i32", "4"), (shorts, "zeroinitializer"), ("i16", "-1"))
        y = b.call("llvm.x86.avx512.mask.vcvtps2ph.512", shorts, operands)
        return _op(b, "bitcast", y, "i16", "half", lanes)
    if not _has_halves(b):
        return _op(b, "bitcast", _narrow_bits(b, x, f16, lanes), "i16", "half", lanes)
    return _op(b, "fptrunc", x, "float", "half", lanes)


def _to_bfloat(b: Builder, x: str, lanes: int) -> str:
    """Round to nearest even, by the instruction unless a lane is subnormal, which it flushes to zero."""
    if lanes < 16 or lanes & (lanes - 1) or "avx512bf16" not in b.features:
        return _bfloat_bits(b, x, lanes)
    floats, flags, parts = vector_of("float", 16), vector_of("i1", 16), split(b, x, "float", lanes, 16)
    subnormal = [b.call("llvm.x86.avx512.fpclass.ps.512", flags, ((floats, y), ("i32", "32"))) for y in parts]
    any_subnormal = reduce(lambda p, q: b.emit(f"or {flags} {p}, {q}", (p, q)), subnormal)
    word = b.emit(f"bitcast {flags} {any_subnormal} to i16", (any_subnormal,))
    has_no_subnormal = b.emit(f"icmp eq i16 {word}, 0", (word,))
    results: list[str] = []

    def rounded(*vectors: str) -> str:
        """Round one vector, or two into one register, the upper one first."""
        name = f"llvm.x86.avx512bf16.cvtne{'2' if len(vectors) > 1 else ''}ps2bf16.512"
        lanes = 16 * len(vectors)
        result = b.call(name, vector_of("bfloat", lanes), tuple((floats, y) for y in vectors))
        return _op(b, "bitcast", result, "bfloat", "i16", lanes)

    def fast() -> None:
        if len(parts) == 1:
            results.append(rounded(*parts))
        else:
            pairs = zip(parts[1::2], parts[::2], strict=True)
            results.append(join(b, [rounded(upper, lower) for upper, lower in pairs], "i16", 32))

    quick, slow = b.branch(has_no_subnormal, fast, lambda: results.append(_bfloat_bits(b, x, lanes)))
    return b.effect(f"phi {vector_of('i16', lanes)} [ {results[0]}, %{quick.label} ], [ {results[1]}, %{slow.label} ]")


def _bfloat_bits(b: Builder, x: str, lanes: int) -> str:
    """Round on the bits: add 0x7fff and the last bit of the result, then take the upper half; preserve NaN."""
    ints, flags = vector_of("i32", lanes), vector_of("i1", lanes)
    floats = vector_of("float", lanes)
    sixteen = b.splat("16", "i32", lanes)
    bits = _op(b, "bitcast", x, "float", "i32", lanes)
    high = b.emit(f"lshr {ints} {bits}, {sixteen}", (bits,))
    last_bit = b.emit(f"and {ints} {high}, {b.splat('1', 'i32', lanes)}", (high,))
    half = b.emit(f"add {ints} {last_bit}, {b.splat('32767', 'i32', lanes)}", (last_bit,))
    rounded = b.emit(f"add {ints} {bits}, {half}", (bits, half))
    nan = b.emit(f"fcmp uno {floats} {x}, {x}", (x,))
    quiet = b.emit(f"or {ints} {bits}, {b.splat('4194304', 'i32', lanes)}", (bits,))
    result_bits = b.emit(f"select {flags} {nan}, {ints} {quiet}, {ints} {rounded}", (nan, quiet, rounded))
    upper_half = b.emit(f"lshr {ints} {result_bits}, {sixteen}", (result_bits,))
    return _op(b, "trunc", upper_half, "i32", "i16", lanes)


def _narrow_bits(b: Builder, x: str, target: DType, lanes: int) -> str:
    """f32 -> a float of at most 16 bits, on the bits.

    Normal results round in place; subnormal ones round by adding a power of two whose last place is the subnormal
    step.
    """
    form = _HALF if target == f16 else FLOAT_FORMATS[target]
    mantissa, bias = form.mantissa, form.bias
    ints, flags, floats = vector_of("i32", lanes), vector_of("i1", lanes), vector_of("float", lanes)

    def const(value: int) -> str:
        return b.splat(str(value), "i32", lanes)

    def op(name: str, x: str, y: str) -> str:
        return b.emit(f"{name} {ints} {x}, {y}", (x, y))

    bits = _op(b, "bitcast", x, "float", "i32", lanes)
    magnitude = op("and", bits, const(0x7FFFFFFF))
    shift_bits = 23 - mantissa
    # ties to even; away from zero if the mantissa has no bits
    last_bit = op("and", op("lshr", magnitude, const(shift_bits)), const(1)) if mantissa else const(1)
    rounded = op("add", op("add", magnitude, last_bit), const((1 << (shift_bits - 1)) - 1))
    normal = op("sub", op("lshr", rounded, const(shift_bits)), const((127 - bias) << mantissa))
    if form.has_sign:
        # smallest step 2**(1 - bias - mantissa) is the last place of this power of two
        magic = (1 - bias - mantissa + 23 + 127) << 23
        lifted = _op(b, "bitcast", magnitude, "i32", "float", lanes)
        shift = _op(b, "bitcast", const(magic), "i32", "float", lanes)
        added = b.emit(f"fadd {floats} {lifted}, {shift}", (lifted, shift))
        subnormal = op("sub", _op(b, "bitcast", added, "float", "i32", lanes), const(magic))
    else:
        # a subnormal f32 above 2^-127, the smallest power
        upper = b.emit(f"icmp ugt {ints} {magnitude}, {const(1 << 22)}", (magnitude,))
        subnormal = b.emit(f"zext {flags} {upper} to {ints}", (upper,))
    is_subnormal = b.emit(f"icmp ult {ints} {magnitude}, {const((128 - bias) << 23)}", (magnitude,))
    value = b.emit(
        f"select {flags} {is_subnormal}, {ints} {subnormal}, {ints} {normal}", (is_subnormal, subnormal, normal)
    )
    is_too_large = b.emit(f"icmp ugt {ints} {value}, {const(form.top)}", (value,))
    huge = b.emit(f"icmp ugt {ints} {magnitude}, {const((254 - 127 + 127) << 23)}", (magnitude,))
    if form.has_sign:
        is_too_large = b.emit(f"or {flags} {is_too_large}, {huge}", (is_too_large, huge))
    value = b.emit(
        f"select {flags} {is_too_large}, {ints} {const(form.overflow)}, {ints} {value}", (is_too_large, value)
    )
    is_nan = b.emit(f"icmp ugt {ints} {magnitude}, {const(0x7F800000)}", (magnitude,))
    if not form.has_sign:
        is_negative = b.emit(f"icmp slt {ints} {bits}, {const(1)}", (bits,))  # zeros and negative numbers
        is_nan = b.emit(f"or {flags} {is_nan}, {is_negative}", (is_nan, is_negative))
    value = b.emit(f"select {flags} {is_nan}, {ints} {const(form.nan)}, {ints} {value}", (is_nan, value))
    if form.has_sign:
        sign = op("and", op("lshr", bits, const(32 - target.bits)), const(1 << (target.bits - 1)))
        if not form.has_negative_zero:
            is_zero = b.emit(f"icmp eq {ints} {value}, zeroinitializer", (value,))
            sign = b.emit(f"select {flags} {is_zero}, {ints} zeroinitializer, {ints} {sign}", (is_zero, sign))
        value = op("or", value, sign)
    return _op(b, "trunc", value, "i32", f"i{_bits(target)}", lanes)
