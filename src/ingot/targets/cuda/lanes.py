"""Triton functions of values with one element a lane, and how their operations are printed: products of quads of lanes,
and sums of many values over all lanes.

A tile of one row with as many elements as a program has lanes is laid out in their order, so that instructions of a
whole warp can be applied to it.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.types import bf16, f16

_SUMS = '''\
@triton.jit
def lane_of(a):
    return tl.arange(0, a.shape[1])[None, :] % 32


@triton.jit
def exchanged(a, b, BIT: tl.constexpr):
    """The sum of a over two lanes whose numbers differ in BIT, in the lower one; in the other, that of b."""
    is_upper = lane_of(a) & BIT != 0
    given = tl.where(is_upper, a, b)
    taken = tl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;", "=f,f,r", [given, BIT], tl.float32, is_pure=True, pack=1
    )
    return tl.where(is_upper, b, a) + taken
'''
_QUADS = '''\
@triton.jit
def level_pair_TYPE(words, PLACE: tl.constexpr, ZERO: tl.constexpr):
    """Levels at PLACE of both halves of words, less ZERO: first they are or-ed into the fraction of a power of two."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 p; lop3.b32 p, $1, 0x000F000F, $2, 0xEA; sub.rn.TYPEx2 $0, p, $3; }", "=r,r,r,r",
        [words >> PLACE, POWER, POWER + 0x00010001 * ZERO], tl.uint32, is_pure=True, pack=1,
    )


@triton.jit
def quad_products_TYPE(a, b, w, x, y, z, ZERO: tl.constexpr):
    """`QuadProduct` of both rows by tensor cores: a warp's quads of `a` are rows 0 to 7 of a matrix, those of `b` rows
    8 to 15, and those of the terms are the columns of another."""
    a0, b0 = level_pair_TYPE(a, 0, ZERO), level_pair_TYPE(b, 0, ZERO)
    a1, b1 = level_pair_TYPE(a, 4, ZERO), level_pair_TYPE(b, 4, ZERO)
    a2, b2 = level_pair_TYPE(a, 8, ZERO), level_pair_TYPE(b, 8, ZERO)
    a3, b3 = level_pair_TYPE(a, 12, ZERO), level_pair_TYPE(b, 12, ZERO)
    c, d, e, f = tl.inline_asm_elementwise(
        """{ .reg .f32 s<4>;
        mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 {s0, s1, s2, s3}, {$4, $5, $6, $7}, {$8, $9},
            {0f00000000, 0f00000000, 0f00000000, 0f00000000};
        mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 {$0, $1, $2, $3}, {$10, $11, $12, $13}, {$14, $15},
            {s0, s1, s2, s3}; }""",
        "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,r,r,r", [a0, b0, a1, b1, w, x, a2, b2, a3, b3, y, z],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
    )
    is_odd = lane_of(a) // 4 % 2 == 1
    return tl.where(is_odd, d, c), tl.where(is_odd, f, e)
'''
_TYPES = {bf16: ("bf16", "0x43004300"), f16: ("f16", "0x64006400")}  # 128 and 1024, whose last bits are ones
LANES_PRELUDE = "\n\n".join(
    [_SUMS, *(_QUADS.replace("TYPE", name).replace("POWER", power) for name, power in _TYPES.values())]
)


def lanes_text(e: k.QuadProduct | k.LaneSums, of: Callable[[k.Expr], str], assign: Callable[[str], str]) -> str:
    """of: the text of an operand. assign: assigns a text to a variable."""
    if isinstance(e, k.QuadProduct):
        name, _ = _TYPES[e.term_dtype]
        return f"quad_products_{name}({', '.join(map(of, (*e.words, *e.terms)))}, {e.zero})[{e.row}]"
    sums, bit = [of(v) for v in e.values], 16
    while len(sums) > 1:  # halves of the lanes exchange the sums of each other's values, until a lane has one
        pairs = zip(sums[: len(sums) // 2], sums[len(sums) // 2 :], strict=True)
        sums, bit = [assign(f"exchanged({a}, {b}, {bit})") for a, b in pairs], bit // 2
    shape = e.values[0].lanes // 32, len(e.values), 32 // len(e.values)
    return f"tl.reduce(tl.reduce(tl.reshape({sums[0]}, {shape}), 2, fold_add), 0, fold_add)[None, :]"


__all__ = ["LANES_PRELUDE", "lanes_text"]
