"""The energy counters of this machine: RAPL and hwmon under /sys, sensors of boards, NVML of an NVIDIA GPU.

Kernel documentation: admin-guide/powercap and hwmon/sysfs-interface.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ingot.support.dataclass import dataclass
from ingot.support.energy.nvml import Nvml, NvmlError
from ingot.support.errors import DeviceError

SYSFS = Path("/sys")
_POWER_SECONDS = 0.02  # between two readings of a power sensor
_WRAP_SECONDS = 10.0  # of a counter that wraps around: the smallest, of 65 kJ, takes a minute at 1 kW
_BOARD_RAILS = ("VDD_IN", "POM_5V_IN")  # the rail that feeds all others, on NVIDIA's boards
_READ_BYTES = 64


class Counter(ABC):
    """Joules since some point in time. name: the hardware that it measures. sample_seconds: how often it must be read
    so that nothing is lost; None if it need not be."""

    name: str
    sample_seconds: float | None = None

    @abstractmethod
    def joules(self) -> float:
        """Raises DeviceError if the counter can no longer be read."""


class FileCounter(Counter):
    """A file of microjoules, which wraps around to 0 after `limit` microjoules."""

    def __init__(self, name: str, path: Path, limit: int | None) -> None:
        self.name, self._path, self._limit = name, path, limit
        self.sample_seconds = None if limit is None else _WRAP_SECONDS
        self._lock = threading.Lock()
        self._last, self._wrapped = _number(path), 0

    def joules(self) -> float:
        with self._lock:
            value = _read(self.name, self._path)
            if value < self._last:
                if self._limit is None:
                    got = "a reset"
                    raise DeviceError(f"the energy counter of {self.name}", expected="one that counts up", got=got)
                self._wrapped += self._limit
            self._last = value
            return (self._wrapped + value) / 1e6


class PowerSensor(Counter):
    """The integral of a sampled power, by the trapezoidal rule. watts: reads the current power."""

    sample_seconds = _POWER_SECONDS

    def __init__(self, name: str, watts: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self._watts, self._clock = name, watts, clock
        self._lock = threading.Lock()
        self._total, self._last = 0.0, (clock(), watts())

    def joules(self) -> float:
        with self._lock:
            now, watts = self._clock(), self._watts()
            last_time, last_watts = self._last
            self._total += (now - last_time) * (watts + last_watts) / 2
            self._last = now, watts
            return self._total


class GpuCounter(Counter):
    """The counter of an NVIDIA GPU (Volta and later): millijoules, in steps of some 100 ms."""

    def __init__(self, nvml: Nvml, device: int) -> None:
        self.name, self._nvml, self._device = nvml.name(device), nvml, device
        nvml.millijoules(device)  # raises NvmlError on GPUs without a counter

    def joules(self) -> float:
        try:
            return self._nvml.millijoules(self._device) / 1e3
        except NvmlError as error:
            raise DeviceError(f"the energy counter of {self.name}", got=str(error)) from error


@dataclass(frozen=True)
class EnergyCounters:
    """The counters that can be read, and the reasons why others cannot."""

    counters: tuple[Counter, ...]
    reasons: tuple[str, ...]


def find_counters(gpu: str | None = None, sysfs: Path = SYSFS, load_nvml: Callable[[], Nvml] = Nvml) -> EnergyCounters:
    """The counters of the processors, or else the sensors of the board; and the counter of a GPU.

    gpu: its PCI bus id; None: no GPU is used. Nested domains are counted once.
    """
    reasons: list[str] = []
    counters = [*_rapl(sysfs / "class/powercap", reasons)]
    counters = counters or [*_hwmon_energy(sysfs / "class/hwmon", reasons)]
    counters = counters or [*_board(sysfs / "class/hwmon", reasons)]
    if gpu is not None:
        try:
            nvml = load_nvml()
            counters.append(GpuCounter(nvml, nvml.device(gpu)))
        except (OSError, NvmlError) as error:
            reasons.append(f"NVML: {error}")
    return EnergyCounters(tuple(counters), tuple(reasons))


def _rapl(folder: Path, reasons: list[str]) -> Iterator[Counter]:
    """Packages and memory. Cores are parts of packages, and the platform is more than the processor."""
    for zone in sorted(folder.glob("intel-rapl:*")):
        name = _text(zone / "name")
        if not (name.startswith("package") or name == "dram"):
            continue
        try:
            limit = _number(zone / "max_energy_range_uj")
            label = (
                name if name != "dram" else f"dram of {_text(zone.with_name(zone.name.rpartition(':')[0]) / 'name')}"
            )
            yield FileCounter(f"{label} (RAPL)", zone / "energy_uj", limit)
        except (OSError, ValueError) as error:
            reasons.append(_reason(zone / "energy_uj", error))


def _hwmon_energy(folder: Path, reasons: list[str]) -> Iterator[Counter]:
    """Counters such as amd_energy's: those of sockets if there are any, else all."""
    paths = [p for p in sorted(folder.glob("*/energy*_input"))]
    labels = {p: _text(p.with_name(p.name.replace("_input", "_label"))) or p.name for p in paths}
    sockets = [p for p in paths if labels[p].startswith("Esocket")]
    for path in sockets or paths:
        try:
            yield FileCounter(f"{labels[path]} ({_text(path.parent / 'name')})", path, None)
        except (OSError, ValueError) as error:
            reasons.append(_reason(path, error))


def _board(folder: Path, reasons: list[str]) -> Iterator[Counter]:
    """The rails that INA sensors measure: only the one that feeds all others, if there is one."""
    rails: dict[str, Callable[[], float]] = {}
    for chip in sorted(folder.glob("*")):
        if not _text(chip / "name").startswith("ina"):
            continue
        for path in sorted(chip.glob("power*_input")):
            label = _text(path.with_name(path.name.replace("_input", "_label"))) or f"{chip.name}/{path.name}"
            rails[label] = _microwatts(label, path)
        for volts in sorted(chip.glob("in*_input")):
            channel = volts.name[2:].partition("_")[0]
            amperes, label = chip / f"curr{channel}_input", _text(chip / f"in{channel}_label")
            if amperes.is_file() and label and label not in rails:
                rails[label] = _product(label, volts, amperes)
    board_rails = [label for label in _BOARD_RAILS if label in rails]
    for label in board_rails or rails:
        try:
            yield PowerSensor(f"{label} (board)", rails[label])
        except DeviceError as error:
            reasons.append(str(error))


def _microwatts(name: str, path: Path) -> Callable[[], float]:
    return lambda: _read(name, path) / 1e6


def _product(name: str, millivolts: Path, milliamperes: Path) -> Callable[[], float]:
    return lambda: _read(name, millivolts) * _read(name, milliamperes) / 1e6


def _read(name: str, path: Path) -> int:
    try:
        return _number(path)
    except (OSError, ValueError) as error:
        raise DeviceError(f"the energy counter of {name}", got=_reason(path, error)) from error


def _number(path: Path) -> int:
    with path.open("rb") as file:
        return int(file.read(_READ_BYTES))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} is readable only by root"
    return f"{path}: {error.strerror if isinstance(error, OSError) else 'no number'}"


@contextmanager
def sampled(counters: Sequence[Counter]) -> Iterator[None]:
    """Read each counter at least every `sample_seconds` inside the block, each in a thread. Raises DeviceError at the
    end of the block if one could not be read."""
    stop, errors = threading.Event(), list[DeviceError]()

    def run(counter: Counter) -> None:
        try:
            while not stop.wait(counter.sample_seconds):
                counter.joules()
        except DeviceError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[c], daemon=True) for c in counters if c.sample_seconds is not None]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
