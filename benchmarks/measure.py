"""Torch-free helpers of the side-by-side runs: agreement, memory, medians, the machine's own limits."""

import ctypes
import math
import os
import platform
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def deviation(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference over the expected output's largest magnitude; inf on a wrong shape or a NaN."""
    if got.shape != expected.shape or not np.isfinite(got).all():
        return math.inf
    if expected.size == 0:
        return 0.0
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(got.astype(np.float64) - expected.astype(np.float64)).max()) / scale


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values)) if values else math.nan


def peak_rss() -> int:
    """Bytes of this process's largest resident set so far.

    VmHWM, not getrusage: the latter keeps the parent's peak across exec.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # POSIX only, as is this fallback

    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def cpu_name() -> str:
    """The processor's name with its family and model, as virtual machines often hide the product."""
    fields: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    for line in info.read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return f"{fields.get('model name', '?')} (family {fields.get('cpu family', '?')} model {fields.get('model', '?')})"


def _jiffies(path: Path, first: int, last: int) -> int:
    return sum(int(field) for field in path.read_text().rsplit(")", 1)[-1].split()[first:last])


class OtherLoad:
    """How many cores everything but the given processes (and this one) kept busy since construction. Linux only.

    A figure taken while this is far from 0 says little: engines that synchronize often collapse beside a neighbour.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = (os.getpid(), *pids)
        self.started = time.perf_counter()
        self.others = self._others()

    def _others(self) -> float:
        """Seconds of user, nice, system, interrupt time and of time stolen by the host, less the processes' own."""
        if not Path("/proc/stat").exists():
            return math.nan
        fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(fields) - fields[3] - fields[4]  # idle, iowait
        own = 0
        for pid in self.pids:
            stat = Path(f"/proc/{pid}/stat")
            if stat.exists():
                own += _jiffies(stat, 11, 13)  # utime, stime: fields 14 and 15, counted after the command's name
        return (busy - own) / os.sysconf("SC_CLK_TCK")

    def cores(self) -> float:
        return max(0.0, (self._others() - self.others) / (time.perf_counter() - self.started))


_FMA_LOOP = """
define void @fma(ptr %out, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{body}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
declare <{w} x float> @llvm.fma.v{w}f32(<{w} x float>, <{w} x float>, <{w} x float>)
"""


def _fma_source(width: int, chains: int) -> str:
    vector = f"<{width} x float>"
    half = f"<{', '.join(['float 0.5'] * width)}>"
    start = f"<{', '.join(['float 1.0'] * width)}>"
    names = range(chains)
    return _FMA_LOOP.format(
        w=width,
        phis="\n".join(f"  %a{k} = phi {vector} [ {start}, %entry ], [ %b{k}, %loop ]" for k in names),
        body="\n".join(
            f"  %b{k} = call {vector} @llvm.fma.v{width}f32({vector} %a{k}, {vector} {half}, {vector} {half})"
            for k in names
        ),
        stores="\n".join(
            f"  %p{k} = getelementptr {vector}, ptr %out, i64 {k}\n  store {vector} %b{k}, ptr %p{k}, align 4"
            for k in names
        ),
    )


def fma_peak(threads: int, seconds: float = 0.4) -> float:
    """Measured float32 FMA peak in FLOP/s of `threads` threads: independent chains in registers, no memory."""
    import llvmlite.binding as llvm  # the one place that needs a code generator

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    width = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
    chains = 24 if width == 16 else 12
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3)
    module = llvm.parse_assembly(_fma_source(width, chains))
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("fma"))
    outputs = [np.zeros(chains * width, np.float32) for _ in range(threads)]
    count = 2_000_000

    def work(rank: int, repeats: int) -> None:
        for _ in range(repeats):
            function(outputs[rank].ctypes.data, count)

    best = 0.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        team = [threading.Thread(target=work, args=(rank, 2)) for rank in range(threads)]
        started = time.perf_counter()
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        best = max(best, threads * 2 * count * chains * width * 2 / (time.perf_counter() - started))
    return best


def stream_bandwidth(threads: int, megabytes: int = 128, repeats: int = 5) -> float:
    """Measured copy bandwidth in bytes/s (read + written) over arrays far larger than the caches."""
    count = megabytes * 2**20 // 4 // threads
    pairs = [(np.ones(count, np.float32), np.zeros(count, np.float32)) for _ in range(threads)]
    best = 0.0
    for _ in range(repeats):
        team = [threading.Thread(target=np.copyto, args=(target, source)) for source, target in pairs]
        started = time.perf_counter()
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        best = max(best, threads * count * 8 / (time.perf_counter() - started))
    return best


def machine(threads: int) -> dict[str, str | int | float]:
    """What a table of timings must say about where it came from."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "fma_gflops": fma_peak(threads) / 1e9,
        "copy_gb_s": stream_bandwidth(threads) / 1e9,
    }
