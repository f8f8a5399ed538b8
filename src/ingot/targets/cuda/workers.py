"""Processes that run Triton, so that a pass of it that hangs or aborts costs one kernel and its memory is not ours.

    submit(source, arch) -> Future     a thread for each process, which takes one job at a time
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from ingot.support import flags
from ingot.support.cubins import KernelCode
from ingot.support.errors import CompileError
from ingot.support.native import available_cores
from ingot.targets.cuda.triton import Source
from ingot.targets.frames import receive, send

SECONDS = 120.0  # for a kernel: the longest that was seen took 3
_MOST = 16
_BOOT = """
import sys, types
package = sys.modules["ingot"] = types.ModuleType("ingot")
package.__path__ = [sys.argv[1]]
from ingot.targets.cuda.worker import main
main()
"""


class _Child:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_DISABLE_LINE_INFO": "1"},
            process_group=0,  # an interrupt from the keyboard is not for it
        )

    def ask(self, header: bytes, text: bytes) -> tuple[bytes, bytes] | None:
        """The answer; None where the process died, or took too long and was killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        watchdog = threading.Timer(SECONDS, self.process.kill)
        watchdog.start()
        try:
            with suppress(OSError):
                send(self.process.stdin, header, text)
            return receive(self.process.stdout)
        finally:
            watchdog.cancel()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class _Workers:
    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "ingot triton")
        self._own = threading.local()
        self._children: set[_Child] = set()
        atexit.register(self.kill)

    def submit(self, header: bytes, source: Source) -> Future[KernelCode]:
        return self._pool.submit(self._compile, header, source)

    def kill(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in tuple(self._children):
            child.kill()

    def _compile(self, header: bytes, source: Source) -> KernelCode:
        child: _Child | None = getattr(self._own, "child", None)
        if child is None:
            child = self._own.child = _Child()
            self._children.add(child)
        answer = child.ask(header, source.text.encode())
        if answer is None:
            self._children.discard(child)
            child.kill()
            self._own.child = None
            got = f"its process ended with {child.process.returncode}, or was killed after {SECONDS:.0f} s"
            raise CompileError(f"kernel {source.name}", expected="a cubin from Triton", got=got)
        data, error = answer
        if error:
            raise CompileError(f"kernel {source.name}: {error.decode()}")
        return KernelCode.of_record(data)


@cache
def _workers(count: int) -> _Workers:
    return _Workers(count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # its threads stayed with the parent


def submit(source: Source, capability: int) -> Future[KernelCode]:
    """Begin to compile a kernel for a compute capability. The future raises CompileError with Triton's words."""
    chosen = flags.workers()
    count = min(available_cores(), _MOST) if chosen is None else max(chosen, 1)
    header = json.dumps([source.name, source.parameters, source.hints, capability]).encode()
    return _workers(count).submit(header, source)


__all__ = ["submit"]
