"""Processes that run a compiler, so that code is made on all cores, and what the compiler takes, leaks or breaks is not
this process's.

    submit(job) -> its future     one queue of jobs     a thread here for each process there, at most `count` of them

A process takes further jobs in while it works on the first: it never waits for a Python that is busy lowering the next
kernel. Processes come with the work and go when there has been none for a while. `serve` is their side.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.targets.frames import receive, send

# The package without its own __init__, which imports the runtime and numpy: 60 ms instead of 140, and 16 MB less.
_BOOT = """
import sys, types
from importlib import import_module
package = sys.modules["ingot"] = types.ModuleType("ingot")
package.__path__ = [sys.argv[1]]
import_module(sys.argv[2]).main()
"""


@dataclass(frozen=True)
class Compiler:
    """What the processes run, and how they are used.

    module: whose `main` is the process. unavailable: the error where no process starts, for a reason. environment: of
    the process, besides this one's. ahead: jobs that a process has at once. waiting: jobs that may wait before another
    process starts for them. tries: how many processes a job may take with it. seconds: that a job may take before its
    process is killed. idle: seconds without work until processes go.
    """

    module: str
    unavailable: Callable[[str], CompileError]
    environment: Mapping[str, str] = field(default_factory=dict)
    ahead: int = 1
    waiting: int = 0
    tries: int = 1
    seconds: float | None = None
    idle: float = 5.0


class Job:
    """A text on its way to becoming code. lost: the error where its processes died, by the last one's exit code."""

    def __init__(self, header: bytes, text: bytes, lost: Callable[[int], CompileError]) -> None:
        self.header, self.text, self.lost = header, text, lost
        self.deaths = 0
        self.future: Future[bytes] = Future()


class _Child:
    """A process and the jobs that are there, which it answers in order."""

    def __init__(self, compiler: Compiler) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parents[1]), compiler.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **compiler.environment},
            process_group=0,  # an interrupt from the keyboard is not for it
        )
        self.jobs: deque[Job] = deque()

    def greeting(self) -> str | None:
        """What the process says when it is ready; None if it could not start."""
        assert self.process.stdout is not None
        message = receive(self.process.stdout)
        return None if message is None else message[0].decode()

    def begin(self, job: Job) -> None:
        assert self.process.stdin is not None
        self.jobs.append(job)
        with suppress(OSError):  # if it has died, `finish` finds no answer
            send(self.process.stdin, job.header, job.text)

    def finish(self, seconds: float | None) -> bool:
        """Wait for the answer to the oldest job, and at most so long; whether there was one."""
        assert self.process.stdout is not None
        watchdog = None if seconds is None else threading.Timer(seconds, self.process.kill)
        if watchdog is not None:
            watchdog.start()
        try:
            answer = receive(self.process.stdout)
        finally:
            if watchdog is not None:
                watchdog.cancel()
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


class Pool:
    """At most `count` processes."""

    def __init__(self, compiler: Compiler, count: int) -> None:
        self._compiler, self._count = compiler, count
        self._greeting: Future[str] = Future()
        self._jobs: deque[Job] = deque()
        self._change = threading.Condition()
        self._children: set[_Child] = set()
        self._threads = self._idle = 0
        atexit.register(self.kill)

    def start(self, count: int | None = None) -> None:
        """Have so many processes ready for the work to come; None: all."""
        most = self._count if count is None else min(count, self._count)
        with self._change:
            if self._greeting.done() and self._greeting.exception():
                self._greeting = Future()
            while self._threads < most and self._grow():
                pass

    def greeting(self) -> str:
        """What the first process said when it was ready."""
        if not self._greeting.done() or self._greeting.exception():
            self.start(1)
        return self._greeting.result()

    def submit(self, job: Job) -> None:
        with self._change:
            self._jobs.append(job)
            if self._idle:
                self._change.notify()
            spare = self._idle + self._compiler.waiting if self._threads else 0
            if len(self._jobs) > spare and self._threads < self._count:
                self._grow()

    def kill(self) -> None:
        """Leave nothing behind when the interpreter ends."""
        for child in tuple(self._children):
            child.process.kill()
            child.process.wait()

    def _grow(self) -> bool:
        try:
            threading.Thread(target=self._serve, name=self._compiler.module, daemon=True).start()
        except RuntimeError as error:
            if self._threads:
                return False
            raise self._compiler.unavailable(str(error)) from error
        self._threads += 1
        return True

    def _serve(self) -> None:
        child = self._child()
        while child is not None and ((job := self._take(wait=not child.jobs)) or child.jobs):
            if job is not None:
                child.begin(job)
                if len(child.jobs) < self._compiler.ahead:
                    continue
            if not child.finish(self._compiler.seconds):
                self._again(child)
                child = self._child()
        if child is not None:
            self._children.discard(child)
            child.end()

    def _child(self) -> _Child | None:
        """A new process that has said hello. Where none starts, the thread ends, and the last one tells who waits."""
        try:
            child = _Child(self._compiler)
        except OSError as error:
            return self._give_up(str(error))
        self._children.add(child)
        said = child.greeting()
        if said is None:
            self._children.discard(child)
            return self._give_up(f"exit code {child.end()}; its message is on stderr")
        with self._change:
            if not self._greeting.done():
                self._greeting.set_result(said)
        return child

    def _give_up(self, reason: str) -> None:
        with self._change:
            self._threads -= 1
            if self._threads:
                return
            waiting = [self._greeting, *(job.future for job in self._jobs)]
            self._jobs.clear()
            for future in waiting:
                if not future.done():
                    future.set_exception(self._compiler.unavailable(reason))

    def _take(self, wait: bool) -> Job | None:
        """The next job. None: there is none now or, after waiting, none at all, and the thread ends."""
        with self._change:
            if wait and not self._jobs:
                self._idle += 1
                self._change.wait_for(lambda: self._jobs, self._compiler.idle)
                self._idle -= 1
                self._threads -= not self._jobs
            return self._jobs.popleft() if self._jobs else None

    def _again(self, child: _Child) -> None:
        """Put a dead process's jobs back. The first is what it died of, and may have had its last try."""
        self._children.discard(child)
        code = child.end()
        first = child.jobs[0]
        first.deaths += 1
        if first.deaths >= self._compiler.tries:
            child.jobs.popleft().future.set_exception(first.lost(code))
        with self._change:
            self._jobs.extendleft(reversed(child.jobs))
