"""Bind a program to input shapes: symbols get values, buffers get places, steps get their argument tables.

program + (8, 128) -> s0 = 8: arena 3.1 MB, 42 step records, output (8, 1000)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import memory
from ingot.runtime.dtypes import itemsize
from ingot.runtime.expr import Expr, Span, evaluate, linear_in, show, span
from ingot.runtime.image import CodeImage
from ingot.runtime.program import Buffer, Program, Symbol, table_places
from ingot.support.errors import IngotError, InputError

_ARENA, _WEIGHTS, _TENSORS = 0, 1, 2
_MAX_CHUNKS = 1 << 31
_UNKNOWN = -(1 << 63)
_BEYOND = "the input holds more than there is room for: compile with a larger bound, or pass less"

Shape = tuple[int, ...]


def told_by(program: Program, inputs: Sequence[np.ndarray]) -> tuple[Shape, ...]:
    """What `bind_symbols` takes, of a program without state."""
    telling = [x for spec, x in zip(program.inputs, inputs, strict=True) if spec.elements]
    return (*(x.shape for x in inputs), *(tuple(x.reshape(-1).tolist()) for x in telling))


def _wider(symbol: Symbol, size: int) -> str:
    """What to do about a size outside of its bounds."""
    if size:
        return f"compile with bounds that hold it, as in dynamic={{{symbol.name!r}: (1, {max(1, size)})}}"
    taken = f"dynamic={{{symbol.name!r}: (0, None)}} for ONNX, never for PyTorch's exports"
    return f"leave out calls on nothing: a size may be 0 only where the model was compiled for it ({taken})"


def bind_symbols(program: Program, told: Sequence[Shape]) -> dict[str, int]:
    """The symbols' values. told: the arguments' shapes, and behind them the values of each that has elements.

    Every dim, element and condition is checked; raises InputError.
    """
    values: dict[str, int] = {}
    origin: dict[str, str] = {}
    facts = _facts(program, told)
    for dim, size, where, place, _ in facts:
        line = linear_in(dim)
        if line is not None and line[0] not in values:
            name, slope, start = line
            values[name] = (size - start) // slope  # a size between two values fails the check below
            origin[name] = f"{place} of {where}"
    for symbol in program.symbols:
        size = values[symbol.name]
        if (symbol.lo is not None and size < symbol.lo) or (symbol.hi is not None and size > symbol.hi):
            limits = ((symbol.lo, ">="), (symbol.hi, "<="))
            raise InputError(
                origin[symbol.name],
                expected=symbol.name + " and".join(f" {sign} {limit}" for limit, sign in limits if limit is not None),
                got=size,
                fix=_wider(symbol, size),
            )
    for dim, size, where, place, whole in facts:
        wanted = evaluate(dim, values)
        if wanted == size:
            continue
        if isinstance(dim, int):
            fix = "the model was compiled for this size; pass it, or compile with a dynamic dim"
        else:
            fix = "; ".join(f"{name} = {values[name]} comes from {origin[name]}" for name in _used(dim, origin))
        meant = str(wanted) if isinstance(dim, int) else f"{show(dim)} = {wanted}"
        raise InputError(f"{where}, {place}", expected=meant, got=f"{size} in {whole}", fix=fix)
    found = {size.name for size in program.sizes}
    for condition in program.conditions:
        if isinstance(condition, tuple) and not found.isdisjoint(condition):
            continue  # the run checks it
        if evaluate(condition, values) < 0:
            used = _used(condition, origin)
            raise InputError(
                " and ".join(origin[name] for name in used),
                expected=f"{show(condition)} >= 0",
                got=", ".join(f"{name} = {values[name]}" for name in used),
                fix="the model holds for such sizes only, by its tables or as it was traced: "
                "use these, or export it with examples of the others",
            )
    return values


def _facts(program: Program, told: Sequence[Shape]) -> list[tuple[Expr, int, str, str, Shape]]:
    """(declared, passed, which input, which axis or element, all that was passed) of every size and number told."""
    arguments = program.arguments
    telling = [spec for spec in arguments if spec.elements]
    for spec, shape in zip(arguments, told, strict=False):
        if len(spec.shape) != len(shape):
            wanted = f"{len(spec.shape)} dims [{', '.join(map(show, spec.shape))}]"
            raise InputError(f"input {spec.name!r}", expected=wanted, got=f"shape {shape}")
    rows = [(spec, spec.shape, "axis") for spec in arguments] + [(spec, spec.elements, "element") for spec in telling]
    facts: list[tuple[Expr, int, str, str, Shape]] = []
    for (spec, declared, kind), passed in zip(rows, told, strict=True):
        if len(declared) != len(passed):
            wanted = f"{len(declared)} elements"
            raise InputError(f"input {spec.name!r}", expected=wanted, got=f"{len(passed)}")
        places = enumerate(zip(declared, passed, strict=True))
        facts += [(dim, size, f"input {spec.name!r}", f"{kind} {i}", passed) for i, (dim, size) in places]
    return facts


def _used(size: Expr, origin: Mapping[str, str]) -> list[str]:
    """The symbols of a size, each once."""
    return [] if isinstance(size, int) else [name for name in origin if name in size]


def _spans(program: Program, values: Mapping[str, int]) -> dict[str, Span]:
    """Where the symbols' values lie, and the sizes that the run finds."""
    spans = {name: (value, value) for name, value in values.items()}
    for size in program.sizes:
        most = span(size.most, spans)[1]
        spans[size.name] = min(size.lo, 0), max(0, most if size.hi is None else min(most, size.hi))
    return spans


class Layout:
    """Where the arena buffers of a bound program are.

    offsets: byte offset of each arena buffer that is not an alias. filled: (offset, bytes, byte) of the regions that
    must hold that byte before the first run. nbytes: the arena's size.
    """

    def __init__(self, program: Program, spans: Mapping[str, Span]) -> None:
        """Buffers are as large as sizes that lie in `spans` may make them."""
        plain: list[tuple[Buffer, int]] = []
        groups: dict[tuple[str, int, int], list[Buffer]] = {}
        for buffer in program.buffers:
            if buffer.kind != "arena" or buffer.alias is not None:
                continue
            nbytes = max(0, span(buffer.nbytes, spans)[1])
            if buffer.halo is None:
                plain.append((buffer, nbytes))
            else:
                groups.setdefault((buffer.halo, buffer.fill, nbytes), []).append(buffer)
        requests = [memory.Request(n, b.first_step, b.last_step) for b, n in plain]
        places, total = memory.place(requests)
        self.offsets = {buffer.id: place for (buffer, _), place in zip(plain, places, strict=True)}
        self.filled: list[tuple[int, int, int]] = []
        for (_, fill, nbytes), members in groups.items():
            requests = [memory.Request(nbytes, b.first_step, b.last_step) for b in members]
            places, size = memory.place(requests)
            self.offsets.update({b.id: total + place for b, place in zip(members, places, strict=True)})
            self.filled.append((total, size, fill))
            total += size
        self.nbytes = total


class Instance:
    """A program bound to input shapes, ready to run: the context and tables that the driver reads.

    Not safe for two runs at once. `bases` slots of arguments and results are written before each run.
    """

    def __init__(self, program: Program, told: Sequence[Shape], image: CodeImage) -> None:
        """told: as for `bind_symbols`."""
        self.values = bind_symbols(program, told)
        self.spans = _spans(program, self.values)
        self.layout = Layout(program, self.spans)
        self.output_shapes: list[Shape] = [
            tuple(span(dim, self.spans)[1] for dim in spec.shape) for spec in program.outputs
        ]
        for spec, shape in zip(program.outputs, self.output_shapes, strict=True):
            if min(shape, default=0) < 0:
                raise InputError(
                    f"output {spec.name!r}", expected="sizes >= 0", got=shape, fix=f"the inputs are too small: {told}"
                )
        # of each output: its shape, the strides of a dense one in elements, its bytes
        self.results = [
            (shape, tuple(prod(max(n, 1) for n in shape[axis:]) for axis in range(1, len(shape) + 1)), nbytes)
            for shape, nbytes in (
                (shape, prod(shape) * itemsize(spec.dtype))
                for spec, shape in zip(program.outputs, self.output_shapes, strict=True)
            )
        ]
        locate = _Locator(program, self.values, self.layout)
        args: list[int] = []
        chunks: list[int] = []
        rounds: list[int] = []
        for step in program.steps:
            for identity, offset in step.args:
                base, place = locate(identity)
                args += (base, place + evaluate(offset, self.values))
            args += (span(dim, self.spans)[1] for dim in step.dims)
            if step.target is not None:
                chunks.append(step.target)
                rounds.append(-1 if step.args else -2)
                continue
            count = span(step.chunks, self.spans)[1]
            if not 0 <= count < _MAX_CHUNKS:
                where = step.label or step.kernel
                raise IngotError("step", expected=f"0 <= chunks < {_MAX_CHUNKS}", got=count, where=where)
            chunks.append(count)
            rounds.append(span(step.rounds, self.spans)[1])
        count = len(program.steps)
        self._table = np.zeros(4 * count + len(args), np.int64)
        self._table[4 * count :] = args
        place = table_places(program.steps)
        starts = [place(i, 2) - 2 * len(step.args) for i, step in enumerate(program.steps)]
        self.records = self._table[: 4 * count].reshape(-1, 4)
        self.records[:, 0] = [image.address(s.kernel) if s.target is None else 0 for s in program.steps]
        self.records[:, 1] = self._table.ctypes.data + 8 * np.array(starts, np.int64)
        self.records[:, 2] = chunks
        self.records[:, 3] = rounds
        tensors = _TENSORS + len(program.arguments) + len(program.results)
        self._bases = np.zeros(tensors + 2, np.int64)
        self._context = np.zeros(7, np.int64)
        self._context[1] = self._bases.ctypes.data
        self._context[2] = self._table.ctypes.data
        self._context[3] = count
        self._program = program
        self.sizes = np.zeros(len(program.sizes), np.int64)
        self._bases[tensors:] = self.sizes.ctypes.data, self._table.ctypes.data
        self.chunks = [n * max(r, 0) for n, r in zip(chunks, rounds, strict=True)]
        self.bases = self._bases.data
        self.address: int = self._context.ctypes.data
        self.last_used = 0

    @property
    def most(self) -> dict[str, int]:
        """The symbols' values, and the most that sizes may be which the run finds."""
        return {name: high for name, (_, high) in self.spans.items()}

    def begin(self) -> None:
        """No size is found yet."""
        self.sizes.fill(_UNKNOWN)

    def found(self) -> dict[str, int]:
        """All sizes, after a run. Raises InputError where it found one beyond its bounds, or that breaks a condition,
        and went no further."""
        values, program = dict(self.values), self._program
        for size, value in zip(program.sizes, self.sizes.tolist(), strict=True):
            if value == _UNKNOWN:
                continue  # in a branch that was not taken
            most = span(size.most, {name: (v, v) for name, v in values.items()})[1]
            most = most if size.hi is None else min(most, size.hi)
            if not size.lo <= value <= most:
                raise InputError(f"size {size.name}", expected=f"{size.lo} to {most}", got=value, fix=_BEYOND)
            values[size.name] = value
        for condition in program.conditions:
            names = [item for item in condition if item in values] if isinstance(condition, tuple) else []
            if all(s.name in values for s in program.sizes if isinstance(condition, tuple) and s.name in condition):
                got = ", ".join(f"{name} = {values[name]}" for name in dict.fromkeys(names))
                if evaluate(condition, values) < 0:
                    raise InputError("sizes that the data gives", expected=f"{show(condition)} >= 0", got=got)
        return values

    def cut(self) -> list[Shape]:
        """The shapes of the outputs, after a run. Raises as `found` does."""
        values = self.found()
        return [tuple(evaluate(dim, values) for dim in spec.shape) for spec in self._program.outputs]

    def attach(self, *, pool: int, arena: int, weights: int, scratch: int, stride: int) -> None:
        """Set the addresses that outlive a run."""
        self._context[0] = pool
        self._context[4] = scratch
        self._context[5] = stride
        self._bases[_ARENA] = arena
        self._bases[_WEIGHTS] = weights

    def set_profile(self, readings: NDArray[np.int64] | None) -> None:
        """Record a clock reading before the first and after each step (steps + 1 cells), or stop doing so."""
        self._context[6] = 0 if readings is None else readings.ctypes.data


class _Locator:
    """Buffer id -> (index into bases, byte offset)."""

    def __init__(self, program: Program, values: Mapping[str, int], layout: Layout) -> None:
        self._by_id = {buffer.id: buffer for buffer in program.buffers}
        self._values = values
        self._layout = layout
        self._outputs = _TENSORS + len(program.arguments)
        self._sizes = self._outputs + len(program.results)
        self._known: dict[int, tuple[int, int]] = {}

    def __call__(self, identity: int) -> tuple[int, int]:
        if identity not in self._known:
            self._known[identity] = self._locate(self._by_id[identity])
        return self._known[identity]

    def _locate(self, buffer: Buffer) -> tuple[int, int]:
        if buffer.alias is not None:
            base, place = self(buffer.alias[0])
            return base, place + evaluate(buffer.alias[1], self._values)
        if buffer.kind == "arena":
            return _ARENA, self._layout.offsets[buffer.id]
        if buffer.kind == "weight":
            return _WEIGHTS, buffer.offset
        if buffer.kind == "size":
            return self._sizes, 8 * buffer.index
        if buffer.kind == "table":
            return self._sizes + 1, 0
        return (_TENSORS if buffer.kind == "input" else self._outputs) + buffer.index, 0
