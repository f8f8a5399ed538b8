"""Triton in processes of its own: see `Pool`. A pass of it that hangs or aborts costs one kernel."""

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

SECONDS = 120.0  # for a kernel: the longest that was seen took 3
_MOST = 16
_EACH = 4  # kernels, for which another process is worth its start of half a second


def _unavailable(reason: str) -> CompileError:
    return CompileError("cubins", expected=f"a process that runs {sys.executable} with Triton", got=reason)


def _lost(name: str, code: int) -> CompileError:
    got = f"its process ended with {code}, or was killed after {SECONDS:.0f} s"
    return CompileError(f"kernel {name}", expected="a cubin from Triton", got=got)


TRITON = Compiler(
    "ingot.targets.cuda.worker", _unavailable, {"TRITON_DISABLE_LINE_INFO": "1"}, seconds=SECONDS, idle=60.0
)


@cache
def _workers(count: int) -> Pool:
    return Pool(TRITON, count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # its threads stayed with the parent


def _count() -> int:
    chosen = flags.workers()
    return min(available_cores(), _MOST) if chosen is None else max(chosen, 1)


def start(kernels: int) -> None:
    """Have processes ready for about so many kernels: they import Triton while this one reads the model."""
    _workers(_count()).start(max(1, kernels // _EACH))


def submit(source: Source, capability: int) -> Future[bytes]:
    """Begin to compile a kernel for a compute capability, to a record of `KernelCode`. Its result raises CompileError
    with Triton's words."""
    header = json.dumps([source.name, source.parameters, source.hints, source.matrices, capability]).encode()
    job = Job(header, source.text.encode(), partial(_lost, source.name))
    _workers(_count()).submit(job)
    return job.future


__all__ = ["start", "submit"]
