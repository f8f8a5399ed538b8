from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.support.errors import CompileError
from ingot.targets import pool as processes
from ingot.targets.cpu import workers
from ingot.targets.cpu.codegen import emit
from ingot.targets.cpu.workers import LLVM, host_features, submit
from ingot.targets.pool import Pool

HOST = host_features()


def module(number: int, lines: int = 1) -> str:
    body = "\n".join(f"  %v{i + 1} = add i64 %v{i}, {number}" for i in range(lines))
    return f"define i64 @f{number}(i64 %v0) {{\n{body}\n  ret i64 %v{lines}\n}}"


@pytest.fixture
def pool() -> Iterator[Pool]:
    llvm_pool = Pool(LLVM, 2)
    yield llvm_pool
    llvm_pool.kill()


def begin(pool: Pool, text: str) -> Future[bytes]:
    job = workers.compile_job(text, HOST)
    pool.submit(job)
    return job.future


def alive(pool: Pool) -> list[int]:
    return [c.process.pid for c in pool._children if c.process.poll() is None]


def until(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_code_is_the_same_wherever_it_is_generated(monkeypatch: pytest.MonkeyPatch):
    local_code = emit(module(3), HOST)
    assert submit(module(3), HOST).result() == local_code
    monkeypatch.setenv("INGOT_WORKERS", "0")
    assert submit(module(3), HOST).result() == local_code
    assert host_features() == HOST
    assert b"f3:" in submit(module(3), HOST, assembly=True).result()


@pytest.mark.parametrize("count", ["", "0"])
def test_what_llvm_refuses_fails_alone(monkeypatch: pytest.MonkeyPatch, count: str):
    monkeypatch.setenv("INGOT_WORKERS", count)
    results = [submit(text, HOST) for text in (module(1), "define i64 @g() { ret i32 0 }", module(2))]
    assert results[0].result() and results[2].result()
    with pytest.raises(CompileError, match="LLVM refuses"):
        results[1].result()


def test_many_jobs_of_all_sizes(pool: Pool):
    # texts and objects larger than a pipe holds, both ways at once
    results = {i: begin(pool, module(i, 1 + (i % 4) * 4000)) for i in range(12)}
    assert all(f.result() == emit(module(i, 1 + (i % 4) * 4000), HOST) for i, f in results.items())
    until(lambda: len(alive(pool)) == 2)  # the second may start more slowly than the first works


def test_a_killed_process_is_replaced(pool: Pool):
    pool.start()
    assert pool.greeting() == HOST.cpu
    until(lambda: len(alive(pool)) == 2)
    results = [begin(pool, module(i, 3000)) for i in range(6)]
    for pid in alive(pool):
        os.kill(pid, signal.SIGKILL)
    assert all(f.result() == emit(module(i, 3000), HOST) for i, f in enumerate(results))


def test_a_job_that_kills_its_process_fails_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    deadly = "import os; import ingot.targets.cpu.codegen as c; real = c.emit\n"
    deadly += "def emit(text, *rest): return os.abort() if 'deadly' in text else real(text, *rest)\nc.emit = emit\n"
    before = "import_module(sys.argv[2])"
    monkeypatch.setattr(processes, "_BOOT", processes._BOOT.replace(before, deadly + before))
    results = [begin(pool, text) for text in (module(1), "; deadly\n" + module(2), module(3), module(4))]
    with pytest.raises(CompileError, match="died twice, with exit code -6"):
        results[1].result()
    assert all(results[i].result() == emit(module(i + 1), HOST) for i in (0, 2, 3))


def test_without_a_process_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    pool = Pool(LLVM, 2)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    for wait in (lambda: begin(pool, module(1)).result(), pool.greeting):
        with pytest.raises(CompileError, match=r"/nowhere/python.*INGOT_WORKERS=0"):
            wait()
    monkeypatch.undo()
    monkeypatch.setattr(processes, "_BOOT", "raise SystemExit(3)")
    with pytest.raises(CompileError, match="exit code 3"):
        pool.greeting()
    monkeypatch.undo()
    assert pool.greeting() == HOST.cpu  # a failure is not remembered
    pool.kill()


def test_a_job_that_takes_too_long_costs_its_process(monkeypatch: pytest.MonkeyPatch):
    slow = "import time; import ingot.targets.cpu.codegen as c; real = c.emit\n"
    slow += "def emit(text, *rest): time.sleep(60 * ('endless' in text)); return real(text, *rest)\nc.emit = emit\n"
    before = "import_module(sys.argv[2])"
    monkeypatch.setattr(processes, "_BOOT", processes._BOOT.replace(before, slow + before))
    pool = Pool(replace(LLVM, timeout_seconds=2.0, max_tries=1), 1)
    results = [begin(pool, text) for text in ("; endless\n" + module(1), module(2))]
    with pytest.raises(CompileError, match="exit code -9"):
        results[0].result()
    assert results[1].result() == emit(module(2), HOST)
    pool.kill()


def test_idle_processes_go_and_come_back():
    pool = Pool(replace(LLVM, idle_seconds=0.05), 2)
    assert begin(pool, module(1)).result()
    until(lambda: not pool._children and not pool._threads)
    assert begin(pool, module(2)).result() == emit(module(2), HOST)
    pool.kill()


CHILD = """
import os, sys
from ingot.targets.cpu import workers
submit = lambda: len(workers.submit("define void @f() {\\n ret void\\n}", workers.host_features()).result())
print(submit() > 0, flush=True)
"""


def run(body: str, expected: int = 0) -> str:
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root / "src"), *sys.path])
    command = [sys.executable, "-c", CHILD + body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (expected, "")
    return done.stdout


def test_after_fork_both_sides_compile():
    stdout = run("""
if (pid := os.fork()) == 0:
    print(submit() > 0, flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(submit() > 0)
""")
    assert stdout == "True\nTrue\nTrue\n"


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_no_process_is_left(end: str):
    pool = "workers._workers()._children"
    stdout = run(f"print(*(c.process.pid for c in {pool}), flush=True)\n{end}", -9 if end else 0)
    pids = [int(pid) for pid in stdout.split()[1:]]
    assert pids
    until(lambda: not any(_is_running(pid) for pid in pids))


def _is_running(pid: int) -> bool:
    try:
        return b"ingot" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
