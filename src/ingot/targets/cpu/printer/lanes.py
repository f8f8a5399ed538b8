"""Lanes of vectors as LLVM IR: taken out, put side by side, and vectors of several registers in parts."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.targets.cpu.printer.builder import Builder, vector_of


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
    picks = ", ".join(f"i32 {p}" for p in pick)
    return b.emit(f"shufflevector {kind} {x}, {kind} {y}, <{len(pick)} x i32> <{picks}>", (x, y))


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
