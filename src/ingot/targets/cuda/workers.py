"""The pool of Triton processes: see `Pool`. A pass that hangs or aborts fails one kernel only."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import Future
from functools import cache, partial

from ingot.support import flags
from ingot.support.errors import CompileError
from ingot.support.native import available_cores
from ingot.targets.cuda.triton import Source
from ingot.targets.pool import Compiler, Job, Pool

TIMEOUT_SECONDS = 120.0  # of a kernel; the slowest one observed took 3
_MAX_WORKERS = 16
_KERNELS_PER_WORKER = 4  # that justify half a second to start another process


def _unavailable(reason: str) -> CompileError:
    return CompileError("cubins", expected=f"a process that runs {sys.executable} with Triton", got=reason)


def _crash_error(name: str, code: int) -> CompileError:
    got = f"its process ended with {code}, or was killed after {TIMEOUT_SECONDS:.0f} s"
    return CompileError(f"kernel {name}", expected="a cubin from Triton", got=got)


TRITON = Compiler(
    "ingot.targets.cuda.worker",
    _unavailable,
    {"TRITON_DISABLE_LINE_INFO": "1"},
    timeout_seconds=TIMEOUT_SECONDS,
    idle_seconds=60.0,
)


@cache
def _pool(count: int) -> Pool:
    return Pool(TRITON, count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # the threads stayed in the parent


def _count() -> int:
    requested = flags.workers()
    return min(available_cores(), _MAX_WORKERS) if requested is None else max(requested, 1)


def start(kernels: int) -> None:
    """Start processes for about `kernels` kernels: they import Triton while this one reads the model."""
    _pool(_count()).start(max(1, kernels // _KERNELS_PER_WORKER))


def submit(source: Source, arch: str) -> Future[bytes]:
    """Begin to compile a kernel for an architecture; the future's result is a record of `KernelCode`, or raises
    CompileError with Triton's message."""
    header = json.dumps([source.name, source.parameters, source.hints, source.matrices, arch]).encode()
    job = Job(header, source.text.encode(), partial(_crash_error, source.name))
    _pool(_count()).submit(job)
    return job.future


__all__ = ["start", "submit"]
