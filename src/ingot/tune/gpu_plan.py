"""The program of a trial: variants of one group's kernels on the same operands, over and over.

    copy(others' bytes)  copy(x)  variant 0      copy(others' bytes)  copy(x)  variant 1      ...

The first copy evicts everything from the cache, the second one loads what the previous kernel would have written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ingot.debug.gpu_probe import PROGRAM_BYTES
from ingot.ir.dims import DimLike, symbol
from ingot.ir.layout import Layout
from ingot.ir.types import DType
from ingot.ops.group import Group
from ingot.plan.sizes import kernel_dim
from ingot.runtime import program as rt
from ingot.schedule.lowered import Arg, Lowered
from ingot.support.dataclass import dataclass
from ingot.support.native import Code

_CACHE = 64 << 20  # bytes that fill the second-level cache of any current GPU


@dataclass(frozen=True)
class Place:
    """A site's group, with the arguments for lowering it."""

    group: Group
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    constant: tuple[bool, ...]


@dataclass(frozen=True)
class Trial:
    """inputs: bytes and kind of numbers of each. measured: of each step its round and variant, None for a copy."""

    program: rt.Program
    inputs: tuple[tuple[int, str], ...]
    measured: tuple[tuple[int, int] | None, ...]


class TrialPlan:
    """Builds the program of a trial. compared: whether the results of the variants are outputs, to be compared. size:
    the value of a dimension."""

    def __init__(self, place: Place, size: Callable[[DimLike], int], device: str, compared: bool) -> None:
        self._place, self._size, self._device, self._compared = place, size, device, compared
        self._buffers: list[rt.Buffer] = []
        self._inputs: list[tuple[int, str]] = []
        self._outputs: list[rt.TensorSpec] = []
        self._steps: list[rt.Step] = []
        self._measured: list[tuple[int, int] | None] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._cold = self._buffer("arena", _CACHE), self._buffer("arena", _CACHE)

    def add(self, low: Lowered, number: int, which: int) -> None:
        """A round of a variant."""
        args = [arg for step in low.steps for arg in step.args]
        if not self._compared:
            self._copy(*self._cold)
            for arg in dict.fromkeys(a for a in args if a.kind == "in" and not self._place.constant[a.index]):
                self._copy(self._operand(arg, low, which), self._cold[1])
        for step in low.steps:
            chunks = self._size(kernel_dim(step.kernel.chunks))
            dims = tuple(self._size(symbol(v.name)) for v in step.kernel.dims)
            places = tuple((self._operand(a, low, which), 0) for a in step.args)
            self._steps.append(rt.Step(step.kernel.name, places, dims, chunks, device=self._device))
            self._measured.append((number, which))

    def finish(self, code: Code) -> Trial:
        last = len(self._steps) - 1
        buffers = tuple(b if b.kind != "arena" else replace(b, last_step=last) for b in self._buffers)
        specs = tuple(rt.TensorSpec(f"x{i}", "u8", (nbytes,)) for i, (nbytes, _) in enumerate(self._inputs))
        program = rt.Program(
            symbols=(), inputs=specs, outputs=tuple(self._outputs), buffers=buffers, steps=tuple(self._steps),
            code={self._device: code}, weights=np.empty(0, np.uint8),
        )  # fmt: skip
        program.check()
        return Trial(program, tuple(self._inputs), tuple(self._measured))

    def _copy(self, source: int, target: int) -> None:
        chunks = max(1, min(self._nbytes(source), _CACHE) // PROGRAM_BYTES)
        if self._nbytes(source) >= PROGRAM_BYTES:
            self._steps.append(rt.Step("copy", ((source, 0), (target, 0)), (), chunks, device=self._device))
            self._measured.append(None)

    def _nbytes(self, buffer: int) -> int:
        nbytes = self._buffers[buffer].nbytes
        assert isinstance(nbytes, int)
        return nbytes

    def _operand(self, arg: Arg, low: Lowered, which: int) -> int:
        """The buffer of an operand: shared by both variants if they read it, separate if they write it."""
        place = self._place
        match arg.kind:
            case "in":
                dtype, layout = place.group.body.inputs[arg.index].dtype, place.ins[arg.index]
                return self._memoized(("in", arg.index), lambda: self._input(self._bytes(layout, dtype), dtype))
            case "pack":
                pack = low.packs[arg.index]
                return self._memoized(("pack", pack.key, pack.index), lambda: self._input(pack.nbytes, pack.dtype))
            case "out":
                dtype, layout = place.group.body.outputs[arg.index].dtype, place.outs[arg.index]
                return self._memoized(("out", which, arg.index), lambda: self._result(self._bytes(layout, dtype)))
            case "temp":
                nbytes = self._size(low.temps[arg.index])
                return self._memoized(("temp", which, arg.index), lambda: self._buffer("arena", nbytes))
            case "zeros":
                nbytes = self._size(low.zeros)
                return self._memoized(("zeros", which), lambda: self._buffer("arena", nbytes, halo="zeros"))

    def _memoized(self, key: tuple[object, ...], make: Callable[[], int]) -> int:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _buffer(self, kind: rt.BufferKind, nbytes: int, index: int = 0, halo: str | None = None) -> int:
        self._buffers.append(rt.Buffer(len(self._buffers), kind, nbytes, index=index, halo=halo, device=self._device))
        return len(self._buffers) - 1

    def _input(self, nbytes: int, dtype: DType) -> int:
        kind = dtype.name if dtype.is_float else "bool" if dtype.bits == 1 else "bytes" if dtype.bits <= 8 else "zeros"
        self._inputs.append((nbytes, kind))
        return self._buffer("input", nbytes, len(self._inputs) - 1)

    def _result(self, nbytes: int) -> int:
        if not self._compared:
            return self._buffer("arena", nbytes)
        self._outputs.append(rt.TensorSpec(f"y{len(self._outputs)}", "u8", (nbytes,)))
        return self._buffer("output", nbytes, len(self._outputs) - 1)

    def _bytes(self, layout: Layout, dtype: DType) -> int:
        """The bytes of a value: up to its last element, and at least its layout's span."""
        sizes, strides = [*map(self._size, layout.shape)], [*map(self._size, layout.strides)]
        last = self._size(layout.offset) + sum((n - 1) * max(s, 0) for n, s in zip(sizes, strides, strict=True)) + 1
        return max(last, self._size(layout.span)) * dtype.nbytes
