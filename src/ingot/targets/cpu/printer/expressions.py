"""Prints expressions of kernel IR as values of LLVM IR, where a statement needs them."""

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
from ingot.targets.cpu.printer.affine import Affine, constant, weighted_sum
from ingot.targets.cpu.printer.builder import Builder, literal, mangle, storage_type, value_type, vector_of
from ingot.targets.cpu.printer.casts import cast, low_bits
from ingot.targets.cpu.printer.lanes import extract, shuffle
from ingot.targets.cpu.printer.lookup import has_permute, lookup

_NONNEGATIVE_OPS = frozenset({"mul", "div", "rem", "min"})  # of non-negative operands


class Expressions:
    """The values that are available at the current position of a function, and the emitters of further ones."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self.vars: dict[str, Affine | str] = {}
        self.pointers: dict[Buffer, str] = {}
        self.alias_scopes: dict[Buffer, str] = {}  # the metadata of an access
        self.registers: dict[Buffer, dict[int, str]] = {}
        self.loads: dict[str, str] = {}
        self.single_lane_masks: set[str] = set()  # masks known to be true for lane 0 only
        self.values: dict[int, str] = {}  # id of an expression of this statement -> its value
        self.sums: dict[int, Affine] = {}  # the same for scalar i64
        self.linear_forms: dict[int, tuple[int, list[tuple[int, Expr]]]] = {}  # id of a sum -> see `_flatten`

    def value(self, e: Expr) -> str:
        """Return the name of a value, after emitting its instructions."""
        if e.lanes == 1 and e.dtype == i64 and type(e) in (Binary, Var, Lit):
            return self.affine(e).value(self.b)
        # expressions share operands: a walk without memoization would take exponential time
        result = self.values.get(id(e))
        if result is None:
            result = self.values[id(e)] = _EMIT[type(e)](self, e)
        return result

    def affine(self, e: Expr) -> Affine:
        """Return a scalar i64 as constant + sum of coefficient * value."""
        if isinstance(e, Var):
            bound = self.vars.get(e.name)
            if bound is None:
                raise CompileError(f"variable {e.name}", expected="a binding", got="none")
            return Affine.of(bound) if isinstance(bound, str) else bound
        if isinstance(e, Lit):
            return constant(int(e.value))
        if isinstance(e, Binary):
            total = self.sums.get(id(e))
            if total is None:
                total = self.sums[id(e)] = self._sum(e)
            return total
        if isinstance(e, Cast) and e.a.lanes == 1 and isinstance(e.a, Lit) and e.a.dtype.is_integer:
            return constant(int(e.a.value))
        if isinstance(e, Select):
            if (condition := self.value(e.cond)) in ("true", "false"):
                return self.affine(e.a if condition == "true" else e.b)  # the other operand may be undefined
            x, y = self.affine(e.a), self.affine(e.b)
            return Affine.of(self._select(e), gcd(x.multiple, y.multiple), x.is_nonnegative and y.is_nonnegative)
        return Affine.of(_EMIT[type(e)](self, e))

    def _sum(self, e: Binary) -> Affine:
        form = self.linear_forms.get(id(e))
        if form is None:
            parts: list[tuple[int, Expr]] = []
            form = self.linear_forms[id(e)] = _flatten(e, 1, parts), parts
        literal, parts = form
        if len(parts) == 1 and parts[0][1] is e:
            return self._combine(e.fn, self.affine(e.a), self.affine(e.b))
        return weighted_sum(literal, [(factor, self.affine(part)) for factor, part in parts])

    def _combine(self, fn: str, x: Affine, y: Affine) -> Affine:
        b, literal = self.b, y.literal
        if fn in ("add", "sub", "mul", "div", "rem"):
            result = x.combine(fn, y)
            if result is not None:
                return result
            if fn in ("div", "rem") and literal is not None and literal > 0 and x.is_nonnegative:
                return x.quotient(b, literal) if fn == "div" else x.remainder(b, literal)
        elif x.literal is not None and literal is not None and fn in ("min", "max"):
            return constant(min(x.literal, literal) if fn == "min" else max(x.literal, literal))
        is_nonnegative = (fn in _NONNEGATIVE_OPS and x.is_nonnegative and y.is_nonnegative) or (
            fn == "max" and (x.is_nonnegative or y.is_nonnegative)
        )
        return Affine.of(values.binary(b, fn, x.value(b), y.value(b), i64, 1), is_nonnegative=is_nonnegative)

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
            shifted, offset = e.b.a, e.b.b.value
            if offset == -values.ldexp_shift(e.dtype):  # n was rounded by an addition: reuse its sum
                return values.ldexp(self.b, x, y, lambda: self.value(shifted), e.dtype, e.lanes)
        out = values.binary(self.b, e.fn, x, y, e.a.dtype, e.lanes)
        if e.fn == "lt" and isinstance(e.a, Ramp) and e.a.step == 1 and isinstance(e.b, Lit | Splat):
            end = constant(int(e.b.value)) if isinstance(e.b, Lit) else self.affine(e.b.a)
            limit = end.combine("sub", self.affine(e.a.base))
            if limit is not None and limit.literal == 1:
                self.single_lane_masks.add(out)
        return out

    def _fma(self, e: Fma) -> str:
        return values.fma(self.b, self.value(e.a), self.value(e.b), self.value(e.c), e.dtype, e.lanes)

    def _dot(self, e: Dot) -> str:
        assert e.a.lanes * e.a.dtype.bits == 32 * e.lanes, "machines with LLVM have dots by lane"
        a, b, c = map(self.value, (e.a, e.b, e.c))
        return values.dot(self.b, a, b, c, e.a.dtype, e.dtype, e.lanes, e.a_max)

    def _select(self, e: Select) -> str:
        condition = self.value(e.cond)
        if condition in ("true", "false"):
            return self.value(e.a if condition == "true" else e.b)
        kind = value_type(e.dtype, e.lanes)
        if e.cond.lanes < e.lanes:
            operands: list[str] = []
            then, orelse = self.b.branch(condition, *(partial(self._in_branch, x, operands) for x in (e.a, e.b)))
            return self.b.effect(f"phi {kind} [ {operands[0]}, %{then.label} ], [ {operands[1]}, %{orelse.label} ]")
        x, y = self.value(e.a), self.value(e.b)
        return self.b.emit(f"select {vector_of('i1', e.lanes)} {condition}, {kind} {x}, {kind} {y}", (condition, x, y))

    def _in_branch(self, e: Expr, operands: list[str]) -> None:
        """Emit `e` in the current branch; the values it computes are available there only."""
        caches = dict(self.values), dict(self.sums), dict(self.loads)
        operands.append(self.value(e))
        self.values, self.sums, self.loads = caches

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
        return shuffle(self.b, self.value(e.a), self.value(e.b), e.indices, value_type(e.dtype), e.a.lanes)

    def _extract(self, e: Extract) -> str:
        return extract(self.b, self.value(e.a), e.lane, value_type(e.dtype), e.a.lanes)

    def _lookup(self, e: Lookup) -> str:
        return lookup(self.b, e.table, self.value(e.index), e.dtype, e.index.dtype, e.lanes)

    def _either(self, e: Either) -> str:
        return self.value(e.a if has_permute(self.b) else e.b)

    # Memory

    def _registers(self, buffer: Buffer) -> dict[int, str]:
        registers = self.registers.get(buffer)
        if registers is None:
            raise CompileError(f"register buffer {buffer.name}", expected="an Alloc before its use", got="none")
        return registers

    def _register_index(self, buffer: Buffer, index: Expr) -> int:
        slot = self.affine(index).literal
        if slot is None:
            raise CompileError(f"register buffer {buffer.name}", expected="a constant index after unrolling", got=index)
        return slot

    def address(self, buffer: Buffer, index: Expr) -> tuple[str, int]:
        """Return (pointer, alignment in bytes) of the element at the scalar `index`."""
        if buffer.space == "register":
            raise CompileError(f"register buffer {buffer.name}", expected="a whole element", got="an address")
        offset = self.affine(index)
        size = buffer.dtype.nbytes
        return offset.address(self.b, self.pointers[buffer], size), offset.alignment(size, buffer.align)

    def _addresses(self, buffer: Buffer, index: Expr) -> str:
        """Return pointers to the elements at a vector index. base + constant ramps stay visible to gather
        instructions."""
        x = self.value(index)
        kind = value_type(index.dtype, index.lanes)
        if index.dtype.kind == "u" and index.dtype.bits < 64:
            x, kind = cast(self.b, x, index.dtype, i64, index.lanes), f"<{index.lanes} x i64>"
        return self.b.emit(f"getelementptr {storage_type(buffer.dtype)}, ptr {self.pointers[buffer]}, {kind} {x}", (x,))

    def _load(self, e: Load) -> str:
        buffer, b = e.buffer, self.b
        if buffer.space == "register":
            slot = self._register_index(buffer, e.index)
            value = self._registers(buffer).get(slot)
            if value is None:
                raise CompileError(
                    f"register buffer {buffer.name}[{slot}]", expected="a store before the load", got="none"
                )
            return value
        pointer, align = self.address(buffer, e.index)
        kind, meta = storage_type(buffer.dtype, e.lanes), self.alias_scopes[buffer]
        if e.mask is None:
            text = f"load {kind}, ptr {pointer}, align {align}{meta}"
            loaded = self.loads.get(text)
            if loaded is None:
                loaded = self.loads[text] = b.effect(text)
        elif e.lanes == 1:
            loaded = self._masked_scalar(e, pointer, align)
        else:
            mask = self.value(e.mask)
            name = f"llvm.masked.load.{mangle(storage_type(buffer.dtype), e.lanes)}.p0"
            b.declares.add(f"declare {kind} @{name}(ptr, <{e.lanes} x i1>, {kind})")
            call = f"call {kind} @{name}(ptr align {align} {pointer}, <{e.lanes} x i1> {mask}, {kind} zeroinitializer)"
            loaded = self.loads.get(call)
            if loaded is None:
                loaded = self.loads[call] = b.effect(call + meta)
        return self._convert_loaded(e, loaded)

    def _convert_loaded(self, e: Load | Gather, x: str) -> str:
        dtype = e.buffer.dtype
        if dtype.kind in "iu" and dtype.bits < 8:
            return low_bits(self.b, x, dtype, e.lanes)  # numpy leaves the other bits of the byte undefined
        if dtype.kind != "b":
            return x
        return self.b.emit(f"icmp ne {vector_of('i8', e.lanes)} {x}, zeroinitializer", (x,))

    def _masked_scalar(self, e: Load, pointer: str, align: int) -> str:
        b = self.b
        kind = storage_type(e.buffer.dtype)
        mask = self.value(e.mask) if e.mask is not None else "true"
        entry = b.scope.label
        text = f"load {kind}, ptr {pointer}, align {align}{self.alias_scopes[e.buffer]}"
        loaded: list[str] = []
        guarded_block = self._guarded(mask, lambda: loaded.append(b.effect(text)))
        return b.effect(f"phi {kind} [ zeroinitializer, %{entry} ], [ {loaded[0]}, %{guarded_block} ]")

    def _gather(self, e: Gather) -> str:
        b, buffer, lanes = self.b, e.buffer, e.lanes
        scalar = storage_type(buffer.dtype)
        kind = vector_of(scalar, lanes)
        addresses = self._addresses(buffer, e.index)
        if lanes == 1:
            return self._convert_loaded(
                e, b.effect(f"load {kind}, ptr {addresses}, align {buffer.dtype.nbytes}{self.alias_scopes[buffer]}")
            )
        mask = self.value(e.mask) if e.mask is not None else "splat (i1 true)"
        name = f"llvm.masked.gather.{mangle(scalar, lanes)}.v{lanes}p0"
        b.declares.add(f"declare {kind} @{name}(<{lanes} x ptr>, <{lanes} x i1>, {kind})")
        call = (
            f"call {kind} @{name}(<{lanes} x ptr> align {buffer.dtype.nbytes} {addresses}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer){self.alias_scopes[buffer]}"
        )
        return self._convert_loaded(e, b.effect(call))

    def _guarded(self, condition: str, effect: Callable[[], object]) -> str:
        """Emit `effect` under a scalar condition; return the label of its block."""
        b = self.b
        then, done = b.label(), b.label()
        b.line(f"br i1 {condition}, label %{then}, label %{done}")
        b.start(then)
        effect()
        b.line(f"br label %{done}")
        b.start(done)
        return then


def _flatten(e: Expr, scale: int, parts: list[tuple[int, Expr]]) -> int:
    """Write scale * e as literal + sum(factor * part): append to `parts`, return the literal. Cached by the caller, as
    unrolled loops print `e` many times.

    (i * 8 + 3) * 4 - j / 2   ->   12 + 32 * i - 1 * (j / 2)
    """
    if isinstance(e, Lit):
        return scale * int(e.value)
    if isinstance(e, Binary):
        if e.fn in ("add", "sub"):
            literal = _flatten(e.a, scale, parts)
            return literal + _flatten(e.b, scale if e.fn == "add" else -scale, parts)
        if e.fn == "mul":
            factor, other = (e.a, e.b) if isinstance(e.a, Lit) else (e.b, e.a)
            if isinstance(factor, Lit):
                return _flatten(other, scale * int(factor.value), parts)
    parts.append((scale, e))
    return 0


# functions, not bound methods of the instance: these would be a reference cycle that keeps the kernel alive
_EMIT: dict[type[Expr], Callable[[Expressions, Any], str]] = {
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
