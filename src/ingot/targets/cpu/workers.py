"""Processes that run LLVM, so that code is generated on all cores and LLVM's memory is never this process's.

    submit(text) -> Future     one queue of jobs     a thread here for each process there, at most `count` of them

A process takes a second job in while it works on the first: it never waits for a Python that is busy lowering the next
kernel. Processes come with the work and go when there has been none for a while. A job whose process died (of a bug in
LLVM, of too little memory) gets one more, and then fails.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from ingot.support import flags
from ingot.support.errors import CompileError
from ingot.support.native import Features, available_cores, host
from ingot.targets.frames import receive, send

_ARCHS = ("x86_64", "aarch64")
# The package without its own __init__, which imports the runtime and numpy: 60 ms instead of 140, and 16 MB less.
_BOOT = """
import sys, types
package = sys.modules["ingot"] = types.ModuleType("ingot")
package.__path__ = [sys.argv[1]]
from ingot.targets.cpu.worker import main
main()
"""
_MOST = 4  # beyond that, kernels are not lowered as fast as they are compiled
_AHEAD = 2
_IDLE_SECONDS = 5.0


def _unavailable(reason: str) -> CompileError:
    return CompileError(
        "code generation",
        expected=f"a process that runs {sys.executable} with llvmlite",
        got=reason,
        fix="INGOT_WORKERS=0 generates code in this process",
    )


class _Job:
    """A module of LLVM IR on its way to becoming an object or assembly text."""

    def __init__(self, text: str, features: Features, assembly: bool) -> None:
        self.header = json.dumps([features.arch, features.features, features.cpu, assembly]).encode()
        self.text = text.encode()
        self.deaths = 0
        self.future: Future[bytes] = Future()


class _Child:
    """A process and the jobs that are there, which it answers in order."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,  # an interrupt from the keyboard is not for it
        )
        self.jobs: deque[_Job] = deque()

    def greeting(self) -> str | None:
        """LLVM's name of the core; None if the process could not start."""
        assert self.process.stdout is not None
        message = receive(self.process.stdout)
        return None if message is None else message[0].decode()

    def begin(self, job: _Job) -> None:
        assert self.process.stdin is not None
        self.jobs.append(job)
        with suppress(OSError):  # if it has died, `finish` finds no answer
            send(self.process.stdin, job.header, job.text)

    def finish(self) -> bool:
        """Wait for the answer to the oldest job; whether there was one."""
        assert self.process.stdout is not None
        answer = receive(self.process.stdout)
        if answer is None:
            return False
        data, error = answer
        future = self.jobs.popleft().future
        if error:
            future.set_exception(CompileError(error.decode()))
        else:
            future.set_result(data)
        return True

    def end(self) -> int:
        """Stop the process; how it ended, as `Popen.returncode` says it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError):  # what was not sent is not missed
            self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


class _Workers:
    """At most `count` processes."""

    def __init__(self, count: int) -> None:
        self._core: Future[str] = Future()
        self._count = count
        self._jobs: deque[_Job] = deque()
        self._change = threading.Condition()
        self._children: set[_Child] = set()
        self._threads = self._idle = 0
        atexit.register(self.kill)

    def start(self) -> None:
        """Have all processes ready for the work to come."""
        with self._change:
            if self._core.done() and self._core.exception():
                self._core = Future()
            while self._threads < self._count and self._grow():
                pass

    def core_name(self) -> str:
        """LLVM's name of the core, as the first process told it."""
        if not self._core.done() or self._core.exception():
            self.start()
        return self._core.result()

    def submit(self, job: _Job) -> None:
        with self._change:
            self._jobs.append(job)
            if self._idle:
                self._change.notify()
            if len(self._jobs) > self._idle and self._threads < self._count:
                self._grow()

    def kill(self) -> None:
        """Leave nothing behind when the interpreter ends."""
        for child in tuple(self._children):
            child.process.kill()
            child.process.wait()

    def _grow(self) -> bool:
        try:
            threading.Thread(target=self._serve, name="ingot code generation", daemon=True).start()
        except RuntimeError as error:
            if self._threads:
                return False
            raise _unavailable(str(error)) from error
        self._threads += 1
        return True

    def _serve(self) -> None:
        child = self._child()
        while child is not None and ((job := self._take(wait=not child.jobs)) or child.jobs):
            if job is not None:
                child.begin(job)
                if len(child.jobs) < _AHEAD:
                    continue
            if not child.finish():
                self._again(child)
                child = self._child()
        if child is not None:
            self._children.discard(child)
            child.end()

    def _child(self) -> _Child | None:
        """A new process that has said hello. Where none starts, the thread ends, and the last one tells who waits."""
        try:
            child = _Child()
        except OSError as error:
            return self._give_up(str(error))
        self._children.add(child)
        core = child.greeting()
        if core is None:
            self._children.discard(child)
            return self._give_up(f"exit code {child.end()}; its message is on stderr")
        with self._change:
            if not self._core.done():
                self._core.set_result(core)
        return child

    def _give_up(self, reason: str) -> None:
        with self._change:
            self._threads -= 1
            if self._threads:
                return
            waiting = [self._core, *(job.future for job in self._jobs)]
            self._jobs.clear()
            for future in waiting:
                if not future.done():
                    future.set_exception(_unavailable(reason))

    def _take(self, wait: bool) -> _Job | None:
        """The next job. None: there is none now or, after waiting, none at all, and the thread ends."""
        with self._change:
            if wait and not self._jobs:
                self._idle += 1
                self._change.wait_for(lambda: self._jobs, _IDLE_SECONDS)
                self._idle -= 1
                self._threads -= not self._jobs
            return self._jobs.popleft() if self._jobs else None

    def _again(self, child: _Child) -> None:
        """Put a dead process's jobs back. The first is what it died of: it gets one more try."""
        self._children.discard(child)
        code = child.end()
        first = child.jobs[0]
        first.deaths += 1
        if first.deaths > 1:
            child.jobs.popleft().future.set_exception(
                CompileError(
                    "code generation",
                    expected="LLVM to compile the kernel",
                    got=f"its process died twice, with exit code {code}",
                    fix="if memory was short, set INGOT_WORKERS=1; else this is a bug in the CPU target",
                )
            )
        with self._change:
            self._jobs.extendleft(reversed(child.jobs))


@cache
def _workers(count: int) -> _Workers:
    return _Workers(count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # its threads stayed with the parent


def _chosen() -> _Workers | None:
    """None where code is to be generated in this process."""
    chosen = flags.workers()
    count = min(available_cores(), _MOST) if chosen is None else chosen
    return _workers(count) if count and sys.executable else None


def start() -> None:
    """Have processes ready for the work to come: they load LLVM while this one reads the model."""
    if workers := _chosen():
        workers.start()


def host_features() -> Features:
    """The machine this process runs on, with LLVM's name of its core. Raises CompileError where it is no target."""
    machine = host()
    if machine.arch not in _ARCHS:
        raise CompileError("CPU target", expected=f"one of {sorted(_ARCHS)}", got=machine.arch)
    workers = _chosen()
    if workers is None:
        from ingot.targets.cpu.codegen import core_name

        return replace(machine, cpu=core_name())
    return replace(machine, cpu=workers.core_name())


def submit(text: str, features: Features, assembly: bool = False) -> Future[bytes]:
    """One module of LLVM IR text -> the bytes of a relocatable ELF object, or of assembly text.

    The future raises CompileError for IR that LLVM refuses, and where no process could do it.
    """
    workers = _chosen()
    job = _Job(text, features, assembly)
    if workers is not None:
        workers.submit(job)
        return job.future
    from ingot.targets.cpu.codegen import emit

    try:
        job.future.set_result(emit(text, features, assembly))
    except CompileError as error:
        job.future.set_exception(error)
    return job.future
