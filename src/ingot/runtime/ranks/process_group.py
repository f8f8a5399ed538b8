"""The processes that run one model together, each a rank with a program of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ingot.runtime.dtypes import itemsize, numpy_dtype
from ingot.runtime.program import Collective
from ingot.support.errors import DeviceError

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


class ProcessGroup:
    """Base of the transports. rank: of this process; size: the number of processes."""

    transport: ClassVar[str]
    rank: int
    size: int

    def exchange(self, collective: Collective, source: np.ndarray, target: np.ndarray) -> None:
        """Run a collective on flat arrays of its dtype. Raises DeviceError if another rank has ended, failed or runs
        another collective."""
        raise NotImplementedError(f"{type(self).__name__}.exchange")

    def check(self) -> None:
        """Raise DeviceError if a rank has ended or failed."""

    def close(self, failed: bool = False) -> None:
        """Leave the group. failed: so that the others end with an error."""

    def gather(self, data: bytes, ranks: Sequence[int] | None = None) -> list[bytes]:
        """The equally long `data` of each rank, or of these ranks, in their order."""
        group = tuple(ranks or range(self.size))
        source = np.frombuffer(data, np.uint8)
        target = np.empty(len(data) * len(group), np.uint8)
        if len(group) == 1:
            return [data]
        self.exchange(Collective("all_gather", (group,), "u8"), source, target)
        return [part.tobytes() for part in np.split(target, len(group))]

    def exchange_at(self, collective: Collective, source: int, target: int, count: int) -> None:
        """`exchange` of the `count` elements at an address, to another address."""
        self.exchange(
            collective, array_at(source, count, collective.dtype),
            array_at(target, collective.result_count(count), collective.dtype),
        )  # fmt: skip


def array_at(address: int, count: int, dtype: str) -> np.ndarray:
    """The memory at an address as a flat array."""
    if not count:
        return np.empty(0, numpy_dtype(dtype))
    data = (ctypes.c_uint8 * (count * itemsize(dtype))).from_address(address)
    return np.ctypeslib.as_array(data).view(numpy_dtype(dtype))


def reduced(parts: Sequence[np.ndarray], reduction: str) -> np.ndarray:
    """The reduction of arrays in their order; floats below 32 bits are combined in f32 and rounded once."""
    dtype = parts[0].dtype
    is_narrow_float = dtype.itemsize < 4 and dtype.kind not in "iub"
    combine = _REDUCTIONS[reduction]
    with np.errstate(all="ignore"):
        total = parts[0].astype(np.float32) if is_narrow_float else parts[0].copy()
        for part in parts[1:]:
            total = combine(total, part.astype(np.float32) if is_narrow_float else part)
        return np.asarray(total).astype(dtype, copy=False)


class SingleProcess(ProcessGroup):
    """A group of this process alone."""

    transport = "none"
    rank, size = 0, 1

    def exchange(self, collective: Collective, source: np.ndarray, target: np.ndarray) -> None:
        collective.group_of(self.rank)
        if len(collective.groups[0]) > 1:
            got = "one process"
            raise DeviceError(
                str(collective), expected="a group of processes", got=got, fix="ingot.launch, or torchrun"
            )
        target[:] = source
