"""Callers at once: in threads, and Python programs in processes of their own, which may hang or crash."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np

from ingot.runtime.executor import CompiledModel
from tests.runtime import models


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """work(0), work(1), ... at once, until all are done."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wrong_calls(moving: Sequence[CompiledModel], calls: int) -> list[str]:
    """What six callers of `models.dynamic()` programs, in turns and at many sizes, got that was wrong."""
    wrong: list[str] = []

    def call(number: int) -> None:
        rng = np.random.default_rng(number)
        for i in range(calls):
            n = int(rng.integers(0, 3000))
            x, z = rng.standard_normal((2, n)).astype(np.float32)
            y, d = moving[(number + i) % len(moving)](x, z)  # type: ignore[misc]
            if not (np.array_equal(y, x + z + np.float32(1) + np.float32(1)) and np.array_equal(d, x + x)):
                wrong.append(f"{number} {i} {n}")

    in_threads(6, call)
    return wrong


def run(body: str, timeout: float = 60.0) -> str:
    """What the program prints, which has the runtime, x and what `models.static()` makes of it."""
    setup = (
        "import os, sys, threading, time\n"
        "import numpy as np\n"
        "from ingot.runtime.executor import CompiledModel\n"
        "from tests.runtime import models\n"
        "x = np.ones(1000, np.float32)\n"
        "want = (x + np.arange(1000, dtype=np.float32)) * 8\n"
    )
    command = [sys.executable, "-c", setup + body]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=models.environment())
    assert result.returncode == 0, result.stderr
    return result.stdout
