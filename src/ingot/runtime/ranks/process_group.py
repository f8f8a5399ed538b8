"""The processes that run one model together, each a rank with a program of its own."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ingot.runtime.dtypes import itemsize, numpy_dtype
from ingot.runtime.program import Collective, Program
from ingot.support.errors import DeviceError, InputError

RANK, WORLD_SIZE, CONTROL, TRANSPORT = "INGOT_RANK", "INGOT_WORLD_SIZE", "INGOT_CONTROL", "INGOT_TRANSPORT"
PLACE = "rank"  # key of a program's notes: "1 of 2"
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
    return np.frombuffer(data, np.uint8).view(numpy_dtype(dtype))


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


_current: list[ProcessGroup] = []


def current() -> ProcessGroup:
    """This process's group: of `ingot.launch`, of torchrun or of an initialized torch.distributed; otherwise of this
    process alone. It is joined on the first call."""
    if not _current:
        _current.append(_joined())
    return _current[0]


def group_of(program: Program) -> ProcessGroup | None:
    """The group that runs a program's collectives; None if it has none. All ranks load their programs together.

    Raises DeviceError if the program is for another rank or another number of them, or if the ranks have programs with
    different collectives.
    """
    collectives = [step.collective for step in program.steps if step.collective is not None]
    if not collectives:
        return None
    group = current()
    place = program.meta.get(PLACE, "")
    expected = f"{group.rank} of {group.size}"
    if place and place != expected:
        raise DeviceError("a program of several", expected=f"that of rank {expected}", got=f"that of rank {place}")
    needed = 1 + max(rank for collective in collectives for members in collective.groups for rank in members)
    if needed != group.size:
        fix = "ingot.launch(function, processes), or torchrun"
        raise DeviceError("a program of several", expected=f"a group of {needed} processes", got=group.size, fix=fix)
    text = "; ".join(f"{c} {c.groups} {c.dtype}" for c in collectives)
    digests = group.gather(hashlib.blake2b(text.encode(), digest_size=16).digest())
    if other := [rank for rank, digest in enumerate(digests) if digest != digests[group.rank]]:
        got = f"others on rank {', '.join(map(str, other))}"
        raise DeviceError("a program of several", expected="the same collectives on each rank", got=got)
    return group


def leave(failed: bool = False) -> None:
    """Leave the group, if it was joined."""
    while _current:
        _current.pop().close(failed)


def is_launched() -> bool:
    """Whether this process is one of several."""
    torch = sys.modules.get("torch.distributed")
    is_torch = torch is not None and torch.is_available() and torch.is_initialized()
    return RANK in os.environ or is_torch or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def _joined() -> ProcessGroup:
    if not is_launched():
        return SingleProcess()
    transport = os.environ.get(TRANSPORT, "") or ("shared_memory" if CONTROL in os.environ else "gloo")
    if transport == "gloo":
        from ingot.runtime.ranks.gloo import GlooGroup

        return GlooGroup()
    if transport == "shared_memory" and CONTROL in os.environ:
        from ingot.runtime.ranks.shared_memory import SharedMemoryGroup

        return SharedMemoryGroup(os.environ[CONTROL], _number(RANK), _number(WORLD_SIZE))
    raise InputError(
        f"environment variable {TRANSPORT}", expected="shared_memory (of ingot.launch) or gloo", got=transport
    )


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise InputError(f"environment variable {name}", expected="a number", got=repr(text), fix="use ingot.launch")
    return int(text)
