"""The buffers that a body of kernel IR allocates and writes."""

from __future__ import annotations

from collections.abc import Iterator

from ingot.ir.kernel import Alloc, Body, Buffer, For, If, Stmt, Store


def written_registers(body: Body) -> set[Buffer]:
    return {s.buffer for s in _statements(body) if isinstance(s, Store) and s.buffer.space == "register"}


def allocated_buffers(body: Body) -> set[Buffer]:
    """Stack and scratch buffers of the kernel."""
    return {s.buffer for s in _statements(body) if isinstance(s, Alloc) and s.buffer.space in ("stack", "scratch")}


def _statements(body: Body) -> Iterator[Stmt]:
    """The statements of `body` and of all bodies in it."""
    for s in body:
        yield s
        match s:
            case For():
                yield from _statements(s.body)
            case If():
                yield from _statements(s.then)
                yield from _statements(s.orelse)
