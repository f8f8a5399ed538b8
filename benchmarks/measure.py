"""Torch-free helpers of the side-by-side runs: agreement, memory, medians, the machine's own limits."""

import math
import os
import platform
import statistics
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
                behind = stat.read_text().rsplit(")", 1)[-1].split()  # what follows the command's name
                own += int(behind[11]) + int(behind[12])  # utime and stime: fields 14 and 15
        return (busy - own) / os.sysconf("SC_CLK_TCK")

    def cores(self) -> float:
        return max(0.0, (self._others() - self.others) / (time.perf_counter() - self.started))
