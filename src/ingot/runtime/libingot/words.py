"""The plan as 64-bit words, for `libingot`: what `plan_json` has, without names that only people read.

    [symbols | sizes | inputs | outputs | state | conditions | buffers | steps | ...]

It is a stream: each count is followed by as many items. A text is its bytes' number and the bytes, padded to words. An
expression is 0 and a constant, or the number of its postfix items and a pair (kind, value) for each: 0 a constant, 1
the number of a symbol or (behind all symbols) a size, 2 an operator. `libingot.c` reads it, and checks as much as
`program.Program.check` does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ingot.runtime import dtypes
from ingot.runtime.expr import OPERATORS, Expr, linear_in
from ingot.runtime.program import BufferKind, Program, TensorSpec
from ingot.support.native import FEATURES

_OPERATORS = {name: number for number, name in enumerate(OPERATORS)}
_KINDS: Mapping[BufferKind, int] = {"arena": 0, "weight": 1, "input": 2, "output": 3, "size": 4, "table": 5}
_DTYPES = {name: number for number, name in enumerate(dtypes.NAMES)}
ENTRIES = ("ingot_run", "ingot_worker", "ingot_stop", "ingot_clock")


class _Words:
    def __init__(self, names: Mapping[str, int]) -> None:
        self.data = bytearray()
        self._names = names

    def add(self, *values: int) -> None:
        self.data += struct.pack(f"<{len(values)}q", *values)

    def text(self, text: str) -> None:
        data = text.encode()
        self.add(len(data))
        self.data += data.ljust(-(-len(data) // 8) * 8, b"\0")

    def bound(self, value: int | None) -> None:
        self.add(value is not None, value or 0)

    def expr(self, value: Expr) -> None:
        if isinstance(value, int):
            self.add(0, value)
            return
        self.add(len(value))
        for item in value:
            if isinstance(item, int):
                self.add(0, item)
            elif item in _OPERATORS:
                self.add(2, _OPERATORS[item])
            else:
                self.add(1, self._names[item])

    def exprs(self, values: Sequence[Expr]) -> None:
        self.add(len(values))
        for value in values:
            self.expr(value)

    def spec(self, spec: TensorSpec) -> None:
        self.text(spec.name)
        self.add(_DTYPES[spec.dtype])
        self.exprs(spec.shape)
        self.exprs(spec.elements)


def encode(program: Program) -> bytes | None:
    """The plan of a program whose only device is the CPU; None for any other, for one of several ranks, and where a
    number has over 64 bits."""
    outside = any(step.collective is not None or step.host is not None for step in program.steps)
    if [*program.code] != ["cpu"] or outside:
        return None
    try:
        return bytes(_encode(program))
    except struct.error:
        return None


def _encode(program: Program) -> bytearray:
    names = {named.name: number for number, named in enumerate((*program.symbols, *program.sizes))}
    out, code = _Words(names), program.code["cpu"]
    out.text(code.features.arch)
    out.add(len(code.features.features))
    linux_names = FEATURES.get(code.features.arch, {})
    for feature in code.features.features:
        out.text(linux_names.get(feature, feature))
    out.add(program.scratch_bytes, *(code.symbols[name] for name in ENTRIES))
    out.add(len(program.symbols))
    origins = _origins(program)
    for symbol in program.symbols:
        out.text(symbol.name)
        out.bound(symbol.lo)
        out.bound(symbol.hi)
        out.add(*origins[symbol.name])
    out.add(len(program.sizes))
    for size in program.sizes:
        out.text(size.name)
        out.add(size.lo)
        out.bound(size.hi)
        out.expr(size.bound)
    for specs in (program.inputs, program.outputs):
        out.add(len(specs))
        for spec in specs:
            out.spec(spec)
    out.add(len(program.state))
    for state in program.state:
        out.spec(state.spec)
        out.add(bool(state.copy_reason))
    out.exprs(program.conditions)
    _buffers_and_steps(out, program)
    return out.data


def _buffers_and_steps(out: _Words, program: Program) -> None:
    index = {buffer.id: number for number, buffer in enumerate(program.buffers)}
    halos = {name: number for number, name in enumerate(dict.fromkeys(b.halo for b in program.buffers if b.halo))}
    out.add(len(program.buffers))
    for b in program.buffers:
        out.add(_KINDS[b.kind], b.first_step, b.last_step, b.offset, b.index, halos[b.halo] if b.halo else -1, b.fill)
        out.expr(b.nbytes)
        out.add(-1 if b.alias is None else index[b.alias[0]])
        out.expr(0 if b.alias is None else b.alias[1])
    symbols = program.code["cpu"].symbols
    out.add(len(program.steps))
    for step in program.steps:
        out.add(*((symbols[step.kernel], -1) if step.target is None else (0, step.target)), len(step.args))
        for buffer, offset in step.args:
            out.add(index[buffer])
            out.expr(offset)
        out.exprs(step.dims)
        out.expr(step.chunks)
        out.expr(step.rounds)


def _origins(program: Program) -> dict[str, tuple[int, int, int, int]]:
    """For each symbol (row, position, slope, start): size = slope * symbol + start. Rows are the arguments' shapes,
    then the elements of the inputs that have some."""
    rows = [spec.shape for spec in program.arguments] + [spec.elements for spec in program.inputs if spec.elements]
    origins: dict[str, tuple[int, int, int, int]] = {}
    for row, dims in enumerate(rows):
        for position, dim in enumerate(dims):
            if (linear := linear_in(dim)) is not None:
                origins.setdefault(linear[0], (row, position, linear[1], linear[2]))
    return origins
