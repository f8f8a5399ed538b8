"""Guard pages around inputs, results, state, scratch, weights and each buffer of the arena: a stray access is a fault.

A page guards one end of a buffer at a time, so a suite runs once per end. A fault kills the process; `failures` runs
cases in forked processes and names those that died.

    with guarded("last"):  model(x)          # x's last byte is the last one of a page; the next page is no memory
    assert not failures({"add": case, ...})  # {"gather": "signal 11 (SIGSEGV)"}

Buffers of the arena are whole multiples of 64 bytes, as kernels may assume: up to 63 bytes behind the last element are
not guarded. Memory that no step has written holds 0xFF (NaN, -1), so that reading it shows.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any, Literal, TextIO, get_args
from unittest import mock

import numpy as np

from ingot.runtime import bind, dtypes, placement, tensors
from ingot.runtime.cpu import device, memory
from ingot.runtime.cpu.instance import Instance
from ingot.runtime.cpu.run_context import RunContext
from ingot.runtime.executable import LoadedProgram
from ingot.runtime.expr import span
from ingot.runtime.program import Buffer, Program

End = Literal["first", "last"]
ENDS: tuple[End, ...] = get_args(End)

_PAGE = mmap.PAGESIZE
_NONE, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_STALE = 0xFF
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _set_access(address: int, nbytes: int, access: int) -> None:
    """The access to all pages that hold any of these bytes."""
    first = address // _PAGE * _PAGE
    if nbytes and _protect(first, _pages(address + nbytes - first), access):
        raise OSError(ctypes.get_errno(), "mprotect")


def _pages(nbytes: int) -> int:
    """`nbytes`, rounded up to whole pages."""
    return -(-nbytes // _PAGE) * _PAGE


def _lead(nbytes: int, end: End) -> int:
    """How far from the start of its pages a buffer is whose `end` is guarded."""
    return _pages(nbytes) - nbytes if end == "last" else 0


_original_region = memory.Region


class _Region(_original_region):
    """A region between two guard pages; `end` is the one that touches its page."""

    end: End

    def __init__(self, nbytes: int, alignment: int = placement.ALIGNMENT) -> None:
        self.nbytes = nbytes
        size = -(-nbytes // alignment) * alignment
        self._mapping = _original_region(_pages(size) + 2 * _PAGE)
        self.address = self._mapping.address + _PAGE + _lead(size, self.end)
        _set_access(self._mapping.address, _PAGE, _NONE)
        _set_access(self._mapping.address + self._mapping.nbytes - _PAGE, _PAGE, _NONE)

    def __del__(self) -> None:
        if hasattr(self, "_mapping"):  # else there was not that much memory
            _set_access(self._mapping.address, self._mapping.nbytes, _READ_WRITE)

    def array(self) -> np.ndarray:
        return np.asarray(_Bytes(self))


class _Bytes:
    """What numpy's view of a region holds on to. A view of no bytes is at the page that guards it."""

    def __init__(self, region: _Region) -> None:
        self._region = region
        place = (region.address, False)
        self.__array_interface__ = {"data": place, "shape": (region.nbytes,), "typestr": "|u1", "version": 3}


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A guarded array without content, at an address that is a multiple of one element's size alone."""
    array = _Region(prod(shape) * dtype.itemsize, alignment=1).array()
    array[:] = _STALE
    return array.view(dtype).reshape(shape)


def copied(value: Any) -> Any:
    """A guarded copy of an array or a tensor of PyTorch's in CPU memory; anything else as it is."""
    if isinstance(value, np.ndarray):
        array = empty(value.shape, value.dtype)
        array[...] = value
        return array
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or not value.is_cpu or value.layout is not torch.strided:
        return value
    return _tensor(value.shape, value.contiguous().stride(), value.dtype).copy_(value)


def _tensor(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
    torch = sys.modules["torch"]
    size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if prod(shape) else 0
    flat = torch.from_numpy(empty((size * dtype.itemsize,), np.dtype(np.uint8))).view(dtype)
    return flat.as_strided(tuple(shape), tuple(strides))


def _place(requests: Sequence[placement.Request]) -> tuple[list[int], int]:
    """`placement.place`, each request in pages of its own behind one that no request has."""
    offsets: list[int] = []
    total = 0
    for request in requests:
        size = placement.align(max(request.nbytes, 0))
        offsets.append(total + _PAGE + _lead(size, _Region.end))
        total += _PAGE + _pages(size)
    return offsets, total


def _owners(program: Program, kind: str) -> list[Buffer]:
    return [b for b in program.buffers if b.kind == kind and b.alias is None]


def _with_guarded_weights(program: Program) -> Program:
    """The program with each weight in pages of its own."""
    weights = _owners(program, "weight")
    requests = [placement.Request(span(b.nbytes, {})[1], 0, 0) for b in weights]
    places, total = _place(requests)
    region = _Region(max(total, 1))
    _set_access(region.address, total, _READ_WRITE)
    for buffer, request, place in zip(weights, requests, places, strict=True):
        region.write(place, program.weights.ctypes.data + buffer.offset, request.nbytes)
    _guard_gaps(region, [(place, r.nbytes) for place, r in zip(places, requests, strict=True)])
    shifted = {b.id: replace(b, offset=place) for b, place in zip(weights, places, strict=True)}
    return replace(
        program, weights=region.array(), buffers=tuple(shifted.get(buffer.id, buffer) for buffer in program.buffers)
    )


def _guard_gaps(region: memory.Region, used: Sequence[tuple[int, int]]) -> None:
    """Take away the access to all of a region's pages but those that hold these (offset, bytes)."""
    _set_access(region.address, region.nbytes, _NONE)
    for offset, nbytes in used:
        _set_access(region.address + offset, nbytes, _READ_WRITE)


def _activate(context: RunContext, instance: Instance) -> None:
    """`RunContext.activate`, with guards between this instance's buffers and stale bytes in those without a halo."""
    workspace, layout = context.pool.workspace, instance.layout
    for region in (workspace.arena, workspace.images):
        _set_access(region.address, region.nbytes, _READ_WRITE)
    _original_activate(context, instance)
    plain: list[tuple[int, int]] = []
    images: list[tuple[int, int]] = []
    for buffer in _owners(context._program, "arena"):
        nbytes, offset = placement.align(max(0, span(buffer.nbytes, instance.spans)[1])), layout.offsets[buffer.id]
        which = layout.geometry.get(buffer.id)
        if which is None:
            plain.append((offset, nbytes))
        else:
            key, start, _ = layout.images[which]
            images.append((workspace.place(key) - workspace.images.address + offset - start, nbytes))
    for offset, nbytes in plain:
        workspace.arena.fill(offset, nbytes, _STALE)
    _guard_gaps(workspace.arena, plain)
    _guard_gaps(workspace.images, images)


_original_activate = RunContext.activate


def _run_context(context: RunContext, instance: Instance, pointers: Sequence[int], resident: object = None) -> None:
    context.current = None  # another model may have guarded the same arena for buffers of its own
    _original_run(context, instance, pointers, resident)


_original_run = RunContext.run
_original_program_run = LoadedProgram.run
_original_loaded = device.Loaded.__init__


def _load(loaded: device.Loaded, program: Program, threads: int) -> None:
    _original_loaded(loaded, _with_guarded_weights(program), threads)


def _run_program(program: LoadedProgram, inputs: Sequence[object]) -> Any:
    return _original_program_run(program, [copied(value) for value in inputs])


def _new_array(border: tensors.TensorAdapter, shape: tuple[int, ...], _memory: object) -> np.ndarray:
    return empty(shape, border.dtype or dtypes.numpy_dtype(border.spec.dtype))


def _new_tensor(
    border: tensors.TensorAdapter,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    _memory: object,
    _device: Any = None,
):
    return _tensor(shape, strides, border.torch_dtype)


@contextmanager
def guarded(end: End) -> Iterator[None]:
    """What models that are loaded and run on the CPU inside read and write beyond that end of any buffer is a fault."""
    _Region.end = end
    with (
        mock.patch.object(memory, "Region", _Region),
        mock.patch.object(placement, "place", _place),
        mock.patch.object(bind.placement, "place", _place),
        mock.patch.object(tensors.TensorAdapter, "new_array", _new_array),
        mock.patch.object(tensors.TensorAdapter, "new_tensor", _new_tensor),
        mock.patch.object(RunContext, "activate", _activate),
        mock.patch.object(RunContext, "run", _run_context),
        mock.patch.object(device.Loaded, "__init__", _load),
        mock.patch.object(tensors.TensorAdapter, "empty", staticmethod(_tensor)),
        mock.patch.object(LoadedProgram, "run", _run_program),
    ):
        yield


Case = Callable[[], object]
_WAITS = 5  # a busy machine may take so many times as long as the processor


def failures(cases: Mapping[str, Case], ends: Sequence[End] = ENDS, seconds: int = 60) -> dict[str, str]:
    """Which cases raise, die, wait or take longer than `seconds` of processor time with guard pages at each end, and
    how; one process runs them until one dies. A case that waits has a second process: libraries whose threads did not
    come along may have held locks at the fork.

    A case that is to check for a refusal catches it itself.
    """
    results: dict[str, str] = {}
    for end in ends:
        remaining, waited = list(cases), set[str]()
        while remaining:
            done, status, stack = _in_child(cases, remaining, end, seconds)
            results.update({f"{name} ({end})": how for name, how in done.items() if how})
            remaining = remaining[len(done) :]
            if remaining and status:
                if stack.startswith("Timeout") and remaining[0] not in waited:
                    waited.add(remaining[0])
                    print(f"{remaining[0]} ({end}) waited, and runs again", stack, sep="\n", file=sys.stderr)
                    continue
                how = f"signal {signal.Signals(status).name}" if status > 0 else f"exit {-status}"
                results[f"{remaining[0]} ({end})"] = f"{how}\n{stack}" if stack else how
                del remaining[0]
    return results


def check_all(cases: Mapping[str, Case], ends: Sequence[End] = ENDS) -> None:
    """Fail with the first cases that do."""
    results = failures(cases, ends)
    text = "\n".join(f"{name}: {how}" for name, how in [*results.items()][:9])
    assert not results, f"{len(results)} of {len(ends) * len(cases)}:\n{text}"


def _in_child(
    cases: Mapping[str, Case], names: Sequence[str], end: End, seconds: int
) -> tuple[dict[str, str], int, str]:
    """What cases said that ended, "" where they passed; the signal that ended the process, or less than 0; and the
    stack of a case that waited or of what else went wrong."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stack:
        child = os.fork()
        if not child:
            os.close(reader)
            _run_all(cases, names, end, seconds, writer, stack)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as lines:
            printed = [line.rstrip("\n") for line in lines if line.endswith("\n")]
        status = os.waitpid(child, 0)[1]
        died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
        stack.seek(0)
        return dict(zip(names, printed, strict=False)), died, stack.read()


def _run_all(
    cases: Mapping[str, Case], names: Sequence[str], end: End, seconds: int, writer: int, stack: TextIO
) -> None:
    """In the child, which ends here: a line for each case."""
    # what the parent left behind may join threads when it is collected, and no thread came along
    gc.freeze()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.disable()  # pytest's prints where a process dies: here that is a result
    try:
        with guarded(end), os.fdopen(writer, "w", encoding="utf-8") as stream:
            for name in names:
                signal.setitimer(signal.ITIMER_PROF, seconds)
                faulthandler.dump_traceback_later(_WAITS * seconds, exit=True, file=stack)
                try:
                    cases[name]()
                    how = ""
                except Exception as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    text = " ".join(str(error).split())[:500]
                    how = f"{type(error).__name__}: {text} ({os.path.basename(where.filename)}:{where.lineno})"
                stream.write(how + "\n")
                stream.flush()
    except BaseException:
        traceback.print_exc(file=stack)
        stack.flush()
        os._exit(1)
    os._exit(0)
