"""Runs architectures, each in a process of its own: a crash or a hang costs one."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 300
Row = dict[str, Any]


def results(wanted: Sequence[tuple[str, str]], jobs: int, interpreted: bool = False) -> Iterator[Row]:
    """A row for each (name, mode), in the order in which they end."""
    context = multiprocessing.get_context("forkserver")
    # imported once, for all
    context.set_forkserver_preload(["benchmarks.architectures.preloaded"])
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(_isolated, context, *w, interpreted) for w in wanted]):
            yield future.result()


def _isolated(context: Any, name: str, mode: str, interpreted: bool) -> Row:
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(there, name, mode, interpreted), daemon=True)
    start = time.monotonic()
    process.start()
    there.close()
    try:
        result, detail = here.recv() if here.poll(SECONDS) else ("late", f"longer than {SECONDS} s")
    except EOFError:
        process.join(10)
        result, detail = "crash", f"exit code {process.exitcode}"
    if process.is_alive():
        process.terminate()
    process.join()
    return {
        "name": name,
        "mode": mode,
        "result": result,
        "detail": detail,
        "seconds": round(time.monotonic() - start, 1),
    }


def _run(out: Connection, name: str, mode: str, interpreted: bool) -> None:
    out.send(_judged(name, mode, interpreted))
    out.close()


def _judged(name: str, mode: str, interpreted: bool) -> tuple[str, str]:
    """(agrees | differs | refused | error | absent, the error or the reason)."""
    import torch

    from benchmarks.architectures import CASES, TOLERANCE, check

    torch.set_num_threads(1)
    (case,) = (c for c in CASES if c.name == name)
    try:
        error = check(case, dynamic=mode == "dynamic", interpreted=interpreted)
    except ModuleNotFoundError as e:
        return "absent", str(e)
    except Exception as e:
        refused = type(e).__module__.startswith("ingot")
        return "refused" if refused else "error", f"{type(e).__name__}: {' '.join(str(e).split())[:400]}"
    return "agrees" if error <= TOLERANCE else "differs", f"{error:.1e}"
