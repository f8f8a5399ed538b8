"""Rewriting of kernel IR: every expression once, so that sharing is preserved, and unchanged parts are reused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from ingot.ir.kernel.grammar import (
    Alloc,
    Body,
    Buffer,
    Expr,
    For,
    Gather,
    If,
    Increment,
    Let,
    Lit,
    Load,
    Prefetch,
    Stmt,
    Store,
    TileLoad,
    Var,
)
from ingot.ir.kernel.verify import children


class Rewriter:
    """Base of rewriters. A subclass overrides `variable`, `buffer` and `expr`, whose argument has new operands.

    images: (an old expression, its new one), by the id of the old one, which stays alive so that no other gets its id.
    """

    def __init__(self) -> None:
        self.images: dict[int, tuple[Expr, Expr]] = {}

    def variable(self, v: Var) -> Var:
        return v

    def buffer(self, b: Buffer) -> Buffer:
        return b

    def expr(self, e: Expr) -> Expr:
        return e

    def body(self, body: Body) -> Body:
        return tuple(self.statement(s) for s in body)

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case Let():
                var, value = self.variable(s.var), self.of(s.value)
                return s if var is s.var and value is s.value else Let(var, value)
            case Store():
                buffer, index, value = self.buffer(s.buffer), self.of(s.index), self.of(s.value)
                mask = s.mask and self.of(s.mask)
                unchanged = buffer is s.buffer and index is s.index and value is s.value and mask is s.mask
                return s if unchanged else replace(s, buffer=buffer, index=index, value=value, mask=mask)
            case For():
                header = {"var": self.variable(s.var), "begin": self.of(s.begin), "end": self.of(s.end)}
                return replace(s, body=self.body(s.body), **header)
            case If():
                return replace(s, cond=self.of(s.cond), then=self.body(s.then), orelse=self.body(s.orelse))
            case Alloc():
                return Alloc(self.buffer(s.buffer))
            case Increment():
                return Increment(self.variable(s.var), self.buffer(s.buffer), self.of(s.index))
            case Prefetch():
                return Prefetch(self.buffer(s.buffer), self.of(s.index))
        return s

    def of(self, e: Expr) -> Expr:
        if isinstance(e, Lit):
            return e
        if isinstance(e, Var):
            return self.variable(e)
        pair = self.images.get(id(e))
        if pair is None:
            pair = self.images[id(e)] = e, self.rebuilt(e)
        return pair[1]

    def rebuilt(self, e: Expr) -> Expr:
        images: dict[int, Expr] = {}
        for c in children(e):
            if (image := self.of(c)) is not c:
                images[id(c)] = image
        if images:
            e = with_operands(e, images)
        if isinstance(e, Load | Gather | TileLoad) and (buffer := self.buffer(e.buffer)) is not e.buffer:
            e = replace(e, buffer=buffer)
        return self.expr(e)


def with_operands(e: Expr, images: Mapping[int, Expr]) -> Expr:
    """Return `e` with other operands, by the ids of its present ones."""
    values = {f.name: getattr(e, f.name) for f in fields(e)}
    changed = {name: images[id(v)] for name, v in values.items() if id(v) in images}
    groups = {name: v for name, v in values.items() if isinstance(v, tuple) and any(id(a) in images for a in v)}
    return replace(e, **changed, **{name: tuple(images.get(id(a), a) for a in v) for name, v in groups.items()})


__all__ = ["Rewriter", "with_operands"]
