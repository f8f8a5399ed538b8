"""Expressions of kernel IR as values of LLVM IR, printed where a statement needs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any

from ingot.ir.kernel import (
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Dot,
    Either,
    Expr,
    Extract,
    Fma,
    Gather,
    Lit,
    Load,
    Lookup,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Splat,
    Unary,
    Var,
)  # fmt: skip
from ingot.ir.types import i64
from ingot.support.errors import CompileError
from ingot.targets.cpu.printer import values
from ingot.targets.cpu.printer.affine import Affine, constant, weighted
from ingot.targets.cpu.printer.builder import Builder, literal, mangle, storage_type, value_type, vector_of
from ingot.targets.cpu.printer.casts import cast, low_bits
from ingot.targets.cpu.printer.lanes import extract, shuffle
from ingot.targets.cpu.printer.lookup import by_permutation, lookup

_NATURAL = frozenset({"mul", "div", "rem", "min"})  # of numbers that are not negative they make such numbers


class Expressions:
    """The values that are known at one place of a function, and how to get more of them."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self.vars: dict[str, Affine | str] = {}
        self.pointers: dict[Buffer, str] = {}
        self.scopes_of: dict[Buffer, str] = {}  # alias scopes, as an access has them
        self.registers: dict[Buffer, dict[int, str]] = {}
        self.loads: dict[str, str] = {}
        self.single: set[str] = set()  # masks that are known to let lane 0 through alone
        self.shared: dict[int, str] = {}  # id of an expression of this statement -> its value
        self.sums: dict[int, Affine] = {}  # the same for scalar i64
        self.linear: dict[int, tuple[int, list[tuple[int, Expr]]]] = {}  # id of a sum -> see `_flatten`

    def value(self, e: Expr) -> str:
        """The value's text; instructions it needs are printed on the way."""
        if e.lanes == 1 and e.dtype == i64 and type(e) in (Binary, Var, Lit):
            return self.affine(e).value(self.b)
        # expressions share operands: walked as trees, vector math would take exponential time
        found = self.shared.get(id(e))
        if found is None:
            found = self.shared[id(e)] = _VALUE_OF[type(e)](self, e)
        return found

    def affine(self, e: Expr) -> Affine:
        """A scalar i64 as constant + sum of coefficient * value."""
        if isinstance(e, Var):
            bound = self.vars.get(e.name)
            if bound is None:
                raise CompileError(f"variable {e.name}", expected="a binding", got="none")
            return Affine.of(bound) if isinstance(bound, str) else bound
        if isinstance(e, Lit):
            return constant(int(e.value))
        if isinstance(e, Binary):
            found = self.sums.get(id(e))
            if found is None:
                found = self.sums[id(e)] = self._sum(e)
            return found
        if isinstance(e, Cast) and e.a.lanes == 1 and isinstance(e.a, Lit) and e.a.dtype.is_integer:
            return constant(int(e.a.value))
        if isinstance(e, Select):
            if (condition := self.value(e.cond)) in ("true", "false"):
                return self.affine(e.a if condition == "true" else e.b)  # the other one may read what is not there
            x, y = self.affine(e.a), self.affine(e.b)
            return Affine.of(self._select(e), gcd(x.multiple, y.multiple), x.natural and y.natural)
        return Affine.of(_VALUE_OF[type(e)](self, e))

    def _sum(self, e: Binary) -> Affine:
        form = self.linear.get(id(e))
        if form is None:
            parts: list[tuple[int, Expr]] = []
            form = self.linear[id(e)] = _flatten(e, 1, parts), parts
        literal, parts = form
        if len(parts) == 1 and parts[0][1] is e:
            return self._combined(e.fn, self.affine(e.a), self.affine(e.b))
        return weighted(literal, [(by, self.affine(part)) for by, part in parts])

    def _combined(self, fn: str, x: Affine, y: Affine) -> Affine:
        b, by = self.b, y.literal
        if fn in ("add", "sub", "mul", "div", "rem"):
            found = x.combine(fn, y)
            if found is not None:
                return found
            if fn in ("div", "rem") and by is not None and by > 0 and x.natural:
                return x.quotient(b, by) if fn == "div" else x.rest(b, by)
        elif x.literal is not None and by is not None and fn in ("min", "max"):
            return constant(min(x.literal, by) if fn == "min" else max(x.literal, by))
        natural = (fn in _NATURAL and x.natural and y.natural) or (fn == "max" and (x.natural or y.natural))
        return Affine.of(values.binary(b, fn, x.value(b), y.value(b), i64, 1), natural=natural)

    def _literal(self, e: Lit) -> str:
        text = literal(e.value, e.dtype)
        return self.b.splat(text, value_type(e.dtype), e.lanes)

    def _var(self, e: Var) -> str:
        bound = self.vars.get(e.name)
        if bound is None:
            raise CompileError(f"variable {e.name}", expected="a binding", got="none")
        return bound if isinstance(bound, str) else bound.value(self.b)

    def _unary(self, e: Unary) -> str:
        return values.unary(self.b, e.fn, self.value(e.a), e.dtype, e.lanes)

    def _binary(self, e: Binary) -> str:
        if e.a.lanes == 1 and e.a.dtype == i64 and e.dtype.kind == "b":
            folded = self.affine(e.a).compare(e.fn, self.affine(e.b))
            if folded is not None:
                return "true" if folded else "false"
        x, y = self.value(e.a), self.value(e.b)
        if e.fn == "ldexp" and isinstance(e.b, Binary) and e.b.fn == "add" and isinstance(e.b.b, Lit):
            before, back = e.b.a, e.b.b.value
            if back == -values.ldexp_shift(e.dtype):  # n comes from rounding by an addition: its sum is there
                return values.ldexp(self.b, x, y, lambda: self.value(before), e.dtype, e.lanes)
        out = values.binary(self.b, e.fn, x, y, e.a.dtype, e.lanes)
        if e.fn == "lt" and isinstance(e.a, Ramp) and e.a.step == 1 and isinstance(e.b, Lit | Splat):
            end = constant(int(e.b.value)) if isinstance(e.b, Lit) else self.affine(e.b.a)
            room = end.combine("sub", self.affine(e.a.base))
            if room is not None and room.literal == 1:
                self.single.add(out)
        return out

    def _fma(self, e: Fma) -> str:
        return values.fma(self.b, self.value(e.a), self.value(e.b), self.value(e.c), e.dtype, e.lanes)

    def _dot(self, e: Dot) -> str:
        return values.dot(self.b, self.value(e.a), self.value(e.b), self.value(e.c), e.dtype, e.lanes)

    def _select(self, e: Select) -> str:
        condition = self.value(e.cond)
        if condition in ("true", "false"):
            return self.value(e.a if condition == "true" else e.b)
        kind = value_type(e.dtype, e.lanes)
        if e.cond.lanes < e.lanes:
            taken: list[str] = []
            then, orelse = self.b.branch(condition, *(partial(self._in_branch, x, taken) for x in (e.a, e.b)))
            return self.b.effect(f"phi {kind} [ {taken[0]}, %{then.label} ], [ {taken[1]}, %{orelse.label} ]")
        x, y = self.value(e.a), self.value(e.b)
        return self.b.emit(f"select {vector_of('i1', e.lanes)} {condition}, {kind} {x}, {kind} {y}", (condition, x, y))

    def _in_branch(self, e: Expr, taken: list[str]) -> None:
        """The value of `e` for the branch that is printed; the values that it computes are known there only."""
        outside = dict(self.shared), dict(self.sums), dict(self.loads)
        taken.append(self.value(e))
        self.shared, self.sums, self.loads = outside

    def _cast(self, e: Cast) -> str:
        return cast(self.b, self.value(e.a), e.a.dtype, e.dtype, e.lanes)

    def _bitcast(self, e: Bitcast) -> str:
        x = self.value(e.a)
        source, target = value_type(e.a.dtype, e.a.lanes), value_type(e.dtype, e.lanes)
        return x if source == target else self.b.emit(f"bitcast {source} {x} to {target}", (x,))

    def _splat(self, e: Splat) -> str:
        return self.b.splat(self.value(e.a), value_type(e.dtype), e.lanes)

    def _ramp(self, e: Ramp) -> str:
        scalar = value_type(e.dtype)
        kind = f"<{e.lanes} x {scalar}>"
        steps = "<" + ", ".join(f"{scalar} {i * e.step}" for i in range(e.lanes)) + ">"
        base = self.value(e.base)
        if base == "0":
            return steps
        start = self.b.splat(base, scalar, e.lanes)
        return self.b.emit(f"add {kind} {start}, {steps}", (start,))

    def _reduce(self, e: Reduce) -> str:
        return values.reduce(self.b, e.fn, self.value(e.a), e.a.dtype, e.a.lanes)

    def _shuffle(self, e: Shuffle) -> str:
        return shuffle(self.b, self.value(e.a), self.value(e.b), e.pick, value_type(e.dtype), e.a.lanes)

    def _extract(self, e: Extract) -> str:
        return extract(self.b, self.value(e.a), e.lane, value_type(e.dtype), e.a.lanes)

    def _lookup(self, e: Lookup) -> str:
        return lookup(self.b, e.table, self.value(e.index), e.dtype, e.index.dtype, e.lanes)

    def _either(self, e: Either) -> str:
        return self.value(e.a if by_permutation(self.b) else e.b)

    # Memory

    def _registers(self, buffer: Buffer) -> dict[int, str]:
        held = self.registers.get(buffer)
        if held is None:
            raise CompileError(f"register buffer {buffer.name}", expected="an Alloc before its use", got="none")
        return held

    def _register_index(self, buffer: Buffer, index: Expr) -> int:
        at = self.affine(index).literal
        if at is None:
            raise CompileError(f"register buffer {buffer.name}", expected="a constant index after unrolling", got=index)
        return at

    def address(self, buffer: Buffer, index: Expr) -> tuple[str, int]:
        """(pointer, alignment in bytes) of the element at the scalar `index`."""
        if buffer.space == "register":
            raise CompileError(f"register buffer {buffer.name}", expected="a whole element", got="an address")
        at = self.affine(index)
        size = buffer.dtype.nbytes
        return at.address(self.b, self.pointers[buffer], size), at.alignment(size, buffer.align)

    def _addresses(self, buffer: Buffer, index: Expr) -> str:
        """Pointers of the elements at a vector index. base + constant ramps stay visible for gather instructions."""
        x = self.value(index)
        kind = value_type(index.dtype, index.lanes)
        if index.dtype.kind == "u" and index.dtype.bits < 64:
            x, kind = cast(self.b, x, index.dtype, i64, index.lanes), f"<{index.lanes} x i64>"
        return self.b.emit(f"getelementptr {storage_type(buffer.dtype)}, ptr {self.pointers[buffer]}, {kind} {x}", (x,))

    def _load(self, e: Load) -> str:
        buffer, b = e.buffer, self.b
        if buffer.space == "register":
            at = self._register_index(buffer, e.index)
            value = self._registers(buffer).get(at)
            if value is None:
                raise CompileError(
                    f"register buffer {buffer.name}[{at}]", expected="a store before the load", got="none"
                )
            return value
        pointer, align = self.address(buffer, e.index)
        kind, meta = storage_type(buffer.dtype, e.lanes), self.scopes_of[buffer]
        if e.mask is None:
            text = f"load {kind}, ptr {pointer}, align {align}{meta}"
            found = self.loads.get(text)
            if found is None:
                found = self.loads[text] = b.effect(text)
        elif e.lanes == 1:
            found = self._masked_scalar(e, pointer, align)
        else:
            mask = self.value(e.mask)
            name = f"llvm.masked.load.{mangle(storage_type(buffer.dtype), e.lanes)}.p0"
            b.declares.add(f"declare {kind} @{name}(ptr, <{e.lanes} x i1>, {kind})")
            call = f"call {kind} @{name}(ptr align {align} {pointer}, <{e.lanes} x i1> {mask}, {kind} zeroinitializer)"
            found = self.loads.get(call)
            if found is None:
                found = self.loads[call] = b.effect(call + meta)
        return self._loaded(e, found)

    def _loaded(self, e: Load | Gather, x: str) -> str:
        dtype = e.buffer.dtype
        if dtype.kind in "iu" and dtype.bits < 8:
            return low_bits(self.b, x, dtype, e.lanes)  # numpy leaves the other bits of the byte open
        if dtype.kind != "b":
            return x
        return self.b.emit(f"icmp ne {vector_of('i8', e.lanes)} {x}, zeroinitializer", (x,))

    def _masked_scalar(self, e: Load, pointer: str, align: int) -> str:
        b = self.b
        kind = storage_type(e.buffer.dtype)
        mask = self.value(e.mask) if e.mask is not None else "true"
        before = b.scope.label
        text = f"load {kind}, ptr {pointer}, align {align}{self.scopes_of[e.buffer]}"
        loaded: list[str] = []
        inside = self._guarded(mask, lambda: loaded.append(b.effect(text)))
        return b.effect(f"phi {kind} [ zeroinitializer, %{before} ], [ {loaded[0]}, %{inside} ]")

    def _gather(self, e: Gather) -> str:
        b, buffer, lanes = self.b, e.buffer, e.lanes
        scalar = storage_type(buffer.dtype)
        kind = vector_of(scalar, lanes)
        where = self._addresses(buffer, e.index)
        if lanes == 1:
            return self._loaded(
                e, b.effect(f"load {kind}, ptr {where}, align {buffer.dtype.nbytes}{self.scopes_of[buffer]}")
            )
        mask = self.value(e.mask) if e.mask is not None else "splat (i1 true)"
        name = f"llvm.masked.gather.{mangle(scalar, lanes)}.v{lanes}p0"
        b.declares.add(f"declare {kind} @{name}(<{lanes} x ptr>, <{lanes} x i1>, {kind})")
        call = (
            f"call {kind} @{name}(<{lanes} x ptr> align {buffer.dtype.nbytes} {where}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer){self.scopes_of[buffer]}"
        )
        return self._loaded(e, b.effect(call))

    def _guarded(self, condition: str, effect: Callable[[], object]) -> str:
        """`effect` under a scalar condition; the name of its block."""
        b = self.b
        then, done = b.label(), b.label()
        b.line(f"br i1 {condition}, label %{then}, label %{done}")
        b.start(then)
        effect()
        b.line(f"br label %{done}")
        b.start(done)
        return then


def _flatten(e: Expr, by: int, parts: list[tuple[int, Expr]]) -> int:
    """by * e as the literal that is returned + sum(factor * part), in the order of `e`: once for what unrolled loops
    print often.

    (i * 8 + 3) * 4 - j / 2   ->   12 + 32 * i - 1 * (j / 2)
    """
    if isinstance(e, Lit):
        return by * int(e.value)
    if isinstance(e, Binary):
        if e.fn in ("add", "sub"):
            first = _flatten(e.a, by, parts)
            return first + _flatten(e.b, by if e.fn == "add" else -by, parts)
        if e.fn == "mul":
            factor, other = (e.a, e.b) if isinstance(e.a, Lit) else (e.b, e.a)
            if isinstance(factor, Lit):
                return _flatten(other, by * int(factor.value), parts)
    parts.append((by, e))
    return 0


# by their functions, and not by methods of an object: it would hold itself, and with it its kernel
_VALUE_OF: dict[type[Expr], Callable[[Expressions, Any], str]] = {
    Lit: Expressions._literal,
    Var: Expressions._var,
    Unary: Expressions._unary,
    Binary: Expressions._binary,
    Fma: Expressions._fma,
    Dot: Expressions._dot,
    Select: Expressions._select,
    Cast: Expressions._cast,
    Bitcast: Expressions._bitcast,
    Splat: Expressions._splat,
    Ramp: Expressions._ramp,
    Load: Expressions._load,
    Gather: Expressions._gather,
    Reduce: Expressions._reduce,
    Shuffle: Expressions._shuffle,
    Extract: Expressions._extract,
    Lookup: Expressions._lookup,
    Either: Expressions._either,
}
