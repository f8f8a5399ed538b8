"""A pool of compiler processes: they use all cores, and a crash or memory leak of the compiler stays outside this
process.

    submit(job) -> its future     one queue of jobs     one thread here for each process, at most `count` of them

A process reads further jobs while it works on the first, so it never waits for a Python that is busy lowering the next
kernel. Processes start on demand and exit when idle for a while. They run `serve`.
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

# Skip the package's own __init__, which imports the runtime and numpy: 60 ms instead of 140, and 16 MB less.
_BOOT = """
import sys, types
from importlib import import_module
package = sys.modules["ingot"] = types.ModuleType("ingot")
package.__path__ = [sys.argv[1]]
import_module(sys.argv[2]).main()
"""


@dataclass(frozen=True)
class Compiler:
    """The program of the processes, and the limits of the pool.

    module: its `main` is the process. unavailable: return the error for a reason why no process starts. environment:
    variables added to the process's environment. max_pending: jobs sent to a process at a time. max_queued: jobs that
    may wait in the queue before another process starts. max_tries: crashes after which a job fails. timeout_seconds: of
    a job, after which its process is killed. idle_seconds: without work, after which a process exits.
    """

    module: str
    unavailable: Callable[[str], CompileError]
    environment: Mapping[str, str] = field(default_factory=dict)
    max_pending: int = 1
    max_queued: int = 0
    max_tries: int = 1
    timeout_seconds: float | None = None
    idle_seconds: float = 5.0


class Job:
    """A text to compile. crash_error: return the error for the exit code of the last process that crashed on it."""

    def __init__(self, header: bytes, text: bytes, crash_error: Callable[[int], CompileError]) -> None:
        self.header, self.text, self.crash_error = header, text, crash_error
        self.crashes = 0
        self.future: Future[bytes] = Future()


class _Child:
    """A process and the jobs sent to it, which it answers in order."""

    def __init__(self, compiler: Compiler) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parents[1]), compiler.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **compiler.environment},
            process_group=0,  # keep keyboard interrupts away from it
        )
        self.jobs: deque[Job] = deque()

    def receive_greeting(self) -> str | None:
        """Wait until the process is ready; return its greeting, None if it could not start."""
        assert self.process.stdout is not None
        message = receive(self.process.stdout)
        return None if message is None else message[0].decode()

    def begin(self, job: Job) -> None:
        assert self.process.stdin is not None
        self.jobs.append(job)
        with suppress(OSError):  # if it has died, `finish` receives no answer
            send(self.process.stdin, job.header, job.text)

    def finish(self, seconds: float | None) -> bool:
        """Wait up to `seconds` for the answer to the oldest job; return whether there was one."""
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
        """Stop the process; return its exit code as `Popen.returncode` does."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError):  # unsent data is not needed
            self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


class Pool:
    """A queue of jobs and at most `count` processes."""

    def __init__(self, compiler: Compiler, count: int) -> None:
        self._compiler, self._max_children = compiler, count
        self._greeting: Future[str] = Future()
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._children: set[_Child] = set()
        self._threads = self._idle_threads = 0
        atexit.register(self.kill)

    def start(self, count: int | None = None) -> None:
        """Start processes until there are `count`; None: as many as allowed."""
        target = self._max_children if count is None else min(count, self._max_children)
        with self._changed:
            if self._greeting.done() and self._greeting.exception():
                self._greeting = Future()
            while self._threads < target and self._grow():
                pass

    def greeting(self) -> str:
        """Return the first process's greeting, starting one if necessary."""
        if not self._greeting.done() or self._greeting.exception():
            self.start(1)
        return self._greeting.result()

    def submit(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            if self._idle_threads:
                self._changed.notify()
            capacity = self._idle_threads + self._compiler.max_queued if self._threads else 0
            if len(self._jobs) > capacity and self._threads < self._max_children:
                self._grow()

    def kill(self) -> None:
        """Kill all processes, at the latest when the interpreter exits."""
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
        child = self._start_child()
        while child is not None and ((job := self._next_job(wait=not child.jobs)) or child.jobs):
            if job is not None:
                child.begin(job)
                if len(child.jobs) < self._compiler.max_pending:
                    continue
            if not child.finish(self._compiler.timeout_seconds):
                self._requeue(child)
                child = self._start_child()
        if child is not None:
            self._children.discard(child)
            child.end()

    def _start_child(self) -> _Child | None:
        """Start a process and wait for its greeting; None if none starts: the thread ends, and the last one fails all
        jobs."""
        try:
            child = _Child(self._compiler)
        except OSError as error:
            return self._give_up(str(error))
        self._children.add(child)
        greeting = child.receive_greeting()
        if greeting is None:
            self._children.discard(child)
            return self._give_up(f"exit code {child.end()}; its message is on stderr")
        with self._changed:
            if not self._greeting.done():
                self._greeting.set_result(greeting)
        return child

    def _give_up(self, reason: str) -> None:
        with self._changed:
            self._threads -= 1
            if self._threads:
                return
            futures = [self._greeting, *(job.future for job in self._jobs)]
            self._jobs.clear()
            for future in futures:
                if not future.done():
                    future.set_exception(self._compiler.unavailable(reason))

    def _next_job(self, wait: bool) -> Job | None:
        """Return the next job, or None. With `wait`, None means that the idle time has passed and the thread ends."""
        with self._changed:
            if wait and not self._jobs:
                self._idle_threads += 1
                self._changed.wait_for(lambda: self._jobs, self._compiler.idle_seconds)
                self._idle_threads -= 1
                self._threads -= not self._jobs
            return self._jobs.popleft() if self._jobs else None

    def _requeue(self, child: _Child) -> None:
        """Requeue a dead process's jobs. It died of the first, which fails if that was its last try."""
        self._children.discard(child)
        exit_code = child.end()
        job = child.jobs[0]
        job.crashes += 1
        if job.crashes >= self._compiler.max_tries:
            child.jobs.popleft().future.set_exception(job.crash_error(exit_code))
        with self._changed:
            self._jobs.extendleft(reversed(child.jobs))
