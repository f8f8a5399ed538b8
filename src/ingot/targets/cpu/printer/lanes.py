"""Lanes of vectors as LLVM IR: taken out, put side by side, and vectors of several registers in parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ingot.targets.cpu.printer.builder import Builder, mangle, vector_of

_CHAIN = 2  # shuffles that one instruction may be found for
_FLOATS = {"float": 32, "double": 64}  # what can be fenced


def part(b: Builder, x: str, scalar: str, lanes: int, start: int, count: int) -> str:
    """`count` lanes of x from `start`."""
    if count == lanes:
        return x
    if count == 1:
        return extract(b, x, start, scalar, lanes)
    return shuffle(b, x, x, tuple(range(start, start + count)), scalar, lanes)


def extract(b: Builder, x: str, lane: int, scalar: str, lanes: int) -> str:
    return x if lanes == 1 else b.emit(f"extractelement {vector_of(scalar, lanes)} {x}, i64 {lane}", (x,))


def shuffle(b: Builder, x: str, y: str, pick: tuple[int, ...], scalar: str, lanes: int) -> str:
    """Lanes `pick` of the concatenation of x and y."""
    if lanes == 1 and len(pick) == 1:
        return (x, y)[pick[0]]
    if lanes == 1:
        kind = f"<{len(pick)} x {scalar}>"
        out = "poison"
        for at, source in enumerate(pick):
            value = (x, y)[source]
            out = b.emit(f"insertelement {kind} {out}, {scalar} {value}, i64 {at}", (out, value))
        return out
    kind = f"<{lanes} x {scalar}>"
    if len(pick) == 1:
        source = (x, y)[pick[0] // lanes]
        return b.emit(f"extractelement {kind} {source}, i64 {pick[0] % lanes}", (source,))
    x, y = _fenced(b, x, scalar, lanes), _fenced(b, y, scalar, lanes)
    out = b.emit(f"shufflevector {kind} {x}, {kind} {y}, <{len(pick)} x i32> <{_picks(pick)}>", (x, y))
    b.shuffles[out] = 1 + max(b.shuffles.get(x, 0), b.shuffles.get(y, 0))
    return out


@lru_cache(4096)
def _picks(pick: tuple[int, ...]) -> str:
    return ", ".join([f"i32 {p}" for p in pick])


def _fenced(b: Builder, x: str, scalar: str, lanes: int) -> str:
    """x, of which LLVM is not to look where it came from. It looks for single instructions that do what chains of up
    to eight shuffles do, along all their operands: for the transpose of 16 vectors, where there are none to be found,
    half of the time of code generation."""
    if b.shuffles.get(x, 0) < _CHAIN or b.features.arch != "x86_64" or scalar not in _FLOATS:
        return x
    if lanes * _FLOATS[scalar] > (512 if "avx512f" in b.features else 256):
        return x
    kind = vector_of(scalar, lanes)
    return b.call(f"llvm.arithmetic.fence.{mangle(scalar, lanes)}", kind, ((kind, x),))


def split(b: Builder, x: str, scalar: str, lanes: int, most: int) -> list[str]:
    """`most` lanes of x after the other."""
    return [part(b, x, scalar, lanes, i, most) for i in range(0, lanes, most)]


def join(b: Builder, parts: Sequence[str], scalar: str, lanes: int) -> str:
    """A power of two of vectors of `lanes` side by side."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [shuffle(b, x, y, tuple(range(2 * lanes)), scalar, lanes) for x, y in pairs]
        lanes *= 2
    return parts[0]
