"""Kernel IR -> LLVM IR text.

    Kernel k(params x, y; dims n)   ->   define void @k(ptr %bases, ptr %args, i64 %chunk, ptr %scratch)

- Register buffers become SSA values with phis at loops and branches; `unroll` loops are expanded here.
- i64 index arithmetic has the form `constant + sum(coefficient * value)`, so unrolled code addresses memory with one
  pointer per group of rows and constant displacements, and value numbering finds equal text (see `builder`).
- Distinct params, stack and scratch buffers of one kernel do not overlap, as the alias scopes of accesses state.
- Kernels call no library: no libc, no libm.
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
from ingot.targets.cpu.printer.buffers import allocated_buffers, written_registers
from ingot.targets.cpu.printer.builder import Builder, has_fma, mangle, storage_type, value_type, vector_of
from ingot.targets.cpu.printer.expressions import Expressions
from ingot.targets.cpu.printer.lanes import extract

_STREAM_BYTES = (16, 32, 64)  # sizes of registers with non-temporal stores
_ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" "frame-pointer"="none" }'


def print_module(kernels: Sequence[Kernel], features: Features) -> str:
    """Print a module of LLVM IR with one function per kernel, for a machine with `features`."""
    declares: set[str] = set()
    metadata: list[str] = []
    fused = has_fma(features)
    functions = [_Function(expand(kernel, has_fma=fused), features, declares, metadata).text() for kernel in kernels]
    return "\n".join([*functions, *sorted(declares), _ATTRIBUTES, *metadata, ""])


class _Function(Expressions):
    def __init__(self, kernel: Kernel, features: Features, declares: set[str], metadata: list[str]) -> None:
        super().__init__(Builder(features, declares))
        self.kernel = kernel
        self.metadata = metadata
        self.has_streams = False
        self.written_buffers: dict[int, list[Buffer]] = {}  # by the id of a body; unrolled loops print one many times
        self.binds_names: dict[int, bool] = {}

    def text(self) -> str:
        kernel, b = self.kernel, self.b
        self._alias_scopes()
        for i, buffer in enumerate(kernel.params):
            base_index = b.effect(f"load i64, ptr {self._argument(2 * i)}, align 8, !invariant.load !{self.empty_node}")
            offset = b.effect(f"load i64, ptr {self._argument(2 * i + 1)}, align 8, !invariant.load !{self.empty_node}")
            address = b.effect(f"getelementptr ptr, ptr %bases, i64 {base_index}")
            base = b.effect(f"load ptr, ptr {address}, align 8, !invariant.load !{self.empty_node}")
            self.pointers[buffer] = b.effect(f"getelementptr i8, ptr {base}, i64 {offset}")
        for j, dim in enumerate(kernel.dims):
            address = self._argument(2 * len(kernel.params) + j)
            size = b.effect(f"load i64, ptr {address}, align 8, !invariant.load !{self.empty_node}")
            self.vars[dim.name] = Affine.of(size, is_nonnegative=True)
        self.vars[kernel.chunk.name] = Affine.of("%chunk", is_nonnegative=True)
        self._body(kernel.body)
        body = b.scopes[0].lines
        signature = (
            f"define void @{kernel.name}(ptr noalias %bases, ptr noalias %args, i64 %chunk, ptr noalias %scratch) #0 {{"
        )
        fence = []
        if self.has_streams and b.features.arch == "x86_64":
            # non-temporal stores are not ordered by the release at the end of a chunk
            b.declares.add("declare void @llvm.x86.sse.sfence()")
            fence = ["call void @llvm.x86.sse.sfence()"]
        return "\n".join([signature, "entry:", *b.entry, *body, *fence, "ret void", "}"])

    def _argument(self, index: int) -> str:
        return self.b.effect(f"getelementptr i64, ptr %args, i64 {index}")

    def _meta(self, text: str) -> str:
        self.metadata.append(f"!{len(self.metadata)} = {text}")
        return str(len(self.metadata) - 1)

    def _alias_scopes(self) -> None:
        """Make an alias scope per memory buffer; an access is in its buffer's scope and in no other."""
        self.empty_node = self._meta("!{}")
        self.nontemporal_node = self._meta("!{i32 1}")
        memory = [*self.kernel.params, *sorted(allocated_buffers(self.kernel.body), key=lambda b: b.name)]
        number = len(self.metadata)
        domain = self._meta(f"distinct !{{!{number}}}")
        scopes = []
        for _ in memory:
            number = len(self.metadata)
            scopes.append(self._meta(f"distinct !{{!{number}, !{domain}}}"))
        for buffer, scope in zip(memory, scopes, strict=True):
            own_scope = self._meta(f"!{{!{scope}}}")
            other_scopes = self._meta("!{" + ", ".join(f"!{s}" for s in scopes if s != scope) + "}")
            self.alias_scopes[buffer] = f", !alias.scope !{own_scope}, !noalias !{other_scopes}"

    # Statements

    def _body(self, body: Body) -> None:
        binds_names = self.binds_names.get(id(body))
        if binds_names is None:
            binds_names = self.binds_names[id(body)] = any(isinstance(s, Let | Increment) for s in body)
        outer_vars = dict(self.vars) if binds_names else None
        for stmt in body:
            self.loads.clear()
            self.values.clear()
            self.sums.clear()
            _PRINT[type(stmt)](self, stmt)
        if outer_vars is not None:
            self.vars = outer_vars

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
            # store the bits: LLVM 22 has no non-temporal stores of vectors of halves
            value, dtype = value.a, value.a.dtype
        x = self.value(value)
        if buffer.dtype.kind == "b":
            x = b.emit(f"zext {value_type(buffer.dtype, lanes)} {x} to {vector_of('i8', lanes)}", (x,))
        kind = storage_type(dtype, lanes)
        meta = self.alias_scopes[buffer]
        if s.index.lanes > 1:
            scalar = storage_type(buffer.dtype)
            mask = self.value(s.mask) if s.mask is not None else "splat (i1 true)"
            addresses = self._addresses(buffer, s.index)
            name = f"llvm.masked.scatter.{mangle(scalar, lanes)}.v{lanes}p0"
            b.declares.add(f"declare void @{name}({kind}, <{lanes} x ptr>, <{lanes} x i1>)")
            align = buffer.dtype.nbytes
            b.line(
                f"call void @{name}({kind} {x}, <{lanes} x ptr> align {align} {addresses}, <{lanes} x i1> {mask}){meta}"
            )
            return
        pointer, align = self.address(buffer, s.index)
        size = buffer.dtype.nbytes * lanes
        register_bytes = min(size, _STREAM_BYTES[-1])
        if s.stream and s.mask is None and register_bytes in _STREAM_BYTES and size % register_bytes == 0:
            self._stream(f"store {kind} {x}, ptr {pointer}, align", pointer, align, register_bytes, meta)
        elif s.mask is None:
            b.line(f"store {kind} {x}, ptr {pointer}, align {align}{meta}")
        elif lanes == 1:
            self._guarded(self.value(s.mask), lambda: b.line(f"store {kind} {x}, ptr {pointer}, align {align}{meta}"))
        elif (mask := self.value(s.mask)) in self.single_lane_masks:
            # LLVM 22 folds `trunc` into a masked store of one lane and then writes the wide lane
            lane = extract(b, x, 0, storage_type(buffer.dtype), lanes)
            b.line(f"store {storage_type(buffer.dtype)} {lane}, ptr {pointer}, align {align}{meta}")
        else:
            name = f"llvm.masked.store.{mangle(storage_type(buffer.dtype), lanes)}.p0"
            b.declares.add(f"declare void @{name}({kind}, ptr, <{lanes} x i1>)")
            b.line(f"call void @{name}({kind} {x}, ptr align {align} {pointer}, <{lanes} x i1> {mask}){meta}")

    def _stream(self, store: str, pointer: str, align: int, size: int, meta: str) -> None:
        """Emit a non-temporal store; at run time a plain one if the address is not aligned to `size`, as such stores
        require."""
        b = self.b
        streaming_store = f"{store} {size}{meta}, !nontemporal !{self.nontemporal_node}"
        self.has_streams = True
        if align % size == 0:
            b.line(streaming_store)
            return
        address = b.emit(f"ptrtoint ptr {pointer} to i64", (pointer,))
        misalignment = b.emit(f"and i64 {address}, {size - 1}", (address,), cheap=True)
        is_aligned = b.emit(f"icmp eq i64 {misalignment}, 0", (misalignment,))
        is_unaligned = b.emit(f"xor i1 {is_aligned}, true", (is_aligned,))
        self._guarded(is_aligned, lambda: b.line(streaming_store))
        self._guarded(is_unaligned, lambda: b.line(f"{store} {align}{meta}"))

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
        has_literal_bounds = first is not None and last is not None
        trips = range(first, last, s.step) if first is not None and last is not None else None
        if trips is not None and (s.unroll or len(trips) <= 1):
            outer_value = self.vars.get(s.var.name)
            for i in trips:
                self.vars[s.var.name] = constant(i)
                self._body(s.body)
            self._restore(s.var.name, outer_value)
            return
        self._loop(s, begin, end, is_guarded=not has_literal_bounds)

    def _restore(self, name: str, outer_value: Affine | str | None) -> None:
        if outer_value is None:
            self.vars.pop(name, None)
        else:
            self.vars[name] = outer_value

    def _loop(self, s: For, begin: Affine, end: Affine, is_guarded: bool) -> None:
        """A rotated loop: [guard] -> body -> latch -> exit, so that the back edge is the only branch."""
        b = self.b
        start, stop = begin.value(b), end.value(b)
        outer = b.scope
        is_entered = b.emit(f"icmp slt i64 {start}, {stop}", (start, stop), cheap=True) if is_guarded else "true"
        preheader = b.label()
        header, exit_label = b.label(), b.label()
        scope = b.push(header, conditional=False)
        index = b.name(scope.depth)
        carried: list[tuple[Buffer, int, str, str]] = []
        for buffer in self._written_registers(s.body):
            values = self.registers.get(buffer)
            for slot, value in list(values.items()) if values else ():
                phi = b.name(scope.depth)
                carried.append((buffer, slot, value, phi))
                self.registers[buffer][slot] = phi
        outer_value = self.vars.get(s.var.name)
        self.vars[s.var.name] = Affine.of(index, gcd(s.step, begin.multiple), begin.is_nonnegative)
        self._body(s.body)
        self._restore(s.var.name, outer_value)
        next_index = b.effect(f"add nuw nsw i64 {index}, {s.step}")
        continues = b.effect(f"icmp slt i64 {next_index}, {stop}")
        latch = scope.label
        b.pop()

        # invariants have been printed into `outer` by now
        if is_guarded:
            b.line(f"br i1 {is_entered}, label %{preheader}, label %{exit_label}")
            guard_block = outer.label
            b.start(preheader)
        else:
            guard_block, preheader = "", outer.label
        b.line(f"br label %{header}")
        b.start(header)
        b.line(f"{index} = phi i64 [ {start}, %{preheader} ], [ {next_index}, %{latch} ]")
        finals: list[tuple[Buffer, int, str, str]] = []
        for buffer, slot, value, phi in carried:
            kind = value_type(buffer.dtype, buffer.lanes)
            final = self.registers[buffer][slot]
            b.line(f"{phi} = phi {kind} [ {value}, %{preheader} ], [ {final}, %{latch} ]")
            finals.append((buffer, slot, value, final))
        b.scope.lines.extend(scope.lines)
        b.line(f"br i1 {continues}, label %{header}, label %{exit_label}")
        b.start(exit_label)
        self._drop_first_stores(s.body, carried, is_guarded)
        for buffer, slot, value, final in finals:
            if is_guarded:
                kind = value_type(buffer.dtype, buffer.lanes)
                final = b.effect(f"phi {kind} [ {value}, %{guard_block} ], [ {final}, %{latch} ]")
            else:
                self._hoist_definition(final)
            self.registers[buffer][slot] = final

    def _hoist_definition(self, name: str) -> None:
        """Mark a value of a loop body that surely ran as defined in the enclosing scope."""
        if name in self.b.depth:
            self.b.depth[name] = min(self.b.depth[name], self.b.scope.depth)

    def _drop_first_stores(self, body: Body, carried: list[tuple[Buffer, int, str, str]], is_guarded: bool) -> None:
        """Drop registers whose first store is in the loop, as they are undefined if it did not run."""
        carried_slots = {(buffer, slot) for buffer, slot, _, _ in carried}
        for buffer in self._written_registers(body):
            values = self.registers.get(buffer, {})
            for slot in [slot for slot in values if (buffer, slot) not in carried_slots]:
                if is_guarded:
                    del values[slot]
                else:
                    self._hoist_definition(values[slot])

    def _if(self, s: If) -> None:
        b = self.b
        condition = self.value(s.cond)
        if condition in ("true", "false"):
            self._body(s.then if condition == "true" else s.orelse)
            return
        before = {buffer: dict(values) for buffer, values in self.registers.items()}
        after: list[dict[Buffer, dict[int, str]]] = []

        def branch(body: Body) -> None:
            self._body(body)
            after.append(self.registers)
            self.registers = {buffer: dict(slots) for buffer, slots in before.items()}

        then, orelse = b.branch(condition, partial(branch, s.then), partial(branch, s.orelse))
        then_registers, else_registers = after
        for buffer, values in self.registers.items():
            kind = value_type(buffer.dtype, buffer.lanes)
            for slot in then_registers[buffer].keys() & else_registers[buffer].keys():
                p, q = then_registers[buffer][slot], else_registers[buffer][slot]
                values[slot] = p if p == q else b.effect(f"phi {kind} [ {p}, %{then.label} ], [ {q}, %{orelse.label} ]")

    def _written_registers(self, body: Body) -> list[Buffer]:
        """Return the register buffers that `body` writes."""
        buffers = self.written_buffers.get(id(body))
        if buffers is None:
            buffers = sorted(written_registers(body), key=lambda buffer: buffer.name)
            self.written_buffers[id(body)] = buffers
        return buffers


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
