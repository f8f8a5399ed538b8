"""LLVM in processes of its own: see `Pool`. A job whose process died (of a bug in LLVM, of too little memory) gets one
more, and then fails."""

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

_ARCHS = ("x86_64", "aarch64")
_MOST = 4  # beyond that, kernels are not lowered as fast as they are compiled
_MANY = 8  # kernels that take longer than another process takes to start


def _unavailable(reason: str) -> CompileError:
    return CompileError(
        "code generation",
        expected=f"a process that runs {sys.executable} with llvmlite",
        got=reason,
        fix="INGOT_WORKERS=0 generates code in this process",
    )


def _lost(code: int) -> CompileError:
    return CompileError(
        "code generation",
        expected="LLVM to compile the kernel",
        got=f"its process died twice, with exit code {code}",
        fix="if memory was short, set INGOT_WORKERS=1; else this is a bug in the CPU target",
    )


# its greeting is LLVM's name of the core; a process costs what several kernels cost
LLVM = Compiler("ingot.targets.cpu.worker", _unavailable, ahead=2, waiting=6, tries=2)


def module(text: str, features: Features, assembly: bool = False) -> Job:
    """A module of LLVM IR on its way to becoming an object or assembly text."""
    header = json.dumps([features.arch, features.features, features.cpu, assembly]).encode()
    return Job(header, text.encode(), _lost)


@cache
def _workers(count: int) -> Pool:
    return Pool(LLVM, count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # its threads stayed with the parent


def _chosen() -> Pool | None:
    """None where code is to be generated in this process."""
    chosen = flags.workers()
    count = min(available_cores(), _MOST) if chosen is None else chosen
    return _workers(count) if count and sys.executable else None


def start(kernels: int) -> None:
    """Have processes ready for about so many kernels: they load LLVM while this one reads and rewrites the model."""
    if workers := _chosen():
        workers.start(1 if kernels < _MANY else None)


def host_features() -> Features:
    """The machine this process runs on, with LLVM's name of its core. Raises CompileError where it is no target."""
    machine = host()
    if machine.arch not in _ARCHS:
        raise CompileError("CPU target", expected=f"one of {sorted(_ARCHS)}", got=machine.arch)
    workers = _chosen()
    if workers is None:
        from ingot.targets.cpu.codegen import core_name

        return replace(machine, cpu=core_name())
    return replace(machine, cpu=workers.greeting())


def submit(text: str, features: Features, assembly: bool = False) -> Future[bytes]:
    """One module of LLVM IR text -> the bytes of a relocatable ELF object, or of assembly text.

    The future raises CompileError for IR that LLVM refuses, and where no process could do it.
    """
    workers = _chosen()
    job = module(text, features, assembly)
    if workers is not None:
        workers.submit(job)
        return job.future
    from ingot.targets.cpu.codegen import emit

    try:
        job.future.set_result(emit(text, features, assembly))
    except CompileError as error:
        job.future.set_exception(error)
    return job.future
