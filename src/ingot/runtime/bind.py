"""Bind a program to input shapes: symbols get values, buffers get places, results get shapes.

program + (8, 128) -> s0 = 8: arena 3.1 MB, output (8, 1000)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from ingot.runtime import placement
from ingot.runtime.dtypes import itemsize
from ingot.runtime.expr import Expr, Span, evaluate, linear_in, show, span
from ingot.runtime.program import Buffer, Program, Step, Symbol
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, IngotError, InputError, SizesError, VerifyError

_MAX_CHUNKS = 1 << 31
_MAX_SIZE = 1 << 40  # `ingot.ir.dims.MOST`: only an array without elements has more
_MAX_TOTAL_CHUNKS = 1 << 62
_ADDRESS_SPACE = 1 << 47  # bytes
_UNKNOWN = -(1 << 63)
_BEYOND = (
    "the input holds more than there is room for: compile with a larger bound "
    "(limits=ingot.Limits(sizes=...) where the model has none), or pass less"
)

Shape = tuple[int, ...]


def told_by(program: Program, inputs: Sequence[np.ndarray]) -> tuple[Shape, ...]:
    """What `bind_symbols` takes."""
    telling = [x for spec, x in zip(program.inputs, inputs, strict=True) if spec.elements]
    shapes = (*(x.shape for x in inputs), *(s.shape for s in program.state))
    return (*shapes, *(tuple(x.reshape(-1).tolist()) for x in telling))


_ON_NOTHING = (
    "leave out calls on nothing: a program of its own computes them, which is compiled where the model is at hand "
    "(ingot.compile, not ingot.load) and no bounds rule out the 0"
)


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
    outside = {s.name: values[s.name] for s in program.symbols if not _within(values[s.name], s)}
    for symbol in program.symbols:
        size = values[symbol.name]
        if symbol.name in outside:
            possible = all(evaluate(dim, values) == size for dim, size, *_ in facts)
            limits = ((symbol.lo, ">="), (symbol.hi, "<="))
            wider = f"compile with bounds that hold it, as in dynamic={{{symbol.name!r}: (1, {size})}}"
            raise SizesError(
                origin[symbol.name],
                expected=symbol.name + " and".join(f" {sign} {limit}" for limit, sign in limits if limit is not None),
                got=size,
                fix=wider if size else _ON_NOTHING,
            ).of(told, outside if possible else {})
    for dim, size, where, place, whole in facts:
        wanted = evaluate(dim, values)
        if wanted == size:
            continue
        got = f"{size} in {whole}"
        if isinstance(dim, int):
            fix = "the model was compiled for this size; pass it, or compile with a dynamic dim"
            raise InputError(f"{where}, {place}", expected=str(wanted), got=got, fix=fix)
        fix = "; ".join(f"{name} = {values[name]} comes from {origin[name]}" for name in _used(dim, origin))
        raise SizesError(f"{where}, {place}", expected=f"{show(dim)} = {wanted}", got=got, fix=fix).of(told)
    found = {size.name for size in program.sizes}
    for condition in program.conditions:
        if isinstance(condition, tuple) and not found.isdisjoint(condition):
            continue  # the run checks it
        if evaluate(condition, values) < 0:
            used = _used(condition, origin)
            raise SizesError(
                " and ".join(origin[name] for name in used),
                expected=f"{show(condition)} >= 0",
                got=", ".join(f"{name} = {values[name]}" for name in used),
                fix="the model holds for such sizes only, by its tables or as it was traced: "
                "use these, or export it with examples of the others",
            ).of(told)
    return values


def _within(size: int, symbol: Symbol) -> bool:
    return (symbol.lo is None or symbol.lo <= size) and (symbol.hi is None or size <= symbol.hi)


def _facts(program: Program, told: Sequence[Shape]) -> list[tuple[Expr, int, str, str, Shape]]:
    """(declared, passed, which input, which axis or element, all that was passed) of every size and number told."""
    arguments = program.arguments
    telling = [spec for spec in arguments if spec.elements]
    for spec, shape in zip(arguments, told, strict=False):
        if len(spec.shape) != len(shape):
            wanted = f"{len(spec.shape)} dims [{', '.join(map(show, spec.shape))}]"
            raise InputError(f"input {spec.name!r}", expected=wanted, got=f"shape {shape}")
        if max(shape, default=0) > _MAX_SIZE:
            raise InputError(f"input {spec.name!r}", expected=f"sizes of at most {_MAX_SIZE}", got=f"shape {shape}")
    rows = [(spec, spec.shape, "axis") for spec in arguments] + [(spec, spec.elements, "element") for spec in telling]
    facts: list[tuple[Expr, int, str, str, Shape]] = []
    for (spec, declared, kind), passed in zip(rows, told, strict=True):
        if len(declared) != len(passed):
            wanted = f"{len(declared)} elements"
            raise InputError(f"input {spec.name!r}", expected=wanted, got=f"{len(passed)}")
        places = enumerate(zip(declared, passed, strict=True))
        facts += [(dim, size, f"input {spec.name!r}", f"{kind} {i}", passed) for i, (dim, size) in places]
    return facts


def _used(size: Expr, origin: Iterable[str]) -> list[str]:
    """The symbols of a size, each once."""
    return [] if isinstance(size, int) else [name for name in origin if name in size]


def _spans(program: Program, values: Mapping[str, int]) -> dict[str, Span]:
    """Where the symbols' values lie, and the sizes that the run finds."""
    spans = {name: (value, value) for name, value in values.items()}
    for size in program.sizes:
        most = span(size.most, spans)[1]
        spans[size.name] = min(size.lo, 0), max(0, most if size.hi is None else min(most, size.hi))
    return spans


def _addressable(nbytes: int) -> int:
    """`nbytes`. Raises IngotError where no machine has as many."""
    if nbytes >= _ADDRESS_SPACE:
        fix = "use smaller inputs or batches"
        raise IngotError("out of memory", expected=f"less than {_ADDRESS_SPACE} bytes", got=nbytes, fix=fix)
    return nbytes


@dataclass(frozen=True)
class Images:
    """What arena buffers of one geometry have in common, those of other programs, too: all bytes `fill` at first, of
    which no step writes the borders. sizes: where the values of the program's symbols lie, as `halo` names some."""

    halo: str
    fill: int
    nbytes: int
    sizes: tuple[tuple[str, Span], ...]


class Layout:
    """Where the arena buffers of a bound program are.

    offsets: byte offset of each arena buffer that is not an alias. plain: bytes of those without borders, which come
    first. images: (geometry, offset, bytes) of the others; geometry: of a buffer among these, which of them it is in.
    nbytes: the arena's size.
    """

    def __init__(self, program: Program, spans: Mapping[str, Span]) -> None:
        """Buffers are as large as sizes that lie in `spans` may make them."""
        plain: list[tuple[Buffer, int]] = []
        groups: dict[Images, list[Buffer]] = {}
        sizes = tuple(sorted(spans.items()))
        total = 0
        for buffer in program.buffers:
            if buffer.kind != "arena" or buffer.alias is not None:
                continue
            nbytes = _addressable(max(0, span(buffer.nbytes, spans)[1]))
            total = _addressable(total + nbytes)
            if buffer.halo is None:
                plain.append((buffer, nbytes))
            else:
                groups.setdefault(Images(buffer.halo, buffer.fill, nbytes, sizes), []).append(buffer)
        requests = [placement.Request(n, b.first_step, b.last_step) for b, n in plain]
        places, self.plain = placement.place(requests)
        self.offsets = {buffer.id: place for (buffer, _), place in zip(plain, places, strict=True)}
        self.images: list[tuple[Images, int, int]] = []
        self.geometry: dict[int, int] = {}
        self.nbytes = self.plain
        for images, members in groups.items():
            requests = [placement.Request(images.nbytes, b.first_step, b.last_step) for b in members]
            places, size = placement.place(requests)
            self.offsets.update({b.id: self.nbytes + place for b, place in zip(members, places, strict=True)})
            self.geometry.update((b.id, len(self.images)) for b in members)
            self.images.append((images, self.nbytes, size))
            self.nbytes += size

    @property
    def filled(self) -> list[tuple[int, int, int]]:
        """(offset, bytes, byte) of what must hold that byte before the first run."""
        return [(offset, nbytes, images.fill) for images, offset, nbytes in self.images]


class Binding:
    """A program with the sizes of one set of input shapes.

    values: of the symbols. spans: of these, and of the sizes that the run finds. layout: of the arena. counts: of each
    step the chunks of a round, and the rounds; of a jump nothing. output_shapes; results: of each output its shape, the
    strides of a dense one in elements, its bytes. sizes: what a run found.
    """

    def __init__(self, program: Program, told: Sequence[Shape]) -> None:
        """told: as for `bind_symbols`."""
        self._program = program
        self.values = bind_symbols(program, told)
        self.spans = _spans(program, self.values)
        self._found = {size.name for size in program.sizes}
        try:
            program.check_extents(self._known)
        except VerifyError as error:
            raise ArtifactError(f"the plan is malformed: {error}", fix="compile the model again") from error
        self.layout = Layout(program, self.spans)
        self.sizes = np.zeros(len(program.sizes), np.int64)
        self.output_shapes: list[Shape] = [
            tuple(span(dim, self.spans)[1] for dim in spec.shape) for spec in program.outputs
        ]
        for spec, shape in zip(program.outputs, self.output_shapes, strict=True):
            if min(shape, default=0) < 0:
                raise InputError(
                    f"output {spec.name!r}", expected="sizes >= 0", got=shape, fix=f"the inputs are too small: {told}"
                )
        self.results = [
            (shape, tuple(prod(max(n, 1) for n in shape[axis:]) for axis in range(1, len(shape) + 1)), nbytes)
            for shape, nbytes in (
                (shape, _addressable(prod(max(n, 1) for n in shape) * itemsize(spec.dtype)) * all(shape))
                for spec, shape in zip(program.outputs, self.output_shapes, strict=True)
            )
        ]
        self.counts = [(0, 0) if s.target is not None else self._count(s) for s in program.steps]
        self.dims = [[self._dim(d) for d in s.dims] for s in program.steps]

    def _known(self, size: Expr) -> int | None:
        """A size that is no one that the run finds; of these only the most is known."""
        if isinstance(size, int):
            return size
        found = self._found
        return None if found and not found.isdisjoint(size) else evaluate(size, self.values)

    @property
    def chunks(self) -> list[int]:
        """Of each step, of all rounds."""
        return [chunks * rounds for chunks, rounds in self.counts]

    def _count(self, step: Step) -> tuple[int, int]:
        chunks, rounds = (span(n, self.spans)[1] for n in (step.chunks, step.rounds))
        where = step.label or step.kernel
        if not 0 <= chunks < _MAX_CHUNKS:
            raise IngotError("step", expected=f"0 <= chunks < {_MAX_CHUNKS}", got=chunks, where=where)
        if chunks * rounds >= _MAX_TOTAL_CHUNKS:
            raise IngotError(
                "step",
                expected=f"chunks * rounds < {_MAX_TOTAL_CHUNKS}",
                got=rounds,
                where=step.label or step.kernel,
            )
        return chunks, max(rounds, 0)

    def _dim(self, dim: Expr) -> int:
        value = span(dim, self.spans)[1]
        if not -(1 << 63) <= value < 1 << 63:
            got = ", ".join(f"{name} = {self.values[name]}" for name in _used(dim, list(self.values)))
            raise InputError(f"{show(dim)}", expected="a number of 64 bits", got=f"{value} ({got})")
        return value

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
                fix = _BEYOND if value > most else "the model reads elements that the input does not hold: pass more"
                raise InputError(f"size {size.name}", expected=f"{size.lo} to {most}", got=value, fix=fix)
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
