"""Models that are judged one after another on a GPU, each in a process of its own with a limit of time."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1.5e-2}
Judge = Callable[[str, str, str], dict[str, Any]]  # of a model's name, a type, a target: a row


def deviations(got: Any, want: Any) -> list[float]:
    """Of each tensor of a result, of the largest magnitude; infinite where it is not finite.

    Raises:
        ValueError: the shapes differ, or a wanted tensor proves nothing as it is not finite or constant.
    """
    found: list[float] = []
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True):
        if a.shape != b.shape or not b.isfinite().all() or b.double().std().item() == 0:
            raise ValueError(f"{tuple(a.shape)} for {tuple(b.shape)}, or not finite, or constant")
        found.append(((a.double() - b.double()).abs().max() / b.double().abs().max()).nan_to_num(float("inf")).item())
    return found


def agrees(row: dict[str, Any], dtype: str) -> bool:
    """Within the type's rounding, or, where the network magnifies it, about as near to the wider type as eager is."""
    return "deviation" in row and row["deviation"] <= max(TOLERANCE[dtype], 1.25 * row["eager"])


def session(
    module: str, description: str | None, judge: Judge, everyone: Sequence[str], *, dtype: str, seconds: int
) -> int:
    """The command line of `module`: judge some of the models or every one. dtype: where none is asked for; seconds: of
    each. Returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--dtype", default=dtype, choices=list(TOLERANCE))
    parser.add_argument("--only", default="")
    parser.add_argument("--one", default="")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(judge(asked.one, asked.dtype, asked.target)))
        return 0
    names = [n for n in asked.only.split(",") if n] or everyone
    options = ["--dtype", asked.dtype, "--target", asked.target]
    rows, failed = [], 0
    with ThreadPoolExecutor(asked.workers) as pool:
        # as they end, so that a run that is cut off tells what it found
        for job in as_completed(pool.submit(_in_process, module, name, options, seconds) for name in names):
            row = _proven(job.result(), asked.dtype)
            rows.append(row)
            wrong = not agrees(row, asked.dtype)
            failed += wrong
            text = row.get("failed") or f"{row['deviation']:.1e} (eager {row['eager']:.1e}) {row['compile_s']:.1f} s"
            print(f"{'FAILED' if wrong else 'ok':6} {row['model']:24} {text}", flush=True)
    print(f"{len(rows) - failed} of {len(rows)} agree")
    if asked.report:
        asked.report.write_text(json.dumps(rows))
    return int(bool(failed))


def _proven(row: dict[str, Any], dtype: str) -> dict[str, Any]:
    if math.isinf(row.get("eager", 0.0)):
        return {"model": row["model"], "failed": f"eager overflows in {dtype}, so nothing is proven"}
    return row


def _in_process(module: str, name: str, options: Sequence[str], seconds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", module, "--one", name, *options]
    env = {**os.environ, "INGOT_WORKERS": "2"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "failed": f"longer than {seconds} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"model": name, "failed": " ".join(done.stderr.split())[-500:]}
    return json.loads(lines[-1])
