"""The loop of a process that answers requests: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from ingot.support.errors import IngotError


def answer_lines(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests of standard input, a line each, until one fails: {"error": why} is the last answer."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by mistake is no answer
    for line in sys.stdin.buffer:
        try:
            reply = answer(json.loads(line))
        except (IngotError, MemoryError) as e:
            reply = {"error": str(e)}
        sink.write(json.dumps(reply).encode() + b"\n")
        sink.flush()
        if "error" in reply:
            os._exit(1)
