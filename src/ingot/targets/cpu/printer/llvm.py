"""Kernel IR -> LLVM IR text.

    Kernel k(params x, y; dims n)   ->   define void @k(ptr %bases, ptr %args, i64 %chunk, ptr %scratch)

- Register buffers become SSA values with phis at loops and branches; `unroll` loops are expanded here.
- i64 index arithmetic is kept as `constant + sum(coefficient * value)`, so unrolled code addresses memory with one
  pointer per group of rows and constant displacements, and text is shared by value numbering (see `builder`).
- Distinct params, stack and scratch buffers of one kernel do not overlap: loads and stores say so (alias scopes).
- Out-of-line code does not exist: no libc, no libm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd
from typing import Any

from ingot.ir.kernel import (
    Alloc,
    Bitcast,
    Body,
    Buffer,
    Comment,
    For,
    If,
    Increment,
    Kernel,
    Let,
    Prefetch,
    Stmt,
    Store,
)  # fmt: skip
from ingot.ir.kernel.math.expand import expand
from ingot.ir.types import i64
from ingot.support.errors import CompileError
from ingot.support.native import Features
from ingot.targets.cpu.printer.affine import Affine, constant
from ingot.targets.cpu.printer.buffers import allocated, stored_registers
from ingot.targets.cpu.printer.builder import Builder, mangle, storage_type, value_type, vector_of
from ingot.targets.cpu.printer.expressions import Expressions
from ingot.targets.cpu.printer.lanes import extract

_STREAMS = (16, 32, 64)  # bytes of registers that can be stored past the caches
_ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" "frame-pointer"="none" }'


def print_module(kernels: Sequence[Kernel], features: Features) -> str:
    """One module of LLVM IR with a function per kernel, for a machine with `features`."""
    declares: set[str] = set()
    metadata: list[str] = []
    functions = [_Function(expand(kernel), features, declares, metadata).text() for kernel in kernels]
    return "\n".join([*functions, *sorted(declares), _ATTRIBUTES, *metadata, ""])


class _Function(Expressions):
    def __init__(self, kernel: Kernel, features: Features, declares: set[str], metadata: list[str]) -> None:
        super().__init__(Builder(features, declares))
        self.kernel = kernel
        self.metadata = metadata
        self.streams = False
        self.stored: dict[int, list[Buffer]] = {}  # by the id of a body, which unrolled loops print often
        self.binds: dict[int, bool] = {}

    def text(self) -> str:
        kernel, b = self.kernel, self.b
        self._alias_scopes()
        for i, buffer in enumerate(kernel.params):
            which = b.effect(f"load i64, ptr {self._argument(2 * i)}, align 8, !invariant.load !{self.empty}")
            offset = b.effect(f"load i64, ptr {self._argument(2 * i + 1)}, align 8, !invariant.load !{self.empty}")
            at = b.effect(f"getelementptr ptr, ptr %bases, i64 {which}")
            base = b.effect(f"load ptr, ptr {at}, align 8, !invariant.load !{self.empty}")
            self.pointers[buffer] = b.effect(f"getelementptr i8, ptr {base}, i64 {offset}")
        for j, dim in enumerate(kernel.dims):
            at = self._argument(2 * len(kernel.params) + j)
            size = b.effect(f"load i64, ptr {at}, align 8, !invariant.load !{self.empty}")
            self.vars[dim.name] = Affine.of(size, natural=True)
        self.vars[kernel.chunk.name] = Affine.of("%chunk", natural=True)
        self._body(kernel.body)
        body = b.scopes[0].lines
        head = (
            f"define void @{kernel.name}(ptr noalias %bases, ptr noalias %args, i64 %chunk, ptr noalias %scratch) #0 {{"
        )
        fence = []
        if self.streams and b.features.arch == "x86_64":
            # such stores are not ordered by the release that ends a chunk
            b.declares.add("declare void @llvm.x86.sse.sfence()")
            fence = ["call void @llvm.x86.sse.sfence()"]
        return "\n".join([head, "entry:", *b.entry, *body, *fence, "ret void", "}"])

    def _argument(self, index: int) -> str:
        return self.b.effect(f"getelementptr i64, ptr %args, i64 {index}")

    def _meta(self, text: str) -> str:
        self.metadata.append(f"!{len(self.metadata)} = {text}")
        return str(len(self.metadata) - 1)

    def _alias_scopes(self) -> None:
        """One alias scope per memory buffer; an access is in its own scope and not in the others."""
        self.empty = self._meta("!{}")
        self.one = self._meta("!{i32 1}")
        memory = [*self.kernel.params, *sorted(allocated(self.kernel.body), key=lambda b: b.name)]
        me = len(self.metadata)
        domain = self._meta(f"distinct !{{!{me}}}")
        scopes = []
        for _ in memory:
            me = len(self.metadata)
            scopes.append(self._meta(f"distinct !{{!{me}, !{domain}}}"))
        for buffer, scope in zip(memory, scopes, strict=True):
            mine = self._meta(f"!{{!{scope}}}")
            others = self._meta("!{" + ", ".join(f"!{s}" for s in scopes if s != scope) + "}")
            self.scopes_of[buffer] = f", !alias.scope !{mine}, !noalias !{others}"

    # Statements

    def _body(self, body: Body) -> None:
        binds = self.binds.get(id(body))
        if binds is None:
            binds = self.binds[id(body)] = any(isinstance(s, Let | Increment) for s in body)
        bound = dict(self.vars) if binds else None
        for stmt in body:
            self.loads.clear()
            self.shared.clear()
            self.sums.clear()
            _PRINT[type(stmt)](self, stmt)
        if bound is not None:
            self.vars = bound

    def _let(self, s: Let) -> None:
        value = s.value
        self.vars[s.var.name] = self.affine(value) if value.dtype == i64 and value.lanes == 1 else self.value(value)

    def _alloc(self, s: Alloc) -> None:
        buffer = s.buffer
        match buffer.space:
            case "register":
                self.registers[buffer] = {}
            case "stack":
                if buffer.size is None:
                    raise CompileError(f"stack buffer {buffer.name}", expected="a size", got=None)
                name = f"%stack{len(self.b.entry)}"
                kind = f"[{buffer.size} x {storage_type(buffer.dtype)}]"
                self.b.entry.append(f"{name} = alloca {kind}, align {buffer.align}")
                self.pointers[buffer] = name
            case "scratch":
                self.pointers[buffer] = self.b.emit(
                    f"getelementptr i8, ptr %scratch, i64 {buffer.offset}", ("%scratch",)
                )
            case _:
                raise CompileError(
                    f"alloc {buffer.name}", expected="a register, stack or scratch buffer", got="a param"
                )

    def _store(self, s: Store) -> None:
        buffer, value, b = s.buffer, s.value, self.b
        if buffer.space == "register":
            self._registers(buffer)[self._register_index(buffer, s.index)] = self.value(value)
            return
        lanes, dtype = value.lanes, buffer.dtype
        if s.stream and s.mask is None and isinstance(value, Bitcast) and value.a.lanes == lanes:
            # its bits as they are: LLVM 22 stores no vector of halves past the caches
            value, dtype = value.a, value.a.dtype
        x = self.value(value)
        if buffer.dtype.kind == "b":
            x = b.emit(f"zext {value_type(buffer.dtype, lanes)} {x} to {vector_of('i8', lanes)}", (x,))
        kind = storage_type(dtype, lanes)
        meta = self.scopes_of[buffer]
        if s.index.lanes > 1:
            scalar = storage_type(buffer.dtype)
            mask = self.value(s.mask) if s.mask is not None else "splat (i1 true)"
            where = self._addresses(buffer, s.index)
            name = f"llvm.masked.scatter.{mangle(scalar, lanes)}.v{lanes}p0"
            b.declares.add(f"declare void @{name}({kind}, <{lanes} x ptr>, <{lanes} x i1>)")
            align = buffer.dtype.nbytes
            b.line(f"call void @{name}({kind} {x}, <{lanes} x ptr> align {align} {where}, <{lanes} x i1> {mask}){meta}")
            return
        pointer, align = self.address(buffer, s.index)
        size = buffer.dtype.nbytes * lanes
        register = min(size, _STREAMS[-1])
        if s.stream and s.mask is None and register in _STREAMS and size % register == 0:
            self._stream(f"store {kind} {x}, ptr {pointer}, align", pointer, align, register, meta)
        elif s.mask is None:
            b.line(f"store {kind} {x}, ptr {pointer}, align {align}{meta}")
        elif lanes == 1:
            self._guarded(self.value(s.mask), lambda: b.line(f"store {kind} {x}, ptr {pointer}, align {align}{meta}"))
        elif (mask := self.value(s.mask)) in self.single:
            # LLVM 22 narrows `trunc` into a masked store of one lane and then writes the wide lane
            one = extract(b, x, 0, storage_type(buffer.dtype), lanes)
            b.line(f"store {storage_type(buffer.dtype)} {one}, ptr {pointer}, align {align}{meta}")
        else:
            name = f"llvm.masked.store.{mangle(storage_type(buffer.dtype), lanes)}.p0"
            b.declares.add(f"declare void @{name}({kind}, ptr, <{lanes} x i1>)")
            b.line(f"call void @{name}({kind} {x}, ptr align {align} {pointer}, <{lanes} x i1> {mask}){meta}")

    def _stream(self, store: str, pointer: str, align: int, size: int, meta: str) -> None:
        """A store past the caches, where the address is a multiple of the register's `size` as those stores demand."""
        b = self.b
        past = f"{store} {size}{meta}, !nontemporal !{self.one}"
        self.streams = True
        if align % size == 0:
            b.line(past)
            return
        at = b.emit(f"ptrtoint ptr {pointer} to i64", (pointer,))
        low = b.emit(f"and i64 {at}, {size - 1}", (at,), cheap=True)
        whole = b.emit(f"icmp eq i64 {low}, 0", (low,))
        other = b.emit(f"xor i1 {whole}, true", (whole,))
        self._guarded(whole, lambda: b.line(past))
        self._guarded(other, lambda: b.line(f"{store} {align}{meta}"))

    def _prefetch(self, s: Prefetch) -> None:
        pointer, _ = self.address(s.buffer, s.index)
        self.b.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.b.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")

    def _increment(self, s: Increment) -> None:
        pointer, _ = self.address(s.buffer, s.index)
        self.vars[s.var.name] = Affine.of(self.b.effect(f"atomicrmw add ptr {pointer}, i64 1 acq_rel, align 8"))

    def _for(self, s: For) -> None:
        begin, end = self.affine(s.begin), self.affine(s.end)
        first, last = begin.literal, end.literal
        if s.unroll and (first is None or last is None):
            raise CompileError(f"unrolled loop over {s.var.name}", expected="literal bounds", got="run-time bounds")
        known = first is not None and last is not None
        trips = range(first, last, s.step) if first is not None and last is not None else None
        if trips is not None and (s.unroll or len(trips) <= 1):
            before = self.vars.get(s.var.name)
            for i in trips:
                self.vars[s.var.name] = constant(i)
                self._body(s.body)
            self._restore(s.var.name, before)
            return
        self._loop(s, begin, end, guarded=not known)

    def _restore(self, name: str, before: Affine | str | None) -> None:
        if before is None:
            self.vars.pop(name, None)
        else:
            self.vars[name] = before

    def _loop(self, s: For, begin: Affine, end: Affine, guarded: bool) -> None:
        """A rotated loop: [guard] -> body -> latch -> exit, so that the back edge is the only branch."""
        b = self.b
        start, stop = begin.value(b), end.value(b)
        outer = b.scope
        some = b.emit(f"icmp slt i64 {start}, {stop}", (start, stop), cheap=True) if guarded else "true"
        entered = b.label()
        inside, left = b.label(), b.label()
        scope = b.push(inside, conditional=False)
        index = b.name(scope.depth)
        carried: list[tuple[Buffer, int, str, str]] = []
        for buffer in self._stored(s.body):
            held = self.registers.get(buffer)
            for at, value in list(held.items()) if held else ():
                phi = b.name(scope.depth)
                carried.append((buffer, at, value, phi))
                self.registers[buffer][at] = phi
        before = self.vars.get(s.var.name)
        self.vars[s.var.name] = Affine.of(index, gcd(s.step, begin.multiple), begin.natural)
        self._body(s.body)
        self._restore(s.var.name, before)
        again = b.effect(f"add nuw nsw i64 {index}, {s.step}")
        more = b.effect(f"icmp slt i64 {again}, {stop}")
        latch = scope.label
        b.pop()

        # what is invariant has been printed into `outer` by now
        if guarded:
            b.line(f"br i1 {some}, label %{entered}, label %{left}")
            tested = outer.label
            b.start(entered)
        else:
            tested, entered = "", outer.label
        b.line(f"br label %{inside}")
        b.start(inside)
        b.line(f"{index} = phi i64 [ {start}, %{entered} ], [ {again}, %{latch} ]")
        finals: list[tuple[Buffer, int, str, str]] = []
        for buffer, at, value, phi in carried:
            kind = value_type(buffer.dtype, buffer.lanes)
            final = self.registers[buffer][at]
            b.line(f"{phi} = phi {kind} [ {value}, %{entered} ], [ {final}, %{latch} ]")
            finals.append((buffer, at, value, final))
        b.scope.lines.extend(scope.lines)
        b.line(f"br i1 {more}, label %{inside}, label %{left}")
        b.start(left)
        self._drop_new(s.body, carried, guarded)
        for buffer, at, value, final in finals:
            if guarded:
                kind = value_type(buffer.dtype, buffer.lanes)
                final = b.effect(f"phi {kind} [ {value}, %{tested} ], [ {final}, %{latch} ]")
            else:
                self._settle(final)
            self.registers[buffer][at] = final

    def _settle(self, name: str) -> None:
        """A value of a body that surely ran is known in the scope around it."""
        if name in self.b.depth:
            self.b.depth[name] = min(self.b.depth[name], self.b.scope.depth)

    def _drop_new(self, body: Body, carried: list[tuple[Buffer, int, str, str]], guarded: bool) -> None:
        """Registers first stored in a loop: undefined after it if it may not have run."""
        old = {(buffer, at) for buffer, at, _, _ in carried}
        for buffer in self._stored(body):
            held = self.registers.get(buffer, {})
            for at in [at for at in held if (buffer, at) not in old]:
                if guarded:
                    del held[at]
                else:
                    self._settle(held[at])

    def _if(self, s: If) -> None:
        b = self.b
        condition = self.value(s.cond)
        if condition in ("true", "false"):
            self._body(s.then if condition == "true" else s.orelse)
            return
        before = {buffer: dict(held) for buffer, held in self.registers.items()}
        after: list[dict[Buffer, dict[int, str]]] = []

        def branch(body: Body) -> None:
            self._body(body)
            after.append(self.registers)
            self.registers = {buffer: dict(held) for buffer, held in before.items()}

        then, orelse = b.branch(condition, partial(branch, s.then), partial(branch, s.orelse))
        in_then, in_else = after
        for buffer, held in self.registers.items():
            kind = value_type(buffer.dtype, buffer.lanes)
            for at in in_then[buffer].keys() & in_else[buffer].keys():
                p, q = in_then[buffer][at], in_else[buffer][at]
                held[at] = p if p == q else b.effect(f"phi {kind} [ {p}, %{then.label} ], [ {q}, %{orelse.label} ]")

    def _stored(self, body: Body) -> list[Buffer]:
        """Register buffers that `body` writes."""
        found = self.stored.get(id(body))
        if found is None:
            found = sorted(stored_registers(body), key=lambda buffer: buffer.name)
            self.stored[id(body)] = found
        return found


_PRINT: dict[type[Stmt], Callable[[_Function, Any], None]] = {
    For: _Function._for,
    If: _Function._if,
    Let: _Function._let,
    Store: _Function._store,
    Alloc: _Function._alloc,
    Prefetch: _Function._prefetch,
    Increment: _Function._increment,
    Comment: lambda function, s: None,
}
