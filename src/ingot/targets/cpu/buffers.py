"""Which buffers a piece of kernel IR makes and writes."""

from __future__ import annotations

from ingot.ir.kernel import Alloc, Body, Buffer, For, If, Store


def stored_registers(body: Body) -> set[Buffer]:
    out: set[Buffer] = set()
    for s in body:
        match s:
            case Store(buffer) if buffer.space == "register":
                out.add(buffer)
            case For():
                out |= stored_registers(s.body)
            case If():
                out |= stored_registers(s.then) | stored_registers(s.orelse)
    return out


def allocated(body: Body) -> set[Buffer]:
    """Stack and scratch buffers of the kernel."""
    out: set[Buffer] = set()
    for s in body:
        match s:
            case Alloc(buffer) if buffer.space in ("stack", "scratch"):
                out.add(buffer)
            case For():
                out |= allocated(s.body)
            case If():
                out |= allocated(s.then) | allocated(s.orelse)
    return out
