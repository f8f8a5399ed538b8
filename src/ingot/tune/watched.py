"""A process that measures, under a watchdog: it is killed if it hangs, its death is reported, and the next request
starts a new one. Requests and answers are lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ingot.support.errors import DeviceError

TIMEOUT_SECONDS = 30.0  # for a request: loading a large model takes a few
_SECONDS_TO_END = 5.0  # for a process that has stopped answering to end, so that its exit code says why


class Watched:
    """One process at a time, which runs `module`. what: a description of its work, for messages."""

    def __init__(self, module: str, seconds: float = TIMEOUT_SECONDS, what: str = "a measurement on the GPU") -> None:
        self._module, self._seconds, self._what = module, seconds, what
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises DeviceError with what the process said, or how it ended."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        timed_out = threading.Event()

        def kill() -> None:
            timed_out.set()
            process.kill()

        watchdog = threading.Timer(self._seconds, kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it has died before it read the request
            line = b""
        finally:
            watchdog.cancel()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "error" in answer or not line:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            code = self.close()
            ending = f"killed after {self._seconds:.0f} s" if timed_out.is_set() else f"ended with {code}"
            raise DeviceError(self._what, got=answer.get("error", f"its process was {ending}"))
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            [sys.executable, "-m", self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path}, process_group=0,
        )  # fmt: skip

    def close(self) -> int | None:
        """End the process; how it ended."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None and process.stdout is not None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()
        return process.wait()


__all__ = ["Watched"]
