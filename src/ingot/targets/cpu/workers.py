"""The pool of LLVM processes: see `Pool`. A job whose process dies, of a bug in LLVM or for lack of memory, is retried
once."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import Future
from dataclasses import replace
from functools import cache

from ingot.support import flags
from ingot.support.errors import CompileError
from ingot.support.native import Features, available_cores, host
from ingot.targets.pool import Compiler, Job, Pool

_ARCHS = ("x86_64", "aarch64", "riscv64")
_MAX_WORKERS = 4  # more would compile faster than kernels are lowered
_MIN_KERNELS_FOR_ALL_WORKERS = 8  # fewer compile faster than another process starts


def _unavailable(reason: str) -> CompileError:
    return CompileError(
        "code generation",
        expected=f"a process that runs {sys.executable} with llvmlite",
        got=reason,
        fix="INGOT_WORKERS=0 generates code in this process",
    )


def _crash_error(code: int) -> CompileError:
    return CompileError(
        "code generation",
        expected="LLVM to compile the kernel",
        got=f"its process died twice, with exit code {code}",
        fix="if memory was short, set INGOT_WORKERS=1; else this is a bug in the CPU target",
    )


# the greeting is LLVM's name of the core; starting a process takes as long as several kernels
LLVM = Compiler("ingot.targets.cpu.worker", _unavailable, max_pending=2, max_queued=6, max_tries=2)


def compile_job(text: str, features: Features, assembly: bool = False) -> Job:
    """Make a job that compiles a module of LLVM IR to an object or assembly text."""
    header = json.dumps([features.arch, features.features, features.cpu, assembly]).encode()
    return Job(header, text.encode(), _crash_error)


@cache
def _pool(count: int) -> Pool:
    return Pool(LLVM, count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # the threads stayed in the parent


def _workers() -> Pool | None:
    """Return the pool; None if code is generated in this process."""
    requested = flags.workers()
    count = min(available_cores(), _MAX_WORKERS) if requested is None else requested
    return _pool(count) if count and sys.executable else None


def start(kernels: int) -> None:
    """Start processes for about `kernels` kernels: they load LLVM while this one reads and rewrites the model."""
    if workers := _workers():
        workers.start(1 if kernels < _MIN_KERNELS_FOR_ALL_WORKERS else None)


def host_features() -> Features:
    """Return this machine's features, with LLVM's name of its core. Raises CompileError for an unsupported machine."""
    machine = host()
    if machine.arch not in _ARCHS:
        raise CompileError("CPU target", expected=f"one of {sorted(_ARCHS)}", got=machine.arch)
    workers = _workers()
    if workers is None:
        from ingot.targets.cpu.codegen import core_name

        return replace(machine, cpu=core_name())
    return replace(machine, cpu=workers.greeting())


def submit(text: str, features: Features, assembly: bool = False) -> Future[bytes]:
    """Begin to compile a module of LLVM IR text to a relocatable ELF object, or to assembly text.

    The future raises CompileError for invalid IR, and if no process could compile it.
    """
    workers = _workers()
    job = compile_job(text, features, assembly)
    if workers is not None:
        workers.submit(job)
        return job.future
    from ingot.targets.cpu.codegen import emit

    try:
        job.future.set_result(emit(text, features, assembly))
    except CompileError as error:
        job.future.set_exception(error)
    return job.future
