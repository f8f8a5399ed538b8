"""Values of control flow whose sizes change: buffers with room for the largest sizes, and the sizes.

    If:    [a] or [b]                      ->  [max(a, b)] and its size, of which the first elements count
    Loop:  tokens = Concat(tokens, next)   ->  [n + turns], of which the first n + step count
    Loop:  words = If(end, words, Concat)  ->  [n + turns] and its size, carried along

A list that a loop appends to is one tensor that grows: its members stacked, or concatenated where their sizes differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce

from ingot import ops
from ingot.frontends.onnx.call import AnyValue, OpenSequence, Sequence_, Value
from ingot.frontends.shared.computed_sizes import ComputedSizes, Sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import DimLike, bounds, dim_max, dim_min, substitute, symbol, symbols_of
from ingot.ir.node import Input, Node
from ingot.ir.types import Shape, TensorType
from ingot.support.dataclass import dataclass
from ingot.support.limits import max_run_time_size

_Axis = tuple[int, int]  # of which carried value, and which of its axes


def in_room(x: Node, room: Sequence[DimLike]) -> Node:
    """`x` at the start of a buffer, zeros behind it."""
    if x.shape == tuple(room):
        return x
    high = tuple(room_size - size for room_size, size in zip(room, x.shape, strict=True))
    return ops.pad(x, (0,) * len(high), high, False if x.dtype == T.boolean else 0)


def largest(size: DimLike, sizes: Sizes) -> DimLike:
    """An upper bound of a size, without the sizes that a body finds. Raises Unsupported where none is known."""
    for name, (_, upper_bound) in reversed(sizes.items()):
        if name not in symbols_of(size):
            continue
        low, high = bounds(substitute(size, {name: symbol(name) + 1}) - size)
        if low is not None and low >= 0:
            size = substitute(size, {name: upper_bound})
        elif high is not None and high <= 0:
            size = substitute(size, {name: 0})
        else:
            raise Unsupported(f"a size {size} inside control flow, of which no largest value is known")
    return size


def smallest(sizes: Sequence[DimLike], inner: Sequence[Sizes]) -> DimLike:
    """A lower bound of sizes that branches have, without the sizes that they find."""
    if any(symbols_of(size) & computed.keys() for size, computed in zip(sizes, inner, strict=True)):
        return 0
    return reduce(dim_min, sizes)


def cases(outputs: Sequence[Sequence[Node]], inner: Sequence[Sizes]) -> tuple[list[Shape], list[_Axis]]:
    """(a shape with room for each result of all branches, the axes along which branches differ). Raises Unsupported
    where they differ in more than sizes."""
    shapes: list[Shape] = []
    axes: list[_Axis] = []
    for k, results in enumerate(zip(*outputs, strict=True)):
        first = results[0]
        if any(r.dtype != first.dtype or len(r.shape) != len(first.shape) for r in results):
            raise Unsupported(f"an If whose branches differ in type: {[r.type for r in reversed(results)]}")
        shape: list[DimLike] = []
        for axis, sizes in enumerate(zip(*(r.shape for r in results), strict=True)):
            room = largest(sizes[0], inner[0])
            if room != sizes[0] or any(size != room for size in sizes):
                axes.append((k, axis))
                for size, computed in zip(sizes, inner, strict=True):
                    room = dim_max(room, largest(size, computed))
            shape.append(room)
        shapes.append(tuple(shape))
    return shapes, axes


# --- sequences


@dataclass(frozen=True)
class Form:
    """How the members of sequences are one tensor (`OpenSequence`). shape: that of no members."""

    axis: int | None
    shape: Shape
    dtype: T.DType

    def pack(self, v: AnyValue) -> AnyValue:
        """The members of a sequence as one tensor. Raises Unsupported where they have another form."""
        if isinstance(v, Sequence_):
            nodes = [item.node for item in v.items]
            if not nodes:
                return Value(ops.full(self.shape, False if self.dtype == T.boolean else 0, self.dtype))
            return Value(ops.stack(nodes, 0) if self.axis is None else ops.concat(nodes, self.axis))
        if not isinstance(v, OpenSequence):
            return v
        if v.axis != self.axis:
            raise Unsupported("a sequence of members of different sizes")
        return Value(v.node)


def in_form(values: Sequence[AnyValue], forms: Sequence[Form | None]) -> list[AnyValue]:
    """The values, with those that have a form as tensors."""
    return [v if form is None else form.pack(v) for v, form in zip(values, forms, strict=True)]


def common_form(values: Sequence[AnyValue], inner: Sequence[Sizes]) -> Form | None:
    """The form of sequences that bodies return, None for other values. inner: sizes that each body finds. Raises
    Unsupported for sequences without members."""
    if not any(isinstance(v, Sequence_ | OpenSequence) for v in values):
        return None
    forms = [form for v, sizes in zip(values, inner, strict=True) if (form := _form_of(v, sizes)) is not None]
    if not forms:
        raise Unsupported("sequences whose members' type is not known")
    return next((form for form in forms if form.axis is not None), forms[0])


def _form_of(v: AnyValue, inner: Sizes) -> Form | None:
    """The form of a sequence; None for one without members. Members whose sizes differ, or that only the body knows,
    are concatenated."""
    if isinstance(v, OpenSequence):
        place = v.axis or 0
        return Form(v.axis, (*v.node.shape[:place], 0, *v.node.shape[place + 1 :]), v.node.dtype)
    if not isinstance(v, Sequence_) or not v.items:
        return None
    first, *others = [item.type for item in v.items]
    axes = {a for a, size in enumerate(first.shape) if symbols_of(size) & inner.keys()}
    for other in others:
        if other.dtype != first.dtype or other.rank != first.rank:
            raise Unsupported("a sequence of open length with members of different types")
        axes |= {a for a, (size, one) in enumerate(zip(other.shape, first.shape, strict=True)) if size != one}
    if not axes:
        return Form(None, (0, *first.shape), first.dtype)
    if len(axes) > 1:
        raise Unsupported("a sequence of open length with members that differ along several axes")
    (axis,) = axes
    return Form(axis, (*first.shape[:axis], 0, *first.shape[axis + 1 :]), first.dtype)


# --- loops


@dataclass(frozen=True)
class Growth:
    """How the sizes of a loop's carried values change, a guess until `refined` finds that it holds.

    steps: axes that grow, by the same in each iteration. groups: axes whose sizes are carried along; those of
    a group are equal, and unless it is `shrinking` never less than at the start. rooms: the shapes of buffers for the
    carried values; max_lengths: the largest size of each group.
    """

    starts: tuple[Node, ...]
    max_iterations: DimLike
    steps: Mapping[_Axis, DimLike] = field(default_factory=dict)
    groups: Mapping[_Axis, str] = field(default_factory=dict)
    shrinking: frozenset[str] = frozenset()
    rooms: tuple[Shape, ...] = ()
    max_lengths: Mapping[str, DimLike] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.steps or self.groups)

    def _first_axes(self) -> dict[str, _Axis]:
        axes: dict[str, _Axis] = {}
        for axis, key in self.groups.items():
            axes.setdefault(key, axis)
        return axes

    def first_lengths(self) -> dict[str, DimLike]:
        """The size of each group before the first iteration."""
        return {key: self.starts[k].shape[a] for key, (k, a) in self._first_axes().items()}

    def next_lengths(self, ends: Sequence[Node]) -> list[Node]:
        """The size of each group after an iteration with these values."""
        return [ops.scalar(ends[k].shape[a], T.i64) for k, a in self._first_axes().values()]

    def lengths(self, loc: str) -> dict[str, Node]:
        """The carried size of each group."""
        return {key: Input(f"{loc}.length{i}", TensorType(T.i64))() for i, key in enumerate(self._first_axes())}

    def sizes(self, computed: ComputedSizes, lengths: Mapping[str, Node]) -> dict[str, DimLike]:
        """The size of each group, of which the run knows the value."""
        sizes: dict[str, DimLike] = {}
        for key, length in lengths.items():
            floor = self._floor(key)
            extra_room = self.max_lengths.get(key, max_run_time_size()) - floor
            sizes[key] = floor + computed.size(ops.sub(length, ops.scalar(floor, T.i64)), extra_room, "length")
        return sizes

    def _floor(self, key: str) -> DimLike:
        return 0 if key in self.shrinking else self.first_lengths()[key]

    def shapes(self, iteration: DimLike, lengths: Mapping[str, DimLike]) -> list[Shape]:
        """The shapes of the carried values after `iteration` iterations, where groups have these sizes."""
        return [
            tuple(
                lengths[self.groups[k, a]] if (k, a) in self.groups else d + self.steps.get((k, a), 0) * iteration
                for a, d in enumerate(start.shape)
            )
            for k, start in enumerate(self.starts)
        ]

    def refined(
        self, ends: Sequence[Node], iteration: DimLike, lengths: Mapping[str, DimLike], inner: Sizes
    ) -> Growth | None:
        """A better guess, where the values after an iteration have other shapes than this one; None where it holds."""
        expected = self.shapes(iteration + 1, lengths)
        steps, groups = dict(self.steps), dict(self.groups)
        group_ends: dict[str, DimLike] = {}
        shrinking = set(self.shrinking)
        for k, (start, end) in enumerate(zip(self.starts, ends, strict=True)):
            if start.dtype != end.dtype or len(start.shape) != len(end.shape):
                raise Unsupported(f"a loop whose carried value {k} changes from {start.type} to {end.type}")
            for a, size in enumerate(end.shape):
                if (k, a) in groups:
                    key = groups[k, a]
                    if group_ends.setdefault(key, size) != size:
                        groups[k, a] += f"; {size}"
                    elif (low := bounds(size - self._floor(key))[0]) is None or low < 0:
                        shrinking.add(key)
                elif size != expected[k][a]:
                    step = size - start.shape[a]
                    is_steady = (k, a) not in steps and not symbols_of(step) & inner.keys()
                    if is_steady and (bounds(step)[0] or 0) > 0:
                        steps[k, a] = step
                    else:
                        steps.pop((k, a), None)
                        groups[k, a] = str(start.shape[a])
        refined = replace(self, steps=steps, groups=groups, shrinking=frozenset(shrinking))
        is_new = steps != self.steps or groups != self.groups or shrinking != self.shrinking
        return refined if is_new else None

    def with_rooms(
        self,
        max_iterations: DimLike,
        ends: Sequence[Node],
        lengths: Mapping[str, DimLike],
        inner: Sizes,
        is_exact: bool,
    ) -> Growth:
        """This one with the rooms of buffers. is_exact: whether no iteration is run beyond `max_iterations` to find
        that there were too many."""
        names = {key: next(iter(symbols_of(size) & inner.keys())) for key, size in lengths.items()}
        outer = {name: v for name, v in inner.items() if name not in names.values()}
        max_lengths: dict[str, DimLike] = {}
        for key, (k, a) in self._first_axes().items():
            step = largest(ends[k].shape[a], outer) - lengths[key]
            low = bounds(step)[0]
            is_bounded = not symbols_of(step) & inner.keys() and low is not None and low >= 0
            max_lengths[key] = self.starts[k].shape[a] + step * max_iterations if is_bounded else max_run_time_size()
        bounded = {
            **inner,
            **{names[key]: (inner[names[key]][0], size - self._floor(key)) for key, size in max_lengths.items()},
        }
        shapes = [list(shape) for shape in self.shapes(max_iterations if is_exact else max_iterations + 1, max_lengths)]
        for (k, a), key in self.groups.items():
            sizes = (self.starts[k].shape[a], largest(ends[k].shape[a], bounded))
            shapes[k][a] = dim_max(max_lengths[key], dim_max(*sizes))
        return replace(self, max_iterations=max_iterations, rooms=tuple(map(tuple, shapes)), max_lengths=max_lengths)
