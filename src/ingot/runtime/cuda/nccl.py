"""NCCL through ctypes: collectives of GPUs, on a stream or as nodes of a CUDA graph.

Ids of communicators are exchanged by the process group on the host. A thread watches the group: when a rank ends, it
aborts the communicators, so that kernels that wait for that rank end, and the next call raises. See NVIDIA's NCCL
reference (version 2.19 and later) for each function.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

from ingot.runtime.cuda.driver import Driver
from ingot.runtime.dtypes import itemsize
from ingot.runtime.program import Collective, Program
from ingot.runtime.ranks.current import group_of
from ingot.runtime.ranks.process_group import ProcessGroup
from ingot.support.errors import DeviceError

_DTYPES = {"i8": 0, "u8": 1, "i32": 2, "u32": 3, "i64": 4, "u64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
_BYTES = _DTYPES["u8"]
_REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
_ID_BYTES = 128
_WATCH_SECONDS = 0.5


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


class Nccl:
    """The library. Functions raise DeviceError with its error message."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lib = library
        library.ncclCommInitRank.argtypes = (c_void_p, c_int, UniqueId, c_int)
        library.ncclGetErrorString.restype = c_char_p

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._lib, name)(*args)
        if status:
            text = (self._lib.ncclGetErrorString(c_int(status)) or b"unknown error").decode(errors="replace")
            raise DeviceError(f"NCCL refused {name}", got=f"{text} ({status})", fix="NCCL_DEBUG=INFO tells more")

    def unique_id(self) -> bytes:
        identifier = UniqueId()
        self._call("ncclGetUniqueId", byref(identifier))
        return bytes(identifier)

    def communicator(self, unique_id: bytes, size: int, index: int) -> int:
        """A communicator of `size` GPUs, in which this one has number `index`. Waits for the other GPUs."""
        handle = c_void_p()
        self._call("ncclCommInitRank", byref(handle), c_int(size), UniqueId.from_buffer_copy(unique_id), c_int(index))
        return handle.value or 0

    def abort(self, communicator: int) -> None:
        """End the communicator's running kernels, even those that wait for other ranks."""
        self._call("ncclCommAbort", c_void_p(communicator))

    def run(
        self, collective: Collective, communicator: int, index: int, source: int, target: int, count: int, stream: int
    ) -> None:  # fmt: skip
        """Begin a collective on a stream. index: of this GPU in its group."""
        size, reduction = len(collective.groups[0]), _REDUCTIONS.get(collective.reduction)
        addresses = c_void_p(source), c_void_p(target)
        handles = c_void_p(communicator), c_void_p(stream)
        nbytes = count * itemsize(collective.dtype)
        match collective.kind:
            case "all_reduce":
                self._call(
                    "ncclAllReduce",
                    *addresses,
                    c_size_t(count),
                    _number(collective),
                    c_int(reduction or 0),
                    *handles,
                )
            case "reduce_scatter":
                part = c_size_t(count // size)
                self._call(
                    "ncclReduceScatter",
                    *addresses,
                    part,
                    _number(collective),
                    c_int(reduction or 0),
                    *handles,
                )
            case "all_gather":
                self._call("ncclAllGather", *addresses, c_size_t(nbytes), c_int(_BYTES), *handles)
            case "all_to_all":
                part = nbytes // size
                self._exchange([(i, i, part * i, part * i) for i in range(size)], *addresses, part, *handles)
            case "collective_permute":
                receiver, sender = (index + collective.shift) % size, (index - collective.shift) % size
                self._exchange([(receiver, sender, 0, 0)], *addresses, nbytes, *handles)

    def _exchange(
        self, peers: list[tuple[int, int, int, int]], source: c_void_p, target: c_void_p, nbytes: int,
        communicator: c_void_p, stream: c_void_p,
    ) -> None:  # fmt: skip
        """Send and receive for each (receiver, sender, source offset, target offset), all concurrently."""
        self._call("ncclGroupStart")
        for receiver, sender, send_offset, receive_offset in peers:
            count = c_size_t(nbytes), c_int(_BYTES)
            self._call(
                "ncclSend", c_void_p((source.value or 0) + send_offset), *count, c_int(receiver), communicator, stream
            )
            self._call(
                "ncclRecv", c_void_p((target.value or 0) + receive_offset), *count, c_int(sender), communicator, stream
            )
        self._call("ncclGroupEnd")


def _number(collective: Collective) -> c_int:
    if collective.dtype not in _DTYPES:
        raise DeviceError(str(collective), expected=f"one of {', '.join(_DTYPES)} for NCCL", got=collective.dtype)
    return c_int(_DTYPES[collective.dtype])


@cache
def nccl() -> Nccl:
    """The library that PyTorch or the package nvidia-nccl brings, or the system's. Raises DeviceError without one."""
    # connect GPUs and register memory when a communicator is created, not while a graph is captured: one GPU may
    # rebuild its graphs while the others keep theirs
    for name in ("NCCL_RUNTIME_CONNECT", "NCCL_GRAPH_REGISTER"):
        os.environ.setdefault(name, "0")
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    folders = [] if spec is None else [Path(f) / "lib" for f in spec.submodule_search_locations or ()]
    for name in [*(str(folder / "libnccl.so.2") for folder in folders), "libnccl.so.2"]:
        try:
            return Nccl(ctypes.CDLL(name))
        except OSError:
            continue
    raise DeviceError("NCCL", expected="libnccl.so.2", got="none", fix="pip install nvidia-nccl-cu13 (or -cu12)")


class Communicators:
    """The communicators of this process by their groups of ranks, and the thread that watches the other ranks."""

    def __init__(self, library: Nccl, driver: Driver, group: ProcessGroup) -> None:
        self._nccl, self._driver, self._group = library, driver, group
        self._by_groups: dict[tuple[tuple[int, ...], ...], tuple[int, int]] = {}
        self._error: DeviceError | None = None
        self._changes = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="ingot-nccl", daemon=True)
        if group.size > 1:
            self._watcher.start()

    def make(self, collective: Collective) -> None:
        """Join the communicator of a collective's group; all ranks of the group do so together."""
        if collective.groups in self._by_groups:
            return
        members = collective.group_of(self._group.rank)
        index = members.index(self._group.rank)
        own_id = self._nccl.unique_id() if index == 0 else bytes(_ID_BYTES)
        unique_id = self._group.gather(own_id, members)[0]
        self._driver.enter()
        self._by_groups[collective.groups] = self._nccl.communicator(unique_id, len(members), index), index

    def run(self, collective: Collective, source: int, target: int, count: int, stream: int) -> None:
        self.check()
        communicator, index = self._by_groups[collective.groups]
        self._nccl.run(collective, communicator, index, source, target, count, stream)

    def check(self) -> None:
        """Raise DeviceError if another rank has ended."""
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        wait = threading.Event()
        while self._error is None:
            wait.wait(_WATCH_SECONDS)
            try:
                self._group.check()
            except DeviceError as error:
                self._fail(error)

    def _fail(self, error: DeviceError) -> None:
        with self._changes:
            self._error = error
            self._driver.enter()
            for communicator, _ in self._by_groups.values():
                self._nccl.abort(communicator)
            self._by_groups.clear()


_communicators: list[Communicators] = []


def communicators_of(program: Program, driver: Driver, library: Callable[[], Nccl] = nccl) -> Communicators | None:
    """The communicators for a program's collectives; None if it has none. All ranks load their programs together."""
    group = group_of(program)
    if group is None:
        return None
    if not _communicators:
        _communicators.append(Communicators(library(), driver, group))
    for step in program.steps:
        if step.collective is not None:
            _communicators[0].make(step.collective)
    return _communicators[0]
