"""The processes of a `Pool`: requests in on stdin, code out on stdout, until stdin ends."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import IO

from ingot.support.errors import CompileError
from ingot.targets.frames import receive, send


def serve(greeting: Callable[[], bytes], answer: Callable[[bytes, bytes], bytes]) -> None:
    """Answer requests from stdin on stdout until stdin ends, then end the process. What `answer` refuses with a
    CompileError, whoever asked is told."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by mistake is no answer
    with suppress(BrokenPipeError):  # whoever asked has gone
        requests: SimpleQueue[tuple[bytes, bytes] | None] = SimpleQueue()
        threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
        send(sink, greeting(), b"")
        while (request := requests.get()) is not None:
            try:
                data, error = answer(*request), ""
            except CompileError as e:
                data, error = b"", str(e)
            send(sink, data, error.encode())
    os._exit(0)


def _read(source: IO[bytes], requests: SimpleQueue[tuple[bytes, bytes] | None]) -> None:
    """Takes requests in while the compiler is at work, so that whoever sends them need not wait."""
    while (request := receive(source)) is not None:
        requests.put(request)
    requests.put(None)
