"""A GPU's session: stages that hang are killed with what they started, and a session goes on where it was cut off."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from benchmarks.gpu.run import Stage, run, stages

HANGS = "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True); time.sleep(60)"  # fmt: skip # noqa: E501


def printing_stage(name: str, text: str, *, single: bool = True) -> Stage:
    return Stage(name, ("-c", f"print({text!r})"), 30, single)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def test_stages_end_or_are_ended(tmp_path: Path) -> None:
    chosen = [
        printing_stage("first", "right", single=False),
        Stage("hangs", ("-c", HANGS), 1.5),
        printing_stage("last one", "fast"),
    ]
    rows = run(chosen, tmp_path, 1.0)
    assert [(row["stage"], row["ended"]) for row in rows] == [
        ("first", "exit 0"), ("hangs", "killed behind its limit"), ("last one", "exit 0"),
    ]  # fmt: skip
    assert json.loads((tmp_path / "report.json").read_text()) == rows
    ((child,),) = [row["log"] for row in rows if row["stage"] == "hangs"]  # type: ignore[misc]
    until = time.monotonic() + 5
    while alive(int(child)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(int(child)) and os.getpid()
    (tmp_path / "last_one.log").unlink()
    second_run = run(chosen, tmp_path, 1.0)
    assert [row["stage"] for row in second_run[3:]] == ["last one"], "what has a log is not run again"
    assert run([printing_stage("late", "x")], tmp_path, 0.0) == second_run


def test_stages_have_names_of_their_own() -> None:
    names = [stage.name for stage in stages()]
    assert len(set(names)) == len(names) and names[:2] == ["compile", "conformance"]
