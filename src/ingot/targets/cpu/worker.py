"""The process that `workers` starts: requests in on stdin, machine code out on stdout, until stdin ends."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import IO

from ingot.support.errors import CompileError
from ingot.support.native import Features
from ingot.targets.cpu.codegen import core_name, emit
from ingot.targets.frames import receive, send


def _read(source: IO[bytes], requests: SimpleQueue[tuple[bytes, ...] | None]) -> None:
    """Takes requests in while LLVM is at work, so that whoever sends them need not wait."""
    while (request := receive(source)) is not None:
        requests.put(request)
    requests.put(None)


def _serve(sink: IO[bytes]) -> None:
    requests: SimpleQueue[tuple[bytes, ...] | None] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    send(sink, core_name().encode(), b"")
    while (request := requests.get()) is not None:
        header, text = request
        arch, features, cpu, assembly = json.loads(header)
        try:
            data, error = emit(text.decode(), Features(arch, tuple(features), cpu), assembly), ""
        except CompileError as e:
            data, error = b"", str(e)
        send(sink, data, error.encode())


def main() -> None:
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by mistake is no answer
    with suppress(BrokenPipeError):  # whoever asked has gone
        _serve(sink)
    os._exit(0)
