"""The first step of training and its memory: Ingot beside eager PyTorch and Inductor.

    python benchmarks/training_start.py                    all networks and engines
    python benchmarks/training_start.py mlp --engines ingot,inductor

Each network and engine has a process of its own with empty caches, after one forward and backward pass of eager
PyTorch, whose memory is given back. Told are the processor time of the first step, compiling included; the memory of
the process at its peak until that step is through, and at the peak of three more, both less what it had before; and
beside these the time and the largest memory of the processes that it started (LLVM's, the C++ compiler).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "src")]  # run as a script

from benchmarks.training import NETWORKS, of_ingot, of_torch  # noqa: E402
from ingot.integrations.torch_compile import ingot_backend  # noqa: E402
from ingot.support.garbage import give_back  # noqa: E402

ENGINES = {"backend": ingot_backend, "eager": None, "inductor": "inductor"}  # of torch.compile
_TICK = os.sysconf("SC_CLK_TCK")


def memory(process: str, field: str) -> int:
    """Bytes of a field of /proc/*/status; 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), 0)


def running(process: str) -> list[str]:
    """The processes that one started, and those that these started."""
    try:
        found = [c for task in Path(f"/proc/{process}/task").iterdir() for c in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return []
    return found + [d for c in found for d in running(c)]


def seconds_of(process: str) -> float:
    """Processor time of a running process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK


def measured(name: str, engine: str, threads: int) -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    net, x = NETWORKS[name]()
    net.train()
    out = copy.deepcopy(net)(x)
    out.sum().backward()
    y = torch.randint(0, out.shape[1], (out.shape[0], *out.shape[2:]))
    del out
    give_back()  # else what this pass has freed would hide as much of what an engine asks for
    before, began = memory("self", "VmRSS"), resource.getrusage(resource.RUSAGE_SELF)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    step = of_ingot(net, x, y, threads) if engine == "ingot" else of_torch(net, x, y, ENGINES[engine])
    step()
    ended, first = resource.getrusage(resource.RUSAGE_SELF), memory("self", "VmHWM")
    others, gone = running("self"), resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "seconds": ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime,
        "others_seconds": gone.ru_utime + gone.ru_stime + sum(map(seconds_of, others)),
        "first_mb": (first - before) / 1e6,
        "others_mb": max(gone.ru_maxrss * 1024, *(memory(c, "VmHWM") for c in others), 0) / 1e6,
    }
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        step()
    return found | {"steps_mb": (memory("self", "VmHWM") - before) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], help="by default all")
    parser.add_argument("--engines", default="ingot,backend,eager,inductor")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="in this process, which has measured nothing yet")
    asked = parser.parse_args()
    names, engines = asked.networks or list(NETWORKS), asked.engines.split(",")
    if asked.alone:
        print(json.dumps(measured(names[0], engines[0], asked.threads)))
        return
    print(f"{'network':12} {'engine':9} first step, s  others, s  its peak, MB  steps' peak, MB  others' largest, MB")
    for name in names:
        for engine in engines:
            with tempfile.TemporaryDirectory() as empty:
                few = {"OMP_NUM_THREADS": str(asked.threads), "TORCHINDUCTOR_COMPILE_THREADS": str(asked.threads)}
                env = os.environ | few | {"INGOT_CACHE_DIR": empty, "TORCHINDUCTOR_CACHE_DIR": empty}
                options = [name, "--engines", engine, "--threads", str(asked.threads), "--alone"]
                command = [sys.executable, str(Path(__file__).resolve()), *options]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=True)
            it = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{name:12} {engine:9} {it['seconds']:13.2f} {it['others_seconds']:10.2f} {it['first_mb']:13.0f} "
                f"{it['steps_mb']:16.0f} {it['others_mb']:19.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
