"""The report of Vela, Arm's compiler for Ethos-U NPUs, on a TFLite file: memory, estimated time, operators on the
CPU."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError, InputError

_CPU_OPERATOR = re.compile(r"^Warning \(supported operators\) operator: (\S+), ofm: '([^\n]*)'\nReason: ([^\n]*)", re.M)
_COUNT = re.compile(r"^(CPU|NPU) operators = (\d+)", re.M)
_TIMEOUT_SECONDS = 600  # to wait for it


@dataclass(frozen=True)
class NpuReport:
    """npu_operators, cpu_operators: counts of Vela's own operators. on_cpu: (operator, tensor, reason) of each that the
    NPU does not take. sram_kib, other_kib: memory; the second is flash or DRAM. estimate_ms: Vela's estimate of a call,
    not a measurement."""

    accelerator: str
    npu_operators: int
    cpu_operators: int
    on_cpu: tuple[tuple[str, str, str], ...]
    sram_kib: float
    other_kib: float
    estimate_ms: float


def npu_report(model: Path, accelerator: str) -> NpuReport:
    """Compile a TFLite file for an NPU ("ethos-u55-128") with Vela, in a process of its own.

    Raises InputError where Vela is not installed or has no such accelerator, CompileError where it fails.
    """
    if find_spec("ethosu") is None:
        raise InputError("--npu", expected="the package ethos-u-vela", got="none", fix="pip install ethos-u-vela")
    with TemporaryDirectory() as folder:
        run = "import sys; from ethosu.vela.vela import main; sys.exit(main())"
        command = [sys.executable, "-c", run, "--accelerator-config", accelerator, "--output-dir", folder, str(model)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise CompileError("Vela", expected=f"an end within {_TIMEOUT_SECONDS} s", got="none") from error
        if done.returncode:
            what = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            error = InputError if "invalid choice" in done.stderr else CompileError
            raise error("Vela", expected=f"a program for {accelerator}", got=what[0] if what else done.returncode)
        (summary,) = Path(folder).glob("*_summary_*.csv")
        with summary.open() as file:
            (row,) = csv.DictReader(file)
    counts = {kind: int(count) for kind, count in _COUNT.findall(done.stdout)}
    other = ("off_chip_flash_memory_used", "on_chip_flash_memory_used", "dram_memory_used")
    return NpuReport(
        accelerator, counts.get("NPU", 0), counts.get("CPU", 0), tuple(_CPU_OPERATOR.findall(done.stdout)),
        float(row["sram_memory_used"]), sum(float(row[name]) for name in other), 1e3 * float(row["inference_time"]),
    )  # fmt: skip
