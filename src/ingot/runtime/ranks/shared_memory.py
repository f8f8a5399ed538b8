"""Exchanges between processes of one machine through shared memory.

    control file  a line of 64 bytes for each rank: what has become of it; a rank holds a lock on its line's first byte
    channel file  for each set of groups: a line for each rank, then two slots of SLOT_BYTES for each
                  line:  rounds done (u32)  | digest of the round's collective (u64, two: even and odd rounds)

A round: each member writes to its slot, says so, waits until all have said so, and reads the others' slots. Rounds use
the two slots in turns: a member that writes to a slot has seen all others finish the round before last, in which they
read it. Members wait on a futex of the slowest one, and look every POLL_SECONDS whether a rank has ended: its lock is
gone, whatever ended it. Numbers are published by a call that gives up Python's lock before and after it, so that on
any processor what was written before is visible to who sees the number.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import platform
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import Collective
from ingot.runtime.ranks.process_group import ProcessGroup, reduced
from ingot.support.errors import DeviceError
from ingot.support.flags import collective_seconds

SLOT_BYTES = 1 << 20
POLL_SECONDS = 0.05
LEFT_SECONDS = 5.0
_LINE_BYTES = 64
_ABSENT, _JOINED, _LEFT, _FAILED = range(4)
_STATES = ("is absent", "has stopped", "has left", "has failed")
_WAIT, _WAKE = 0, 1  # futex operations
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_SPIN_SECONDS = 20e-6
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _wait(address: int, value: int, seconds: float) -> None:
    """Sleep until the u32 at an address is woken, unless it is no longer `value`, or until the time is over."""
    if _FUTEX is None:
        time.sleep(min(seconds, 50e-6))
        return
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    _libc.syscall(
        ctypes.c_long(_FUTEX), ctypes.c_void_p(address), ctypes.c_int(_WAIT), ctypes.c_uint32(value),
        ctypes.byref(limit), None, ctypes.c_int(0),
    )  # fmt: skip


def _wake(address: int) -> None:
    if _FUTEX is not None:
        count = ctypes.c_int(1 << 30)
        _libc.syscall(ctypes.c_long(_FUTEX), ctypes.c_void_p(address), ctypes.c_int(_WAKE), count, None, None, 0)


def _map(path: Path, nbytes: int) -> tuple[np.ndarray, int]:
    """A file of zeros, created if it is not there, in memory, and its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, nbytes)
    return np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8), descriptor


class SharedMemoryGroup(ProcessGroup):
    """The processes that `launch` has started. control: the path of the control file, in a folder of their own."""

    transport = "shared_memory"

    def __init__(self, control: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._folder, self._seconds = Path(control).parent, collective_seconds()
        data, self._descriptor = _map(Path(control), _LINE_BYTES * size)
        self._states = data.reshape(size, _LINE_BYTES)[:, 0]
        self._channels: dict[tuple[tuple[int, ...], ...], _Channel] = {}
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, _LINE_BYTES * rank)
        self._states[rank] = _JOINED
        self._owner = os.getpid()
        self._left_at: dict[int, float] = {}  # when it was noticed that a rank has left

    def exchange(self, collective: Collective, source: np.ndarray, target: np.ndarray) -> None:
        channel = self._channels.get(collective.groups)
        if channel is None:
            channel = self._channels[collective.groups] = _Channel(self, self._folder, collective)
        channel.run(collective, source.view(np.uint8), target.view(np.uint8))

    def check(self) -> None:
        """A rank that has left, its work done, counts as ended after LEFT_SECONDS: others may be about to leave."""
        for rank in range(self.size):
            state = None if rank == self.rank or self._states[rank] == _ABSENT else self.state(rank)
            if state is None or (
                state == _STATES[_LEFT]
                and time.monotonic() - self._left_at.setdefault(rank, time.monotonic()) < LEFT_SECONDS
            ):
                continue
            raise DeviceError("a group of processes", expected="all ranks at work", got=f"rank {rank} {state}")

    def state(self, rank: int) -> str | None:
        """What has become of a rank that is not at work; None for one that is."""
        state = int(self._states[rank])
        if state == _JOINED:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LINE_BYTES * rank)
            except OSError:
                return None  # its process holds the lock
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _LINE_BYTES * rank)
        return _STATES[min(state, len(_STATES) - 1)]

    def close(self, failed: bool = False) -> None:
        if self._owner == os.getpid() and self._states[self.rank] == _JOINED:
            self._states[self.rank] = _FAILED if failed else _LEFT
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _LINE_BYTES * self.rank)

    @property
    def seconds(self) -> float:
        """The time that a member may keep the others waiting."""
        return self._seconds


class _Channel:
    """The memory through which the groups of one kind exchange values."""

    def __init__(self, group: SharedMemoryGroup, folder: Path, collective: Collective) -> None:
        self._group, self._members = group, collective.group_of(group.rank)
        self._index = self._members.index(group.rank)
        name = hashlib.blake2b(repr(collective.groups).encode(), digest_size=8).hexdigest()
        lines = _LINE_BYTES * group.size
        data, descriptor = _map(folder / name, lines + 2 * SLOT_BYTES * group.size)
        os.close(descriptor)
        self._data = data
        self._rounds = data[:lines].view(np.uint32).reshape(group.size, -1)[:, 0]
        self._digests = data[:lines].view(np.uint64).reshape(group.size, -1)[:, 1:3]
        self._slots = data[lines:].reshape(group.size, 2, SLOT_BYTES)
        self._round = int(self._rounds[group.rank])
        self._address = data.ctypes.data + _LINE_BYTES * group.rank

    def run(self, collective: Collective, source: np.ndarray, target: np.ndarray) -> None:
        key = f"{collective} {collective.dtype} {source.nbytes}".encode()
        digest = np.frombuffer(hashlib.blake2b(key, digest_size=8).digest(), np.uint64)[0]
        count, dtype = len(self._members), _numpy(collective)
        match collective.kind:
            case "all_reduce":
                self._all_reduce(source.view(dtype), target.view(dtype), collective.reduction, digest)
            case "all_gather":
                out = target.reshape(count, -1)
                for cut in _cuts(source.size, SLOT_BYTES):
                    for part, received in zip(out, self._round_of(source[cut], digest), strict=True):
                        part[cut] = received
            case "reduce_scatter" | "all_to_all":
                parts = source.reshape(count, -1)
                is_sum = collective.kind == "reduce_scatter"
                out = target.view(dtype) if is_sum else target.reshape(count, -1)
                for cut in _cuts(parts.shape[1], SLOT_BYTES // count // 16 * 16):
                    received = self._round_of(parts[:, cut].reshape(-1), digest)
                    rows = [r.reshape(count, -1)[self._index] for r in received]
                    if is_sum:
                        width = np.dtype(dtype).itemsize
                        out[cut.start // width : cut.stop // width] = reduced(
                            [np.ascontiguousarray(r).view(dtype) for r in rows], collective.reduction
                        )
                    else:
                        for part, piece in zip(out, rows, strict=True):
                            part[cut] = piece
            case "collective_permute":
                sender = (self._index - collective.shift) % count
                for cut in _cuts(source.size, SLOT_BYTES):
                    target[cut] = self._round_of(source[cut], digest)[sender]

    def _all_reduce(self, source: np.ndarray, target: np.ndarray, reduction: str, digest: np.uint64) -> None:
        """Small tensors in one round, each member combining all; of large ones each combines a part, and a second round
        exchanges the parts."""
        count, width = len(self._members), source.itemsize
        for cut in _cuts(source.size, SLOT_BYTES // width):
            piece = source[cut]
            received = [r.view(source.dtype) for r in self._round_of(piece.view(np.uint8), digest)]
            if piece.nbytes <= _SMALL_BYTES or count == 1:
                target[cut] = reduced(received, reduction)
                continue
            share = -(-piece.size // count)
            low, high = share * self._index, min(share * (self._index + 1), piece.size)
            sums = reduced([r[low:high] for r in received], reduction) if low < high else piece[:0]
            padded = np.zeros(share, source.dtype)
            padded[: sums.size] = sums
            shares = [r.view(source.dtype) for r in self._round_of(padded.view(np.uint8), digest)]
            target[cut] = np.concatenate(shares)[: piece.size]

    def _round_of(self, data: np.ndarray, digest: np.uint64) -> list[np.ndarray]:
        """What each member has written in this round, equally long, valid until the round after the next."""
        rank, self._round = self._group.rank, self._round + 1
        parity = self._round % 2
        self._slots[rank, parity, : data.size] = data
        self._digests[rank, parity] = digest
        _wake(self._address)  # a call: what is above is visible before what is below
        self._rounds[rank] = self._round & 0xFFFFFFFF
        _wake(self._address)
        for member in self._members:
            self._await(member)
            if self._digests[member, parity] != digest:
                got = f"rank {member} runs another one, or on another size"
                raise DeviceError("a collective", expected="the same one on each rank", got=got)
        return [self._slots[member, parity, : data.size] for member in self._members]

    def _missed_rounds(self, member: int) -> int | None:
        """The rounds that a member has done, if it has not done this one."""
        done = int(self._rounds[member])
        return done if (self._round - done) & 0xFFFFFFFF in range(1, 1 << 31) else None

    def _await(self, member: int) -> None:
        start = time.monotonic()
        while (done := self._missed_rounds(member)) is not None:
            waited = time.monotonic() - start
            if waited < _SPIN_SECONDS:
                os.sched_yield()
                continue
            _wait(self._data.ctypes.data + _LINE_BYTES * member, done, POLL_SECONDS)
            if self._missed_rounds(member) is None:
                break
            state = self._group.state(member)
            if state is not None and (state != _STATES[_ABSENT] or waited > self._group.seconds):
                # it may have done the round before it ended
                if self._missed_rounds(member) is None:
                    break
                raise DeviceError("a collective", expected=f"rank {member} at work", got=f"rank {member} {state}")
            if waited > self._group.seconds:
                fix = "INGOT_COLLECTIVE_SECONDS=n waits longer"
                got = f"none for {waited:.0f} s"
                raise DeviceError("a collective", expected=f"an answer of rank {member}", got=got, fix=fix)
        _wake(self._address)  # a call: what is below is read after the number


_SMALL_BYTES = 1 << 15


@cache
def _numpy(collective: Collective) -> np.dtype:
    return numpy_dtype(collective.dtype)


def _cuts(size: int, step: int) -> Sequence[slice]:
    """Slices of at most `step`; one that is empty for no elements, so that the members still meet."""
    return [slice(i, min(i + step, size)) for i in range(0, max(size, 1), step)]
