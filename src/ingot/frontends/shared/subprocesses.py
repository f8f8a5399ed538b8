"""Reading a file in a separate Python process: another project's reader may crash, or run code from the file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ingot.support.errors import ImportModelError, LimitError
from ingot.support.limits import seconds_left


def run_in_subprocess(
    code: str, arguments: Sequence[str], what: str, where: str, *, stdin: bytes = b"", env: Mapping[str, str] = {}
) -> bytes:
    """stdout of `code`, run with this process's import path and with `stdin` as its input.

    Raises LimitError where the compile's time is up, ImportModelError with the last line of stderr where it fails.
    """
    source_root = str(Path(__file__).parents[3])
    environment = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(filter(None, [source_root, *sys.path]))}
    # -P: never import from the working folder
    command = [sys.executable, "-P", "-c", code, *arguments]
    seconds = seconds_left()
    try:
        completed = subprocess.run(
            command, env=environment, input=stdin, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise LimitError("seconds", seconds, f"{what}: reading it takes too long", where=where or None) from e
    if completed.returncode:
        messages = completed.stderr.decode(errors="replace").strip().splitlines()
        ended = "its reader crashed" if completed.returncode < 0 else f"its reader ended with {completed.returncode}"
        last = messages[-1][:2000] if messages and completed.returncode > 0 else ended
        raise ImportModelError(f"{what}: {last}", where=where or None)
    return completed.stdout


def limit_resources(seconds: int, memory: int, file_bytes: int | None = None) -> None:
    """Limit this process: seconds of processor time, bytes of address space, bytes of a file that it writes."""
    import resource

    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: file_bytes}
    for what, limit in limits.items():
        _, hard = resource.getrlimit(what)
        if limit is not None:
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)  # none may be raised
            resource.setrlimit(what, (limit, limit))
