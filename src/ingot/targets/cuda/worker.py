"""The process that `workers` starts: kernels in on stdin, cubins out on stdout, until stdin ends."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import IO

from ingot.targets.cuda.codegen import compile_kernel
from ingot.targets.cuda.triton import Source
from ingot.targets.frames import receive, send


def _serve(sink: IO[bytes]) -> None:
    while (request := receive(sys.stdin.buffer)) is not None:
        header, text = request
        name, parameters, hints, capability = json.loads(header)
        source = Source(name, text.decode(), tuple(map(tuple, parameters)), tuple(map(tuple, hints)))
        try:
            data, error = compile_kernel(source, capability).record(), b""
        except Exception as e:  # Triton's own kinds are many; whoever asked is told
            data, error = b"", f"{type(e).__name__}: {e}".encode()
        send(sink, data, error)


def main() -> None:
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by mistake is no answer
    with suppress(BrokenPipeError):  # whoever asked has gone
        _serve(sink)
    os._exit(0)
