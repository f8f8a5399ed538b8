"""Emits LLVM IR text with value numbering and loop-invariant code motion.

    emit("add i64 %x, 4", ("%x",))   ->   "%v7", printed once, in the outermost loop's preheader where %x is known

A scope is the straight-line text of one loop body or branch. A pure instruction is printed into the scope of its
deepest operand, so invariants leave loops without a pass of LLVM. Text can always be appended to an outer scope,
because an inner body is only spliced in when it is complete.
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

# bf16 is stored as i16: LLVM would convert a bfloat through f32, by library calls on machines without bf16
_STORAGE = {"f64": "double", "f32": "float", "f16": "half"}
_MANGLED = {"double": "f64", "float": "f32", "half": "f16", "ptr": "p0"}


def storage_type(dtype: DType, lanes: int = 1) -> str:
    """Return the LLVM type of `lanes` elements in memory: bool, sub-byte and 8-bit float types are bytes."""
    scalar = _STORAGE.get(dtype.name) or f"i{max(8, dtype.bits)}"
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def value_type(dtype: DType, lanes: int = 1) -> str:
    """Return the LLVM type of a value: as in memory, but bool is i1."""
    if dtype.kind == "b":
        return "i1" if lanes == 1 else f"<{lanes} x i1>"
    return storage_type(dtype, lanes)


def vector_of(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def mangle(scalar: str, lanes: int) -> str:
    """Return the type suffix of an intrinsic's name: v16f32."""
    name = _MANGLED.get(scalar, scalar)
    return name if lanes == 1 else f"v{lanes}{name}"


def literal(value: int | float | bool, dtype: DType) -> str:
    """Return the text of a scalar constant."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    return _float_literal(struct.pack("<d", value), dtype)


@lru_cache(4096)
def _float_literal(value: bytes, dtype: DType) -> str:
    """value: the bytes of a double, as a cache key that distinguishes 0.0 from -0.0."""
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
    """The text of one body. floor: the depth above which expensive instructions do not move, as they would leave their
    `If`."""

    depth: int
    floor: int
    label: str
    lines: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def has_fma(features: Features) -> bool:
    """Whether the machine's multiply-adds round once."""
    return features.arch in ("aarch64", "riscv64") or "fma" in features


class Builder:
    """The text of one function. Values are strings: "%v7", or a constant's text, which is defined at depth 0."""

    def __init__(self, features: Features, declares: set[str]) -> None:
        self.features = features
        self.declares = declares
        self._declared: set[str] = set()
        self.scopes = [Scope(0, 0, "entry")]
        self.depth: dict[str, int] = {}
        self.shuffle_depth: dict[str, int] = {}  # the length of the chain of shuffles behind a value
        self.entry: list[str] = []
        self._emitted: dict[str, str] = {}
        self._n_names = 0

    @property
    def has_fma(self) -> bool:
        return has_fma(self.features)

    def name(self, depth: int) -> str:
        """Make a value name, defined at `depth`."""
        self._n_names += 1
        name = f"%v{self._n_names}"
        if depth:
            self.depth[name] = depth
        return name

    def label(self) -> str:
        self._n_names += 1
        return f"b{self._n_names}"

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
            del self._emitted[key]
        return scope

    def branch(self, condition: str, then: Callable[[], None], orelse: Callable[[], None]) -> tuple[Scope, Scope]:
        """Print two bodies under a condition; return their scopes, whose labels are the blocks in which they end."""
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
        """Append an instruction with a side effect."""
        self.scopes[-1].lines.append(text)

    def start(self, label: str) -> None:
        """Begin a basic block in the current scope."""
        scope = self.scopes[-1]
        scope.lines.append(label + ":")
        scope.label = label

    def effect(self, text: str) -> str:
        """Append an instruction that reads memory; return its value."""
        scope = self.scopes[-1]
        name = self.name(scope.depth)
        scope.lines.append(f"{name} = {text}")
        return name

    def emit(self, text: str, operands: tuple[str, ...], cheap: bool = False) -> str:
        """Emit a pure instruction once, as far out as its operands (and, unless `cheap`, its `If`) allow."""
        emitted = self._emitted.get(text)
        if emitted is not None:
            return emitted
        scopes = self.scopes
        depth_of = self.depth
        level = 0 if cheap else scopes[-1].floor
        for operand in operands:
            depth = depth_of.get(operand, 0)
            if depth > level:
                level = depth
        scope = scopes[level]
        name = self.name(level)
        scope.lines.append(f"{name} = {text}")
        scope.keys.append(text)
        self._emitted[text] = name
        return name

    def splat(self, value: str, scalar: str, lanes: int) -> str:
        """Broadcast a scalar to all lanes."""
        if lanes == 1:
            return value
        if value[0] != "%":
            return f"splat ({scalar} {value})"
        vector = f"<{lanes} x {scalar}>"
        first = self.emit(f"insertelement {vector} poison, {scalar} {value}, i64 0", (value,))
        return self.emit(
            f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer",
            (first,),
        )

    def call(
        self,
        intrinsic: str,
        result: str,
        arguments: tuple[tuple[str, str], ...],
        cheap: bool = False,
        flags: str = "",
    ) -> str:
        """Call a pure intrinsic. arguments: (type, value). flags: fast-math flags, each followed by a space."""
        if intrinsic not in self._declared:
            self._declared.add(intrinsic)
            self.declares.add(f"declare {result} @{intrinsic}({', '.join([t for t, _ in arguments])})")
        operands = ", ".join([f"{t} {v}" for t, v in arguments])
        return self.emit(f"call {flags}{result} @{intrinsic}({operands})", tuple([v for _, v in arguments]), cheap)
