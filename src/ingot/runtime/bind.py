"""Bind a program to input shapes: symbols get values, buffers get offsets, results get shapes.

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
_UNSET_SIZE = -(1 << 63)
_OVERFLOW = -(1 << 62) - 1  # marks a size that is NaN, needs more than 62 bits, or overflows in an expression
_SIZE_FIX = (
    "the data needs more memory than was reserved: compile with a larger bound "
    "(limits=ingot.Limits(sizes=...) if the model has none), or pass a smaller input"
)

Shape = tuple[int, ...]


def binding_shapes(program: Program, inputs: Sequence[np.ndarray]) -> tuple[Shape, ...]:
    """The shapes that `bind_symbols` takes, read from the inputs."""
    size_inputs = [x for spec, x in zip(program.inputs, inputs, strict=True) if spec.elements]
    shapes = (*(x.shape for x in inputs), *(s.shape for s in program.state))
    return (*shapes, *(tuple(x.reshape(-1).tolist()) for x in size_inputs))


_EMPTY_INPUT_FIX = (
    "skip calls with an empty input: they need a separate program, which is compiled only if the model is available "
    "(ingot.compile, not ingot.load) and its bounds allow size 0"
)


def bind_symbols(program: Program, shapes: Sequence[Shape]) -> dict[str, int]:
    """The symbols' values. shapes: the arguments' shapes, followed by the values of each argument that has elements.

    Checks every dim, element and condition; raises InputError.
    """
    values: dict[str, int] = {}
    origin: dict[str, str] = {}
    checks = _size_checks(program, shapes)
    for dim, size, where, position, _ in checks:
        linear = linear_in(dim)
        if linear is not None and linear[0] not in values:
            name, slope, start = linear
            values[name] = (size - start) // slope  # a remainder fails the check below
            origin[name] = f"{position} of {where}"
    out_of_range = {s.name: values[s.name] for s in program.symbols if not _is_in_range(values[s.name], s)}
    for symbol in program.symbols:
        size = values[symbol.name]
        if symbol.name in out_of_range:
            is_consistent = all(evaluate(dim, values) == size for dim, size, *_ in checks)
            limits = ((symbol.lo, ">="), (symbol.hi, "<="))
            wider = f"compile with bounds that include it, as in dynamic={{{symbol.name!r}: (1, {size})}}"
            raise SizesError(
                origin[symbol.name],
                expected=symbol.name + " and".join(f" {sign} {limit}" for limit, sign in limits if limit is not None),
                got=size,
                fix=wider if size else _EMPTY_INPUT_FIX,
            ).of(shapes, out_of_range if is_consistent else {})
    for dim, size, where, position, passed_shape in checks:
        declared = evaluate(dim, values)
        if declared == size:
            continue
        got = f"{size} in {passed_shape}"
        if isinstance(dim, int):
            fix = "the model was compiled for this size: pass it, or compile with a dynamic dim"
            error = SizesError(f"{where}, {position}", expected=str(declared), got=got, fix=fix)
            raise error.of(shapes, fixed=_at_fixed_axes(program, shapes))
        fix = "; ".join(f"{name} = {values[name]} comes from {origin[name]}" for name in _symbols_in(dim, origin))
        raise SizesError(f"{where}, {position}", expected=f"{show(dim)} = {declared}", got=got, fix=fix).of(shapes)
    run_time_sizes = {size.name for size in program.sizes}
    for condition in program.conditions:
        if isinstance(condition, tuple) and not run_time_sizes.isdisjoint(condition):
            continue  # the run checks it
        if evaluate(condition, values) < 0:
            names = _symbols_in(condition, origin)
            raise SizesError(
                " and ".join(origin[name] for name in names),
                expected=f"{show(condition)} >= 0",
                got=", ".join(f"{name} = {values[name]}" for name in names),
                fix="the model supports such sizes only, because of its tables or of how it was traced: "
                "pass such sizes, or export it with an example of the others",
            ).of(shapes)
    return values


def _at_fixed_axes(program: Program, shapes: Sequence[Shape]) -> dict[str, dict[int, int]]:
    """By input and axis, the passed sizes that differ from the program's constant ones."""
    mismatches = {
        spec.name: {
            i: n for i, (d, n) in enumerate(zip(spec.shape, shape, strict=True)) if isinstance(d, int) and d != n
        }
        for spec, shape in zip(program.inputs, shapes, strict=False)
    }
    return {name: axes for name, axes in mismatches.items() if axes}


def _is_in_range(size: int, symbol: Symbol) -> bool:
    return (symbol.lo is None or symbol.lo <= size) and (symbol.hi is None or size <= symbol.hi)


def _size_checks(program: Program, shapes: Sequence[Shape]) -> list[tuple[Expr, int, str, str, Shape]]:
    """(declared size, passed size, input, axis or element, passed shape) for every dim and element."""
    arguments = program.arguments
    size_inputs = [spec for spec in arguments if spec.elements]
    for spec, shape in zip(arguments, shapes, strict=False):
        if len(spec.shape) != len(shape):
            expected = f"{len(spec.shape)} dims [{', '.join(map(show, spec.shape))}]"
            raise InputError(f"input {spec.name!r}", expected=expected, got=f"shape {shape}")
        if max(shape, default=0) > _MAX_SIZE:
            raise InputError(f"input {spec.name!r}", expected=f"sizes of at most {_MAX_SIZE}", got=f"shape {shape}")
    declarations = [(spec, spec.shape, "axis") for spec in arguments] + [
        (spec, spec.elements, "element") for spec in size_inputs
    ]
    checks: list[tuple[Expr, int, str, str, Shape]] = []
    for (spec, declared, kind), passed_shape in zip(declarations, shapes, strict=True):
        if len(declared) != len(passed_shape):
            expected = f"{len(declared)} elements"
            raise InputError(f"input {spec.name!r}", expected=expected, got=f"{len(passed_shape)}")
        dims = enumerate(zip(declared, passed_shape, strict=True))
        checks += [(dim, size, f"input {spec.name!r}", f"{kind} {i}", passed_shape) for i, (dim, size) in dims]
    return checks


def _symbols_in(size: Expr, origin: Iterable[str]) -> list[str]:
    """The symbols of a size, without repetition."""
    return [] if isinstance(size, int) else [name for name in origin if name in size]


def _spans(program: Program, values: Mapping[str, int]) -> dict[str, Span]:
    """The bounds of the symbols' values, and of the sizes that the run computes."""
    spans = {name: (value, value) for name, value in values.items()}
    for size in program.sizes:
        upper = span(size.bound, spans)[1]
        spans[size.name] = min(size.lo, 0), max(0, upper if size.hi is None else min(upper, size.hi))
    return spans


def _addressable(nbytes: int) -> int:
    """`nbytes`. Raises IngotError if it exceeds the address space."""
    if nbytes >= _ADDRESS_SPACE:
        fix = "use smaller inputs or batches"
        raise IngotError("out of memory", expected=f"less than {_ADDRESS_SPACE} bytes", got=nbytes, fix=fix)
    return nbytes


@dataclass(frozen=True)
class Images:
    """The geometry that arena buffers with a halo share, also across programs.

    halo: the key of the geometry. fill: the byte that fills a buffer at first; no step ever writes its halo. nbytes:
    the size of a buffer. sizes: the bounds of the program's symbols, which `halo` may name.
    """

    halo: str
    fill: int
    nbytes: int
    sizes: tuple[tuple[str, Span], ...]


class Layout:
    """The offsets of the arena buffers of a bound program.

    offsets: the byte offset of each arena buffer that is not an alias. plain_bytes: the bytes of the buffers without a
    halo, which come first. images: (geometry, offset, bytes) of the buffers with one. geometry: the index into `images`
    of each buffer with a halo. nbytes: the arena's size.
    """

    def __init__(self, program: Program, spans: Mapping[str, Span]) -> None:
        """spans: the bounds of the sizes; each buffer gets its largest size within them."""
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
        offsets, self.plain_bytes = placement.place(requests)
        self.offsets = {buffer.id: place for (buffer, _), place in zip(plain, offsets, strict=True)}
        self.images: list[tuple[Images, int, int]] = []
        self.geometry: dict[int, int] = {}
        self.nbytes = self.plain_bytes
        for images, members in groups.items():
            requests = [placement.Request(images.nbytes, b.first_step, b.last_step) for b in members]
            offsets, size = placement.place(requests)
            self.offsets.update({b.id: self.nbytes + place for b, place in zip(members, offsets, strict=True)})
            self.geometry.update((b.id, len(self.images)) for b in members)
            self.images.append((images, self.nbytes, size))
            self.nbytes += size

    @property
    def fills(self) -> list[tuple[int, int, int]]:
        """(offset, bytes, value) of the ranges to fill with a byte before the first run."""
        return [(offset, nbytes, images.fill) for images, offset, nbytes in self.images]


class Binding:
    """A program with the sizes of one set of input shapes.

    values: the symbols' values. spans: the bounds of these, and of the sizes that the run computes. layout: the
    arena's. counts: for each step its chunks in a round and its rounds; (0, 0) for a jump. output_shapes: the largest
    shapes of the outputs. results: for each output its largest shape, its strides in elements and its bytes. sizes: the
    sizes that a run computed.
    """

    def __init__(self, program: Program, shapes: Sequence[Shape]) -> None:
        """shapes: as for `bind_symbols`."""
        self._program = program
        self.values = bind_symbols(program, shapes)
        self.spans = _spans(program, self.values)
        self._run_time_sizes = {size.name for size in program.sizes}
        try:
            program.check_extents(self._known_size)
        except VerifyError as error:
            raise ArtifactError(f"the plan is malformed: {error}", fix="compile the model again") from error
        self.layout = Layout(program, self.spans)
        self.sizes = np.full(len(program.sizes), _UNSET_SIZE)
        self.output_shapes: list[Shape] = [
            tuple(span(dim, self.spans)[1] for dim in spec.shape) for spec in program.outputs
        ]
        for spec, shape in zip(program.outputs, self.output_shapes, strict=True):
            if min(shape, default=0) < 0:
                raise InputError(
                    f"output {spec.name!r}", expected="sizes >= 0", got=shape, fix=f"the inputs are too small: {shapes}"
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

    def _known_size(self, size: Expr) -> int | None:
        """The value of a size; None if it depends on sizes that the run computes."""
        if isinstance(size, int):
            return size
        run_time_sizes = self._run_time_sizes
        return None if run_time_sizes and not run_time_sizes.isdisjoint(size) else evaluate(size, self.values)

    @property
    def chunks(self) -> list[int]:
        """The chunks of each step, over all rounds."""
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
        if isinstance(dim, tuple) and not self._run_time_sizes.isdisjoint(dim):
            return min(value, (1 << 63) - 1)  # the run computes it, and ends where it overflows
        if not -(1 << 63) <= value < 1 << 63:
            got = ", ".join(f"{name} = {self.values[name]}" for name in _symbols_in(dim, list(self.values)))
            raise InputError(f"{show(dim)}", expected="a number of 64 bits", got=f"{value} ({got})")
        return value

    @property
    def upper_bounds(self) -> dict[str, int]:
        """The symbols' values, and the upper bounds of the sizes that the run computes."""
        return {name: high for name, (_, high) in self.spans.items()}

    def begin(self) -> None:
        """Mark all run-time sizes as not computed yet."""
        self.sizes.fill(_UNSET_SIZE)

    def read_sizes(self) -> dict[str, int]:
        """All sizes, after a run. Raises InputError if the run stopped at a size that exceeds its bounds or breaks a
        condition."""
        values, program = dict(self.values), self._program
        for size, value in zip(program.sizes, self.sizes.tolist(), strict=True):
            if value == _UNSET_SIZE:
                continue  # in a branch that was not taken
            upper = span(size.bound, {name: (v, v) for name, v in values.items()})[1]
            upper = upper if size.hi is None else min(upper, size.hi)
            if value == _OVERFLOW:
                expected, got = (
                    f"{size.lo} to {upper}",
                    "NaN, more than 62 bits, or an overflow in what is computed of it",
                )
                raise InputError(f"size {size.name}", expected=expected, got=got, fix=_SIZE_FIX)
            if not size.lo <= value <= upper:
                fix = _SIZE_FIX if value > upper else "the model reads past the end of the input: pass a larger one"
                raise InputError(f"size {size.name}", expected=f"{size.lo} to {upper}", got=value, fix=fix)
            values[size.name] = value
        for condition in program.conditions:
            names = [item for item in condition if item in values] if isinstance(condition, tuple) else []
            if all(s.name in values for s in program.sizes if isinstance(condition, tuple) and s.name in condition):
                got = ", ".join(f"{name} = {values[name]}" for name in dict.fromkeys(names))
                if evaluate(condition, values) < 0:
                    raise InputError("sizes that the data determines", expected=f"{show(condition)} >= 0", got=got)
        return values

    def actual_shapes(self) -> list[Shape]:
        """The shapes of the outputs, after a run. Raises as `read_sizes` does."""
        values = self.read_sizes()
        return [tuple(evaluate(dim, values) for dim in spec.shape) for spec in self._program.outputs]
