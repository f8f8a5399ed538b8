"""The main loop of a `Pool`'s process: requests from stdin, results to stdout, until stdin ends."""

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
    """Answer requests from stdin on stdout until stdin ends, then exit the process. A CompileError of `answer` is sent
    as the request's error."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # stray prints must not corrupt the answers
    with suppress(BrokenPipeError):  # the parent has exited
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
    """Read requests while the compiler works, so that the sender need not wait."""
    while (request := receive(source)) is not None:
        requests.put(request)
    requests.put(None)
