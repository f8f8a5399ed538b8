"""Arithmetic of kernel IR as LLVM IR: one function per expression class, on operands that are already printed.

f16 and bf16 arithmetic is computed in f32 and rounded after each operation, which gives the correctly rounded result of
+ - * / and sqrt (24 >= 2 * 11 + 2 bits; Figueroa 1995) and needs no library call.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.types import DType, f32, i8, i16, i32
from ingot.support.errors import CompileError
from ingot.targets.cpu.printer import division
from ingot.targets.cpu.printer.builder import Builder, literal, mangle, value_type, vector_of
from ingot.targets.cpu.printer.casts import cast
from ingot.targets.cpu.printer.lanes import extract, join, part, split

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER_OPS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_SHIFT_OPS = {"shl": "shl", "ashr": "ashr", "lshr": "lshr"}
_COMPARE_INT = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_COMPARE_FLOAT = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_FLOAT_INTRINSICS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round_even": "roundeven", "sqrt": "sqrt"}


def is_narrow_float(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits < 32


def unary(b: Builder, fn: str, x: str, dtype: DType, lanes: int) -> str:
    kind = value_type(dtype, lanes)
    scalar = value_type(dtype)
    if fn == "not":
        ones = b.splat("true" if dtype.kind == "b" else "-1", scalar, lanes)
        return b.emit(f"xor {kind} {x}, {ones}", (x,))
    if dtype.is_float:
        if is_narrow_float(dtype):
            return cast(b, unary(b, fn, cast(b, x, dtype, f32, lanes), f32, lanes), f32, dtype, lanes)
        if fn == "neg":
            return b.emit(f"fneg {kind} {x}", (x,))
        name = "fabs" if fn == "abs" else _FLOAT_INTRINSICS.get(fn)
        if name is None:
            raise CompileError(f"unary {fn}", expected="an integer", got=dtype)
        return b.call(f"llvm.{name}.{mangle(scalar, lanes)}", kind, ((kind, x),))
    match fn:
        case "neg":
            return b.emit(f"sub {kind} {b.splat('0', scalar, lanes)}, {x}", (x,), cheap=True)
        case "abs":
            return (
                b.call(f"llvm.abs.{mangle(scalar, lanes)}", kind, ((kind, x), ("i1", "false")))
                if dtype.kind == "i"
                else x
            )
        case "popcnt" if dtype.bits == 32 and lanes in _PAIR_SUMS and not _counts_words(b, lanes):
            return _popcount_by_bytes(b, x, lanes)
        case "popcnt":
            return b.call(f"llvm.ctpop.{mangle(scalar, lanes)}", kind, ((kind, x),))
        case "clz":
            return b.call(f"llvm.ctlz.{mangle(scalar, lanes)}", kind, ((kind, x), ("i1", "false")))
        case "floor" | "ceil" | "trunc" | "round_even":
            return x
    raise CompileError(f"unary {fn}", expected="a float", got=dtype)


def binary(b: Builder, fn: str, x: str, y: str, dtype: DType, lanes: int) -> str:
    """dtype: of the operands. min and max of floats propagate NaN; the sign of a zero is unspecified."""
    if is_narrow_float(dtype):
        wide = binary(b, fn, cast(b, x, dtype, f32, lanes), cast(b, y, dtype, f32, lanes), f32, lanes)
        return wide if fn in _COMPARE_INT else cast(b, wide, f32, dtype, lanes)
    kind = value_type(dtype, lanes)
    if fn in _COMPARE_INT:
        return _compare(b, fn, x, y, dtype, kind)
    if fn in ("min", "max", "minnum", "maxnum"):
        return _extremum(b, fn, x, y, dtype, lanes)
    if dtype.is_float:
        if fn == "copysign":
            return b.call(f"llvm.copysign.{mangle(value_type(dtype), lanes)}", kind, ((kind, x), (kind, y)))
        if fn == "rem":
            return division.fmod(b, x, y, dtype, lanes)
        if fn == "ldexp":
            shift = b.splat(literal(ldexp_shift(dtype), dtype), value_type(dtype), lanes)
            return ldexp(b, x, y, lambda: b.emit(f"fadd {kind} {y}, {shift}", (y,)), dtype, lanes)
        if fn not in _FLOAT_OPS:
            raise CompileError(f"binary {fn}", expected="an integer", got=dtype)
        return b.emit(f"{_FLOAT_OPS[fn]} {kind} {x}, {y}", (x, y))
    if fn in _INTEGER_OPS:
        return b.emit(f"{_INTEGER_OPS[fn]} {kind} {x}, {y}", (x, y), cheap=True)
    if fn in _SHIFT_OPS:
        return b.emit(f"{fn} {kind} {x}, {y}", (x, y), cheap=True)
    if fn in ("div", "rem"):
        op = ("s" if dtype.kind == "i" else "u") + fn
        if y.lstrip("-").isdigit() and int(y) not in (0, -1):
            return b.emit(f"{op} {kind} {x}, {y}", (x, y), cheap=True)
        if y[0] == "s":  # by a constant: compiled to multiplications
            return b.emit(f"{op} {kind} {x}, {y}", (x, y))
        result = division.quotient(b, x, y, dtype, lanes) if fn == "div" else division.remainder(b, x, y, dtype, lanes)
        return result or b.effect(f"{op} {kind} {x}, {y}")
    raise CompileError(f"binary {fn}", expected="an operation of kernel IR", got=dtype)


def _compare(b: Builder, fn: str, x: str, y: str, dtype: DType, kind: str) -> str:
    if dtype.is_float:
        return b.emit(f"fcmp {_COMPARE_FLOAT[fn]} {kind} {x}, {y}", (x, y))
    sign = "" if fn in ("eq", "ne") else "s" if dtype.kind == "i" else "u"
    return b.emit(f"icmp {sign}{fn} {kind} {x}, {y}", (x, y), cheap=True)


def _extremum(b: Builder, fn: str, x: str, y: str, dtype: DType, lanes: int) -> str:
    kind = value_type(dtype, lanes)
    flags = vector_of("i1", lanes)
    is_min = fn.startswith("min")
    if dtype.kind == "b":
        return b.emit(f"{'and' if is_min else 'or'} {kind} {x}, {y}", (x, y), cheap=True)
    if not dtype.is_float:
        name = f"llvm.{'s' if dtype.kind == 'i' else 'u'}{fn[:3]}.{mangle(value_type(dtype), lanes)}"
        return b.call(name, kind, ((kind, x), (kind, y)), cheap=True)
    if not fn.endswith("num"):
        # nsz: without it x86 needs five more instructions
        name = f"llvm.{'minimum' if is_min else 'maximum'}.{mangle(value_type(dtype), lanes)}"
        return b.call(name, kind, ((kind, x), (kind, y)), flags="nsz ")
    # This select is exactly minps/maxps: the second operand if either is NaN.
    test = b.emit(f"fcmp {'olt' if is_min else 'ogt'} {kind} {x}, {y}", (x, y))
    return b.emit(f"select {flags} {test}, {kind} {x}, {kind} {y}", (test, x, y))


def fma(b: Builder, x: str, y: str, z: str, dtype: DType, lanes: int) -> str:
    """Emit x * y + z. Without the instruction it rounds twice, as emulating one rounding costs 20 times as much."""
    if is_narrow_float(dtype):
        p, q, r = (cast(b, v, dtype, f32, lanes) for v in (x, y, z))
        return cast(b, fma(b, p, q, r, f32, lanes), f32, dtype, lanes)
    kind = value_type(dtype, lanes)
    if not dtype.is_float:
        product = b.emit(f"mul {kind} {x}, {y}", (x, y))
        return b.emit(f"add {kind} {product}, {z}", (product, z))
    name = f"llvm.{'fma' if b.has_fma else 'fmuladd'}.{mangle(value_type(dtype), lanes)}"
    return b.call(name, kind, ((kind, x), (kind, y), (kind, z)))


def dot(b: Builder, x: str, y: str, z: str, operand: DType, dtype: DType, lanes: int, x_max: int | None = None) -> str:
    """Emit z + the products of adjacent elements of x and y: bf16 as i16, i16, or bytes, x of type `operand` and y of
    i8. x_max: no byte of an unsigned x exceeds it."""
    if operand == i16:
        return _pair_dot(b, x, y, z, lanes)
    if dtype.is_float:
        return _bf16_dot(b, x, y, z, lanes)
    return _signed_byte_dot(b, x, y, z, lanes) if operand == i8 else _byte_dot(b, x, y, z, lanes, x_max)


def _pair_dot(b: Builder, x: str, y: str, z: str, lanes: int) -> str:
    kind, pairs = vector_of("i32", lanes), f"<{2 * lanes} x i16>"
    is_wasm = b.features.arch == "wasm32" and lanes == 4
    if is_wasm or _has_pair_products(b, lanes):
        total = b.call("llvm.wasm.dot" if is_wasm else _PAIR_PRODUCTS[lanes][0], kind, ((pairs, x), (pairs, y)))
        return b.emit(f"add {kind} {z}, {total}", (z, total))
    p, q = (b.emit(f"bitcast {pairs} {v} to {kind}", (v,)) for v in (x, y))
    sixteen = b.splat("16", "i32", lanes)
    for is_even in (True, False):
        halves: list[str] = []
        for value in (p, q):
            top = b.emit(f"shl {kind} {value}, {sixteen}", (value,)) if is_even else value
            halves.append(b.emit(f"ashr {kind} {top}, {sixteen}", (top,)))
        z = fma(b, halves[0], halves[1], z, i32, lanes)
    return z


def _byte_dot(b: Builder, x: str, y: str, z: str, lanes: int, x_max: int | None) -> str:
    kind, quads = vector_of("i32", lanes), f"<{4 * lanes} x i8>"
    operands = ((kind, z), (quads, x), (quads, y))
    has_vnni512 = "avx512vnni" in b.features
    has_vnni256 = "avxvnni" in b.features or (has_vnni512 and "avx512vl" in b.features)
    if (has_vnni512 and lanes == 16) or (has_vnni256 and lanes in (4, 8)):
        return b.call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", kind, operands)
    if lanes in (2, 4) and b.features.arch == "aarch64" and "i8mm" in b.features:
        return b.call(f"llvm.aarch64.neon.usdot.v{lanes}i32.v{4 * lanes}i8", kind, operands)
    if lanes in (2, 4) and b.features.arch == "aarch64" and "dotprod" in b.features:
        # signed bytes only: x - 128, and what that takes away, which depends on y alone
        name, low = f"llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8", b.splat("-128", "i8", 4 * lanes)
        signed = b.emit(f"xor {quads} {x}, {low}", (x,))
        lost = "zeroinitializer"
        for _ in range(2):
            lost = b.call(name, kind, ((kind, lost), (quads, b.splat("64", "i8", 4 * lanes)), (quads, y)))
        inner = b.call(name, kind, ((kind, z), (quads, signed), (quads, y)))
        return b.emit(f"add {kind} {inner}, {lost}", (inner, lost))
    if _has_pair_products(b, lanes) and x_max is not None and x_max < 128:  # sums of two products have 16 bits
        pairs = f"<{2 * lanes} x i16>"
        total = _sums_of_pairs(b, b.call(_PAIR_SUMS[lanes][0], pairs, ((quads, x), (quads, y))), lanes)
        return b.emit(f"add {kind} {z}, {total}", (z, total))
    if _has_pair_products(b, lanes):
        return _paired_byte_dot(b, x, y, z, lanes, "lshr")
    p, q = (b.emit(f"bitcast {quads} {v} to {kind}", (v,)) for v in (x, y))
    for shift in range(0, 32, 8):  # unsigned bytes of x, signed bytes of y
        top = b.emit(f"shl {kind} {q}, {b.splat(str(24 - shift), 'i32', lanes)}", (q,))
        signed = b.emit(f"ashr {kind} {top}, {b.splat('24', 'i32', lanes)}", (top,))
        low = b.emit(f"lshr {kind} {p}, {b.splat(str(shift), 'i32', lanes)}", (p,))
        unsigned = b.emit(f"and {kind} {low}, {b.splat('255', 'i32', lanes)}", (low,))
        z = fma(b, unsigned, signed, z, i32, lanes)
    return z


def _signed_byte_dot(b: Builder, x: str, y: str, z: str, lanes: int) -> str:
    kind, quads = vector_of("i32", lanes), f"<{4 * lanes} x i8>"
    if lanes in (2, 4) and b.features.arch == "aarch64" and "dotprod" in b.features:
        operands = ((kind, z), (quads, x), (quads, y))
        return b.call(f"llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8", kind, operands)
    if lanes == 4 and b.features.arch == "aarch64":
        return _neon_byte_dot(b, x, y, z)
    if _has_pair_products(b, lanes):
        return _paired_byte_dot(b, x, y, z, lanes, "ashr")
    words = tuple(b.emit(f"bitcast {quads} {v} to {kind}", (v,)) for v in (x, y))
    for shift in range(24, -8, -8):
        tops = [b.emit(f"shl {kind} {w}, {b.splat(str(shift), 'i32', lanes)}", (w,)) for w in words]
        p, q = (b.emit(f"ashr {kind} {t}, {b.splat('24', 'i32', lanes)}", (t,)) for t in tops)
        z = fma(b, p, q, z, i32, lanes)
    return z


def _neon_byte_dot(b: Builder, x: str, y: str, z: str) -> str:
    """Products 0 and 2 of each lane, and 1 and 3, added in 16 bits (smull, smlal2), then in pairs to z (sadalp)."""
    order = [i for first in (0, 2) for lane in range(4) for i in (4 * lane + first, 4 * lane + first + 1)]
    total = ""
    for half in (order[:8], order[8:]):
        places = ", ".join(f"i32 {i}" for i in half)
        halves = [b.emit(f"shufflevector <16 x i8> {v}, <16 x i8> poison, <8 x i32> <{places}>", (v,)) for v in (x, y)]
        product = b.call("llvm.aarch64.neon.smull.v8i16", "<8 x i16>", tuple(("<8 x i8>", h) for h in halves))
        total = b.emit(f"add <8 x i16> {total}, {product}", (total, product)) if total else product
    pairs = b.call("llvm.aarch64.neon.saddlp.v4i32.v8i16", "<4 x i32>", (("<8 x i16>", total),))
    return b.emit(f"add <4 x i32> {z}, {pairs}", (z, pairs))


# by lanes: x86's products of pairs of 16 bits, which are added, and the feature that has them
_PAIR_PRODUCTS = {
    4: ("llvm.x86.sse2.pmadd.wd", "avx2"),
    8: ("llvm.x86.avx2.pmadd.wd", "avx2"),
    16: ("llvm.x86.avx512.pmaddw.d.512", "avx512bw"),
}


def _has_pair_products(b: Builder, lanes: int) -> bool:
    return lanes in _PAIR_PRODUCTS and _PAIR_PRODUCTS[lanes][1] in b.features


# by lanes: x86's sums of pairs of bytes, by signed factors, and the feature that has them
_PAIR_SUMS = {
    4: ("llvm.x86.ssse3.pmadd.ub.sw.128", "avx2"),
    8: ("llvm.x86.avx2.pmadd.ub.sw", "avx2"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "avx512bw"),
}


def _counts_words(b: Builder, lanes: int) -> bool:
    """Whether bits of words are counted by an instruction, or bytes cannot be summed."""
    return "avx512vpopcntdq" in b.features or _PAIR_SUMS[lanes][1] not in b.features


def _popcount_by_bytes(b: Builder, x: str, lanes: int) -> str:
    """The bits of each byte, summed in pairs and pairs of pairs."""
    kind, pairs, quads = vector_of("i32", lanes), f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"
    word_bytes = b.emit(f"bitcast {kind} {x} to {quads}", (x,))
    counts = b.call(f"llvm.ctpop.v{4 * lanes}i8", quads, ((quads, word_bytes),))
    halves = b.call(_PAIR_SUMS[lanes][0], pairs, ((quads, counts), (quads, b.splat("1", "i8", 4 * lanes))))
    return _sums_of_pairs(b, halves, lanes)


def _sums_of_pairs(b: Builder, x: str, lanes: int) -> str:
    """The sums of neighbours of 16 bits, as i32."""
    pairs = f"<{2 * lanes} x i16>"
    ones = b.splat("1", "i16", 2 * lanes)
    return b.call(_PAIR_PRODUCTS[lanes][0], vector_of("i32", lanes), ((pairs, x), (pairs, ones)))


def _paired_byte_dot(b: Builder, x: str, y: str, z: str, lanes: int, widen_x: str) -> str:
    """The even and the odd bytes as 16 bits each: exact, where products of bytes in 16 bits (pmaddubsw) saturate. What
    one operand needs for that is shared by all its products. widen_x: the shift that widens x."""
    kind, pairs, quads = vector_of("i32", lanes), f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"
    name, eight = _PAIR_PRODUCTS[lanes][0], b.splat("8", "i16", 2 * lanes)
    p, q = (b.emit(f"bitcast {quads} {v} to {pairs}", (v,)) for v in (x, y))
    for is_even in (True, False):
        halves: list[str] = []
        for value, widen in ((p, widen_x), (q, "ashr")):
            top = b.emit(f"shl {pairs} {value}, {eight}", (value,)) if is_even else value
            halves.append(b.emit(f"{widen} {pairs} {top}, {eight}", (top,)))
        total = b.call(name, kind, tuple((pairs, half) for half in halves))
        z = b.emit(f"add {kind} {z}, {total}", (z, total))
    return z


def _bf16_dot(b: Builder, x: str, y: str, z: str, lanes: int) -> str:
    kind = vector_of("float", lanes)
    if "avx512bf16" in b.features and (lanes == 16 or (lanes in (4, 8) and "avx512vl" in b.features)):
        pairs = f"<{2 * lanes} x bfloat>"
        p, q = (b.emit(f"bitcast <{2 * lanes} x i16> {v} to {pairs}", (v,)) for v in (x, y))
        return b.call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", kind, ((kind, z), (pairs, p), (pairs, q)))
    if lanes == 4 and b.features.arch == "aarch64" and "bf16" in b.features:
        p, q = (b.emit(f"bitcast <8 x i16> {v} to <8 x bfloat>", (v,)) for v in (x, y))
        for half in ("t", "b"):  # bfdot rounds in another way
            z = b.call(f"llvm.aarch64.neon.bfmlal{half}", kind, ((kind, z), ("<8 x bfloat>", p), ("<8 x bfloat>", q)))
        return z
    for half in (_odd_of_pairs, _even_of_pairs):
        z = fma(b, half(b, x, lanes), half(b, y, lanes), z, f32, lanes)
    return z


def _odd_of_pairs(b: Builder, x: str, lanes: int) -> str:
    ints = vector_of("i32", lanes)
    words = b.emit(f"bitcast <{2 * lanes} x i16> {x} to {ints}", (x,))
    high = b.emit(f"and {ints} {words}, {b.splat('-65536', 'i32', lanes)}", (words,))
    return b.emit(f"bitcast {ints} {high} to {vector_of('float', lanes)}", (high,))


def _even_of_pairs(b: Builder, x: str, lanes: int) -> str:
    ints = vector_of("i32", lanes)
    words = b.emit(f"bitcast <{2 * lanes} x i16> {x} to {ints}", (x,))
    high = b.emit(f"shl {ints} {words}, {b.splat('16', 'i32', lanes)}", (words,))
    return b.emit(f"bitcast {ints} {high} to {vector_of('float', lanes)}", (high,))


def reduce(b: Builder, fn: str, x: str, dtype: DType, lanes: int) -> str:
    """Reduce all lanes: combine halves until one lane is left, then the odd lanes."""
    if lanes == 1:
        return x
    scalar = value_type(dtype)
    if dtype.kind in "iub" and fn in ("add", "mul", "and", "or", "xor") and lanes & (lanes - 1) == 0:
        return b.call(f"llvm.vector.reduce.{fn}.{mangle(scalar, lanes)}", scalar, ((vector_of(scalar, lanes), x),))
    odd_lanes: list[str] = []
    while lanes > 1:
        if lanes % 2:
            odd_lanes.append(extract(b, x, lanes - 1, scalar, lanes))
        half = lanes // 2
        low, high = (part(b, x, scalar, lanes, start, half) for start in (0, half))
        x, lanes = binary(b, fn, low, high, dtype, half), half
    for value in odd_lanes:
        x = binary(b, fn, x, value, dtype, 1)
    return x


def ldexp_shift(dtype: DType) -> float:
    """Return the addend that makes the low bits of an even float n equal n/2 + bias."""
    fraction, bias = (23, 127) if dtype == f32 else (52, 1023)
    return 3 * 2.0**fraction + 2 * bias


def ldexp(b: Builder, x: str, n: str, emit_shifted: Callable[[], str], dtype: DType, lanes: int) -> str:
    """Emit x * 2^n. emit_shifted: emit n + ldexp_shift. Without the instruction: multiply by 2^(n/2) twice."""
    kind, bits = value_type(dtype, lanes), dtype.bits * lanes
    if "avx512f" in b.features and bits > 512 and lanes & (lanes - 1) == 0:
        scalar, width = value_type(dtype), 512 // dtype.bits
        pairs = zip(*(split(b, v, scalar, lanes, width) for v in (x, n)), strict=True)
        return join(b, [ldexp(b, y, m, emit_shifted, dtype, width) for y, m in pairs], scalar, width)
    if "avx512f" in b.features and (bits == 512 or (bits in (128, 256) and "avx512vl" in b.features)):
        name = f"llvm.x86.avx512.mask.scalef.p{'s' if dtype == f32 else 'd'}.{bits}"
        all_lanes = (f"i{max(8, lanes)}", "-1")
        rounding = (("i32", "4"),) if bits == 512 else ()
        return b.call(name, kind, ((kind, x), (kind, n), (kind, "zeroinitializer"), all_lanes, *rounding))
    s = emit_shifted()
    ints = vector_of(f"i{dtype.bits}", lanes)
    raw = b.emit(f"bitcast {kind} {s} to {ints}", (s,))
    field = b.emit(f"shl {ints} {raw}, {b.splat(str(23 if dtype == f32 else 52), f'i{dtype.bits}', lanes)}", (raw,))
    power = b.emit(f"bitcast {ints} {field} to {kind}", (field,))
    half = b.emit(f"fmul {kind} {x}, {power}", (x, power))
    return b.emit(f"fmul {kind} {half}, {power}", (half, power))
