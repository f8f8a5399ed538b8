"""Collectives: values that several devices, each running a program of its own, exchange (StableHLO's all_reduce,
all_gather, reduce_scatter, all_to_all, collective_permute).

An op states its groups of devices; every device of a group runs the same op and receives a result of one type. The
reference of a group of several devices exchanges arrays with the simulated devices of `simulated`; in a group of one,
a collective is the identity.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from functools import reduce
from typing import ClassVar, TypeVar

import numpy as np

from ingot.ir.dims import Dim, DimLike, exact_quotient
from ingot.ir.node import Node, Samples
from ingot.ir.types import TensorType, boolean, dtype_of
from ingot.ops.core.base import Category, CoreOp, Perm, check_count, round_to, widen
from ingot.ops.core.shape import Reshape, Transpose
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Groups = tuple[tuple[int, ...], ...]
REDUCTIONS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
T = TypeVar("T")
_TIMEOUT_SECONDS = 60.0


class _Devices:
    """Devices that run at the same time as threads of this process. Each exchange is a round of two barriers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = threading.Barrier(count)
        self._values: list[tuple[CoreOp, np.ndarray] | None] = [None] * count

    def exchange(self, rank: int, op: Collective, x: np.ndarray) -> list[np.ndarray]:
        """The operands of all devices. Raises InputError if they do not all run the same op."""
        self._values[rank] = op, x
        self._barrier.wait(_TIMEOUT_SECONDS)
        values = [v for v in self._values if v is not None]
        self._barrier.wait(_TIMEOUT_SECONDS)
        others = {str(other) for other, _ in values}
        if len(others) > 1:
            raise InputError("simulated devices", expected="one collective at a time", got=" and ".join(sorted(others)))
        return [array for _, array in values]

    def abort(self) -> None:
        self._barrier.abort()


_DEVICE: ContextVar[tuple[_Devices, int] | None] = ContextVar("device", default=None)


def simulated(count: int, program: Callable[[int], T]) -> list[T]:
    """`program(rank)` for each of `count` simulated devices, which run at the same time and may exchange values.

    Raises the first error of a device; the others end with it.
    """
    devices, results, errors = _Devices(count), dict[int, T](), list[BaseException]()

    def run(rank: int) -> None:
        _DEVICE.set((devices, rank))
        try:
            results[rank] = program(rank)
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            devices.abort()

    threads = [threading.Thread(target=copy_context().run, args=(run, rank), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    if len(results) != count:
        raise InputError("simulated devices", expected="the same collectives on each", got="a device that waits")
    return [results[rank] for rank in range(count)]


@dataclass(frozen=True)
class Collective(CoreOp):
    """Base. groups: the devices that exchange values, in the order of the parts; groups of one size."""

    category: ClassVar[Category] = Category.COLLECTIVE
    groups: Groups

    @property
    def size(self) -> int:
        """The number of devices of a group."""
        return len(self.groups[0])

    def check(self, inputs: Sequence[TensorType]) -> TensorType:
        check_count(self, inputs, 1)
        members = [rank for group in self.groups for rank in group]
        one_size = bool(self.groups) and len({len(group) for group in self.groups}) == 1 and bool(self.groups[0])
        self.expect(one_size, f"groups: expected groups of one size, got {self.groups}")
        unique = len({*members}) == len(members) and min(members) >= 0
        self.expect(unique, f"groups: expected each device once, got {self.groups}")
        return inputs[0]

    def combine(self, parts: Sequence[np.ndarray], index: int) -> np.ndarray:
        """The result of device `index` of a group from the operands of all its devices."""
        raise NotImplementedError(f"{type(self).__name__}.combine")

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        current = _DEVICE.get()
        if current is None:
            if self.size > 1:
                raise InputError(
                    f"{self.name} of {self.size} devices", expected="simulated devices", got="one process",
                    fix="ingot.simulate(mesh)",
                )  # fmt: skip
            return self.combine([x], 0)
        devices, rank = current
        parts = devices.exchange(rank, self, x)
        group = self.group_of(rank)
        return self.combine([parts[member] for member in group], group.index(rank))

    def group_of(self, rank: int) -> tuple[int, ...]:
        """The group of a device. Raises InputError if it is in none."""
        group = next((group for group in self.groups if rank in group), None)
        if group is None:
            raise InputError(f"groups of {self.name}", expected=f"one with device {rank}", got=self.groups)
        return group

    @classmethod
    def group_samples(cls, groups: Groups) -> Samples:
        """Samples for these groups: (op, operand); the operand of device r is that of device 0 plus r."""
        return iter(())

    @classmethod
    def samples(cls) -> Samples:
        yield from cls.group_samples(((0,),))


def _data(*shape: int, dtype: type = np.float32) -> np.ndarray:
    values = np.random.default_rng(len(shape)).integers(-9, 9, shape)
    return (values / 4 if np.dtype(dtype).kind not in "iub" else values).astype(dtype)


@dataclass(frozen=True)
class _Reducing(Collective):
    """Base of those that combine values. kind: sum, prod, max, min; narrow floats are combined in f32 and rounded
    once, in the order of the devices, so that all of them get the same bits."""

    kind: str = "sum"

    def check(self, inputs: Sequence[TensorType]) -> TensorType:
        x = super().check(inputs)
        self.expect(self.kind in REDUCTIONS, f"kind: expected one of {' '.join(REDUCTIONS)}, got {self.kind}")
        self.expect(x.dtype != boolean, f"expected a number operand, got {x}; convert it first")
        return x

    def total(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return round_to(reduce(REDUCTIONS[self.kind], map(widen, parts)), dtype_of(parts[0]))


@dataclass(frozen=True)
class AllReduce(_Reducing):
    """The sum (or another `kind`) of the operands of a group's devices, element by element."""

    name: ClassVar[str] = "all_reduce"

    def infer(self, *inputs: TensorType) -> TensorType:
        return self.check(inputs)

    def combine(self, parts: Sequence[np.ndarray], index: int) -> np.ndarray:
        return self.total(parts)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return self, perm

    @classmethod
    def group_samples(cls, groups: Groups) -> Samples:
        for kind in REDUCTIONS:
            yield cls(groups, kind), (_data(3, 5),)
        yield cls(groups), (_data(0, 3),)
        yield cls(groups), (_data(7, dtype=np.float16),)
        yield cls(groups), (np.asarray(2, np.int32),)
        yield cls(groups), (np.asarray([np.nan, np.inf, -0.0], np.float32),)


def _front(x: Node, axis: int, count: int) -> Node:
    """[.., count * d, ..] -> [count, .., d, ..]: the parts of an axis as a first axis."""
    part = exact_quotient(x.shape[axis], count)
    assert part is not None
    split = Reshape((*x.shape[:axis], count, part, *x.shape[axis + 1 :]))(x)
    rest = [d for d in range(len(split.shape)) if d != axis]
    return Transpose((axis, *rest))(split)


def _join_front(x: Node, axis: int) -> Node:
    """[count, .., d, ..] -> [.., count * d, ..]: the opposite of `_front`; `axis` is that of the result."""
    count, *shape = x.shape
    transposed = Transpose((*range(1, axis + 1), 0, *range(axis + 1, len(x.shape))))(x)
    return Reshape((*shape[:axis], count * shape[axis], *shape[axis + 1 :]))(transposed)


@dataclass(frozen=True)
class AllGather(Collective):
    """The operands of a group's devices, concatenated along `axis`."""

    name: ClassVar[str] = "all_gather"
    axis: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.check(inputs)
        self.expect(0 <= self.axis < x.rank, f"axis: expected one of {x}, got {self.axis}")
        return x.with_shape(tuple(d * self.size if i == self.axis else d for i, d in enumerate(x.shape)))

    def combine(self, parts: Sequence[np.ndarray], index: int) -> np.ndarray:
        return np.concatenate(parts, self.axis)

    def lower(self, *inputs: Node) -> Node | None:
        if self.axis == 0:
            return None  # the parts are in memory one after another
        (x,) = inputs
        return _join_front(AllGather(self.groups)(Reshape((1, *x.shape))(x)), self.axis)

    @classmethod
    def group_samples(cls, groups: Groups) -> Samples:
        for axis in range(3):
            yield cls(groups, axis), (_data(2, 3, 5),)
        yield cls(groups, 1), (_data(3, 0, dtype=np.int16),)
        yield cls(groups), (np.asarray([True, False]),)


@dataclass(frozen=True)
class ReduceScatter(_Reducing):
    """Device i of a group gets part i along `axis` of the sum (or another `kind`) of the operands."""

    name: ClassVar[str] = "reduce_scatter"
    axis: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.check(inputs)
        return x.with_shape(_divided(self, x, self.axis, "axis"))

    def combine(self, parts: Sequence[np.ndarray], index: int) -> np.ndarray:
        return np.split(self.total(parts), self.size, self.axis)[index]

    def lower(self, *inputs: Node) -> Node | None:
        if self.axis == 0:
            return None
        (x,) = inputs
        y = ReduceScatter(self.groups, self.kind)(_front(x, self.axis, self.size))
        return Reshape(self.infer(x.type).shape)(y)

    @classmethod
    def group_samples(cls, groups: Groups) -> Samples:
        n = len(groups[0])
        for axis in range(3):
            yield cls(groups, "sum", axis), (_data(2 * n, 3 * n, n),)
        yield cls(groups, "max", 1), (_data(3, n, dtype=np.int32),)


@dataclass(frozen=True)
class AllToAll(Collective):
    """Each device sends part i of its operand along `split_axis` to device i of its group, and concatenates what it
    receives along `concat_axis`."""

    name: ClassVar[str] = "all_to_all"
    split_axis: int = 0
    concat_axis: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.check(inputs)
        self.expect(0 <= self.concat_axis < x.rank, f"concat_axis: expected one of {x}, got {self.concat_axis}")
        shape = list(_divided(self, x, self.split_axis, "split_axis"))
        shape[self.concat_axis] = shape[self.concat_axis] * self.size
        return x.with_shape(tuple(shape))

    def combine(self, parts: Sequence[np.ndarray], index: int) -> np.ndarray:
        received = [np.split(part, self.size, self.split_axis)[index] for part in parts]
        return np.concatenate(received, self.concat_axis)

    def lower(self, *inputs: Node) -> Node | None:
        (x,) = inputs
        if self.split_axis == self.concat_axis == 0:
            return None
        return _join_front(AllToAll(self.groups)(_front(x, self.split_axis, self.size)), self.concat_axis)

    @classmethod
    def group_samples(cls, groups: Groups) -> Samples:
        n = len(groups[0])
        for split, concat in ((0, 0), (0, 2), (1, 0), (2, 1)):
            yield cls(groups, split, concat), (_data(2 * n, n, 3 * n),)


@dataclass(frozen=True)
class Permute(Collective):
    """Device groups[j][i] receives the operand of device groups[j][i - shift]: send and receive around a ring."""

    name: ClassVar[str] = "collective_permute"
    shift: int = 1

    def infer(self, *inputs: TensorType) -> TensorType:
        return self.check(inputs)

    def combine(self, parts: Sequence[np.ndarray], index: int) -> np.ndarray:
        return parts[(index - self.shift) % self.size].copy()

    @classmethod
    def group_samples(cls, groups: Groups) -> Samples:
        for shift in (1, -1):
            yield cls(groups, shift), (_data(3, 2),)


def _divided(op: Collective, x: TensorType, axis: int, what: str) -> tuple[int | Dim, ...]:
    op.expect(0 <= axis < x.rank, f"{what}: expected one of {x}, got {axis}")
    part: DimLike | None = exact_quotient(x.shape[axis], op.size)
    op.expect(part is not None, f"expected {op.size} equal parts of axis {axis} of {x}")
    return tuple(part if i == axis and part is not None else d for i, d in enumerate(x.shape))
