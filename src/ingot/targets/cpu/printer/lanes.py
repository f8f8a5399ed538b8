"""Shuffles as LLVM IR: extract, concatenate and split vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ingot.targets.cpu.printer.builder import Builder, mangle, vector_of

_MAX_SHUFFLE_CHAIN = 2  # that LLVM may combine into one instruction
_FLOAT_BITS = {"float": 32, "double": 64}  # types that can be fenced


def part(b: Builder, x: str, scalar: str, lanes: int, start: int, count: int) -> str:
    """Return `count` lanes of x from `start`."""
    if count == lanes:
        return x
    if count == 1:
        return extract(b, x, start, scalar, lanes)
    return shuffle(b, x, x, tuple(range(start, start + count)), scalar, lanes)


def extract(b: Builder, x: str, lane: int, scalar: str, lanes: int) -> str:
    return x if lanes == 1 else b.emit(f"extractelement {vector_of(scalar, lanes)} {x}, i64 {lane}", (x,))


def shuffle(b: Builder, x: str, y: str, pick: tuple[int, ...], scalar: str, lanes: int) -> str:
    """Return the lanes `pick` of the concatenation of x and y."""
    if lanes == 1 and len(pick) == 1:
        return (x, y)[pick[0]]
    if lanes == 1:
        kind = f"<{len(pick)} x {scalar}>"
        out = "poison"
        for position, source in enumerate(pick):
            value = (x, y)[source]
            out = b.emit(f"insertelement {kind} {out}, {scalar} {value}, i64 {position}", (out, value))
        return out
    kind = f"<{lanes} x {scalar}>"
    if len(pick) == 1:
        source = (x, y)[pick[0] // lanes]
        return b.emit(f"extractelement {kind} {source}, i64 {pick[0] % lanes}", (source,))
    x, y = _fenced(b, x, scalar, lanes), _fenced(b, y, scalar, lanes)
    out = b.emit(f"shufflevector {kind} {x}, {kind} {y}, <{len(pick)} x i32> <{_mask_text(pick)}>", (x, y))
    b.shuffle_depth[out] = 1 + max(b.shuffle_depth.get(x, 0), b.shuffle_depth.get(y, 0))
    return out


@lru_cache(4096)
def _mask_text(pick: tuple[int, ...]) -> str:
    return ", ".join([f"i32 {p}" for p in pick])


def _fenced(b: Builder, x: str, scalar: str, lanes: int) -> str:
    """Hide from LLVM how x was computed. LLVM tries to combine chains of up to eight shuffles into one instruction,
    over all their operands; for the transpose of 16 vectors this fails and takes half of the time of code
    generation."""
    if b.shuffle_depth.get(x, 0) < _MAX_SHUFFLE_CHAIN or b.features.arch != "x86_64" or scalar not in _FLOAT_BITS:
        return x
    if lanes * _FLOAT_BITS[scalar] > (512 if "avx512f" in b.features else 256):
        return x
    kind = vector_of(scalar, lanes)
    return b.call(f"llvm.arithmetic.fence.{mangle(scalar, lanes)}", kind, ((kind, x),))


def split(b: Builder, x: str, scalar: str, lanes: int, width: int) -> list[str]:
    """Split x into vectors of `width` lanes."""
    return [part(b, x, scalar, lanes, i, width) for i in range(0, lanes, width)]


def join(b: Builder, parts: Sequence[str], scalar: str, lanes: int) -> str:
    """Concatenate a power of two of vectors of `lanes` lanes."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [shuffle(b, x, y, tuple(range(2 * lanes)), scalar, lanes) for x, y in pairs]
        lanes *= 2
    return parts[0]
