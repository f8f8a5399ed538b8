"""Emits LLVM IR text with value numbering and loop-invariant placement.

    emit("add i64 %x, 4", ("%x",))   ->   "%v7", printed once, in the outermost loop's preheader where %x is known

A scope is the straight-line text of one loop body or branch. Pure instructions go to the scope of their deepest
operand, so invariants leave loops as they are printed; the few passes of `assemble` need not find them. Text that
belongs to an outer scope can always be appended there, because an inner body is only spliced in when it is complete.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import field
from functools import lru_cache

import numpy as np

from ingot.ir.types import DType
from ingot.support.dataclass import dataclass
from ingot.support.native import Features

# bf16 is its bits: LLVM would move a bfloat through f32, by library calls where the machine has no bf16
_STORAGE = {"f64": "double", "f32": "float", "f16": "half"}
_MANGLED = {"double": "f64", "float": "f32", "half": "f16", "ptr": "p0"}


def storage_type(dtype: DType, lanes: int = 1) -> str:
    """The LLVM type of `lanes` elements in memory: bool, sub-byte and 8-bit float types are bytes."""
    scalar = _STORAGE.get(dtype.name) or f"i{max(8, dtype.bits)}"
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def value_type(dtype: DType, lanes: int = 1) -> str:
    """The LLVM type of a value: as in memory, but bool is i1."""
    if dtype.kind == "b":
        return "i1" if lanes == 1 else f"<{lanes} x i1>"
    return storage_type(dtype, lanes)


def vector_of(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def mangle(scalar: str, lanes: int) -> str:
    """The type suffix of an intrinsic's name: v16f32."""
    name = _MANGLED.get(scalar, scalar)
    return name if lanes == 1 else f"v{lanes}{name}"


def literal(value: int | float | bool, dtype: DType) -> str:
    """A scalar constant's text."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    return _float_literal(struct.pack("<d", value), dtype)


@lru_cache(4096)
def _float_literal(value: bytes, dtype: DType) -> str:
    """Of the bytes of a double, as 0.0 == -0.0."""
    with np.errstate(over="ignore"):
        rounded = np.frombuffer(value, "<f8").astype(dtype.numpy)[0]
    if dtype.name == "f16":
        return f"0xH{int(rounded.view(np.uint16)):04X}"
    if dtype.name == "bf16":
        return str(int(rounded.view(np.int16)))
    if dtype.bits <= 8:
        return str(int(rounded.view(np.int8)))
    return f"0x{int(rounded.astype(np.float64).view(np.uint64)):016X}"


@dataclass(slots=True)
class Scope:
    """Text of one body. `floor`: work that costs does not rise above this depth (it would leave its `If`)."""

    depth: int
    floor: int
    label: str
    lines: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


class Builder:
    """One function's text. Values are strings: "%v7", or a constant's text, which is known at depth 0."""

    def __init__(self, features: Features, declares: set[str]) -> None:
        self.features = features
        self.declares = declares
        self._declared: set[str] = set()
        self.scopes = [Scope(0, 0, "entry")]
        self.depth: dict[str, int] = {}
        self.shuffles: dict[str, int] = {}  # how many of them a value has come through
        self.entry: list[str] = []
        self._seen: dict[str, str] = {}
        self._count = 0

    def name(self, depth: int) -> str:
        """A fresh value name, known from `depth` on."""
        self._count += 1
        name = f"%v{self._count}"
        if depth:
            self.depth[name] = depth
        return name

    def label(self) -> str:
        self._count += 1
        return f"b{self._count}"

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def push(self, label: str, conditional: bool) -> Scope:
        """Open the body of a loop (or, `conditional`, of a branch), which starts at block `label`."""
        outer = self.scopes[-1]
        depth = outer.depth + 1
        scope = Scope(depth, depth if conditional else outer.floor, label)
        self.scopes.append(scope)
        return scope

    def pop(self) -> Scope:
        scope = self.scopes.pop()
        for key in scope.keys:
            del self._seen[key]
        return scope

    def branch(self, condition: str, then: Callable[[], None], orelse: Callable[[], None]) -> tuple[Scope, Scope]:
        """Two bodies by a condition; their scopes, whose labels are the blocks that they end in."""
        done, scopes = self.label(), []
        for body in (then, orelse):
            label = self.label()
            scopes.append((label, self.push(label, conditional=True)))
            body()
            self.pop()
        (yes, first), (no, second) = scopes
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")
        for label, scope in scopes:
            self.scope.lines.append(label + ":")
            self.scope.lines.extend(scope.lines)
            self.line(f"br label %{done}")
        self.start(done)
        return first, second

    def line(self, text: str) -> None:
        """An instruction with an effect: it stays where it is."""
        self.scopes[-1].lines.append(text)

    def start(self, label: str) -> None:
        """Begin a basic block in the current scope."""
        scope = self.scopes[-1]
        scope.lines.append(label + ":")
        scope.label = label

    def effect(self, text: str) -> str:
        """An instruction that reads memory: a new value, printed here."""
        scope = self.scopes[-1]
        name = self.name(scope.depth)
        scope.lines.append(f"{name} = {text}")
        return name

    def emit(self, text: str, operands: tuple[str, ...], cheap: bool = False) -> str:
        """A pure instruction: printed once, as far out as its operands (and, unless cheap, the `If` it is in) allow."""
        found = self._seen.get(text)
        if found is not None:
            return found
        scopes = self.scopes
        known = self.depth
        at = 0 if cheap else scopes[-1].floor
        for operand in operands:
            depth = known.get(operand, 0)
            if depth > at:
                at = depth
        scope = scopes[at]
        name = self.name(at)
        scope.lines.append(f"{name} = {text}")
        scope.keys.append(text)
        self._seen[text] = name
        return name

    def splat(self, value: str, scalar: str, lanes: int) -> str:
        """A scalar value in every lane."""
        if lanes == 1:
            return value
        if value[0] != "%":
            return f"splat ({scalar} {value})"
        vector = f"<{lanes} x {scalar}>"
        one = self.emit(f"insertelement {vector} poison, {scalar} {value}, i64 0", (value,))
        return self.emit(
            f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer",
            (one,),
        )

    def call(
        self,
        intrinsic: str,
        result: str,
        arguments: tuple[tuple[str, str], ...],
        cheap: bool = False,
        flags: str = "",
    ) -> str:
        """A pure intrinsic: arguments are (type, value); `flags` are fast-math flags, each with a space behind it."""
        if intrinsic not in self._declared:
            self._declared.add(intrinsic)
            self.declares.add(f"declare {result} @{intrinsic}({', '.join([t for t, _ in arguments])})")
        given = ", ".join([f"{t} {v}" for t, v in arguments])
        return self.emit(f"call {flags}{result} @{intrinsic}({given})", tuple([v for _, v in arguments]), cheap)
