"""Joules per call on a fake machine: RAPL, hwmon, sensors of boards, NVML."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ingot.support.energy.counters import EnergyCounters, PowerSensor, find_counters, sampled
from ingot.support.energy.measure import NO_COUNTER, Energy, measure
from ingot.support.energy.nvml import Nvml, NvmlError
from ingot.support.errors import DeviceError, InputError
from tests.support.energy.machine import Machine


def without_nvml() -> Nvml:
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")


def energy(machine: Machine, call_seconds: float = 0.01, **options: object) -> Energy:
    result = find_counters(None, machine.sysfs, without_nvml)
    window = machine.window(call_seconds)
    return measure(window, result, clock=machine.clock, sleep=machine.sleep, **options)  # type: ignore[arg-type]


def test_no_counter_is_told_and_nothing_runs(tmp_path: Path) -> None:
    outcome = find_counters("0000:17:00.0", tmp_path, without_nvml)
    durations_s: list[float] = []

    def window(seconds: float) -> int:
        durations_s.append(seconds)
        return 1

    result = measure(window, outcome)
    assert not durations_s and result.joules is None and result.cost_of_million(1) is None
    assert str(result).startswith(NO_COUNTER) and "cannot open shared object file" in str(result)
    assert str(measure(window, find_counters(None, tmp_path))) == NO_COUNTER


@pytest.mark.parametrize("step", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("call_seconds", [0.007, 1.3])
def test_joules_and_the_idle_part(tmp_path: Path, step: float, call_seconds: float) -> None:
    """40 W for a call's seconds; a counter of coarse steps does not change that."""
    machine = Machine(tmp_path, step=step)
    machine.zone("intel-rapl:0", "package-0")
    result = energy(machine, call_seconds)
    (counter,) = result.counters
    assert counter.name == "package-0 (RAPL)"
    assert counter.joules == pytest.approx(40 * call_seconds, rel=2e-3)
    assert counter.idle_watts == pytest.approx(10, rel=1e-3)
    assert counter.idle_joules == pytest.approx(10 * call_seconds, rel=1e-3)
    assert counter.spread < 5e-3 and result.windows == 3
    assert result.seconds == pytest.approx(call_seconds)
    assert result.cost_of_million(0.36) == pytest.approx(40 * call_seconds * 0.1, rel=2e-3)
    assert "energy: " in str(result) and "package-0 (RAPL)" in str(result) and "spread" in str(result)


def test_a_counter_that_starts_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0", limit=150_000_000, first=99_000_000)
    assert energy(machine).joules == pytest.approx(0.4, rel=1e-3)


def test_domains_are_counted_once(tmp_path: Path) -> None:
    """Cores are parts of their package, the platform holds more than processors; memory is beside them."""
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0", share=0.5)
    machine.zone("intel-rapl:0:0", "core", share=0.4)
    machine.zone("intel-rapl:0:1", "dram", share=0.1)
    machine.zone("intel-rapl:1", "package-1", share=0.4)
    machine.zone("intel-rapl:2", "psys", share=1.5)
    machine.sensor("hwmon0", name="amd_energy", energy1_input=7, energy1_label="Esocket0")
    result = energy(machine)
    assert [c.name for c in result.counters] == [
        "package-0 (RAPL)", "dram of package-0 (RAPL)", "package-1 (RAPL)",
    ]  # fmt: skip
    assert result.joules == pytest.approx(0.4, rel=2e-3)


def test_hwmon_counts_sockets(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.sensor("hwmon3", name="amd_energy", energy1_label="Ecore000", energy1_input=5)
    machine.sensor("hwmon3", energy2_label="Esocket0", energy2_input=0)

    def write(m: Machine) -> None:
        (folder / "energy2_input").write_text(f"{round(m.joules * 1e6)}")

    machine.writers.append(write)
    result = energy(machine)
    assert [c.name for c in result.counters] == ["Esocket0 (amd_energy)"]
    assert result.joules == pytest.approx(0.4, rel=1e-3)


def test_rails_of_a_board(tmp_path: Path) -> None:
    """NVIDIA's boards have millivolts and milliamperes; the rail that feeds the others is the whole."""
    machine = Machine(tmp_path)
    machine.sensor("hwmon1", name="ina3221", in1_label="VDD_IN", in1_input=5000, curr1_input=2000)
    machine.sensor("hwmon1", in2_label="VDD_CPU_GPU_CV", in2_input=5000, curr2_input=100)
    machine.sensor("hwmon2", name="nvme", in1_label="x", in1_input=1, curr1_input=1)
    (sensor,) = find_counters(None, tmp_path, without_nvml).counters
    assert sensor.name == "VDD_IN (board)"
    machine.sensor("hwmon1", in1_label="VDD_A")
    names = [c.name for c in find_counters(None, tmp_path, without_nvml).counters]
    assert names == ["VDD_A (board)", "VDD_CPU_GPU_CV (board)"]
    machine.sensor("hwmon4", name="ina219", power1_input=1_500_000)
    assert "hwmon4/power1_input (board)" in [c.name for c in find_counters(None, tmp_path, without_nvml).counters]


def test_a_power_sensor_integrates() -> None:
    times = iter([0.0, 1.0, 1.5, 3.5])
    powers = iter([2.0, 4.0, 4.0, 0.0])
    sensor = PowerSensor("x", lambda: next(powers), lambda: next(times))
    np.testing.assert_allclose([sensor.joules() for _ in range(3)], [3, 5, 9])


def test_sensors_are_sampled_meanwhile() -> None:
    reads: list[float] = []

    def watts() -> float:
        reads.append(time.monotonic())
        return 10.0 if len(reads) % 2 else 20.0

    sensor = PowerSensor("x", watts)
    with sampled([sensor]):
        time.sleep(0.2)
    seconds = reads[-1] - reads[0]
    assert len(reads) >= 4
    assert 10 * seconds < sensor.joules() < 20 * (reads[-1] - reads[0])


def test_a_counter_that_starts_again_twice_in_a_window(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    path = machine.zone("intel-rapl:0", "package-0", limit=1000)
    (counter,) = find_counters(None, tmp_path).counters
    assert counter.sample_seconds is not None
    counter.sample_seconds = 0.01
    with sampled([counter]):
        for microjoules in (800, 100, 900, 50):
            path.with_name("next").write_text(f"{microjoules}\n")
            path.with_name("next").replace(path)  # never read half written
            time.sleep(0.2)
    assert counter.joules() == pytest.approx(2050e-6)


def test_a_sensor_that_fails_meanwhile() -> None:
    reads: list[float] = []

    def watts() -> float:
        reads.append(1.0)
        if len(reads) == 3:
            raise DeviceError("the energy counter of x", got="nothing")
        return 10.0

    with pytest.raises(DeviceError, match="the energy counter of x: got nothing"), sampled([PowerSensor("x", watts)]):
        time.sleep(0.3)


def test_a_call_takes_no_negative_energy(tmp_path: Path) -> None:
    """An idle machine that takes more between windows than while a window waits for a step."""
    machine = Machine(tmp_path, busy_watts=0.001, step=0.4)
    machine.zone("intel-rapl:0", "package-0")
    result = measure(
        machine.window(0.1), find_counters(None, tmp_path), clock=machine.clock,
        sleep=lambda seconds: machine.advance(seconds, 40.0 if seconds > 1 else 0.001),
    )  # fmt: skip
    assert result.joules is None and "package-0 (RAPL) does not tell calls from an idle machine" in str(result)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    path = machine.zone("intel-rapl:0", "package-0")
    machine.zone("intel-rapl:1", "package-1")
    (path.parent / "max_energy_range_uj").write_text("many\n")
    result = find_counters(None, tmp_path, without_nvml)
    assert len(result.counters) == 1 and "no number" in result.reasons[0]
    assert "not read: " in str(measure(machine.window(0.1), result, clock=machine.clock, sleep=machine.sleep))
    for zone in path.parents[1].iterdir():
        (zone / "energy_uj").unlink()
        machine.writers.clear()
    with pytest.raises(DeviceError, match=r"the energy counter of package-1 \(RAPL\)"):
        result.counters[0].joules()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_counter_for_root_alone(tmp_path: Path) -> None:
    path = Machine(tmp_path).zone("intel-rapl:0", "package-0")
    path.chmod(0)
    assert find_counters(None, tmp_path, without_nvml).reasons == (f"{path} is readable only by root",)


def test_a_counter_that_stands_still_is_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0", share=0)
    result = energy(machine)
    assert result.joules is None and "package-0 (RAPL) does not advance" in str(result)


@pytest.mark.parametrize(("options", "message"), [({"seconds": 2.9}, "at least 3"), ({"windows": 0}, "windows")])
def test_windows_are_long_enough(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure(lambda seconds: 1, EnergyCounters((), ()), **options)


# --- NVML, as a library of C with one GPU

LIBRARY = r"""
#include <stdio.h>
#include <string.h>
static int is_initialized;
static unsigned long long millijoules = 5000;
int nvmlInit_v2(void) { is_initialized = 1; return 0; }
const char *nvmlErrorString(int code) { return code == 6 ? "Not Found" : code == 3 ? "Not Supported" : "Other"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    if (!is_initialized || (strcmp(id, "0000:17:00.0") && strcmp(id, "0000:18:00.0"))) return 6;
    *device = (void *)(id[6] == '7' ? 0x7000000000000017 : 0x7000000000000018);
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, "NVIDIA Fake %lx", (unsigned long)device & 0xff);
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) {
    if (((unsigned long)device & 0xff) == 0x18) return 3;
    *energy = millijoules;
    return 0;
}
void set(unsigned long long value) { millijoules = value; }
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(LIBRARY)
    command = [compiler, "-shared", "-fPIC", "-o", folder / "nvml.so", folder / "nvml.c"]
    subprocess.run(command, check=True, timeout=60)
    return str(folder / "nvml.so")


def test_a_gpu_beside_its_host(tmp_path: Path, nvml: str) -> None:
    machine = Machine(tmp_path, idle_watts=80, busy_watts=400, step=0.1)
    machine.zone("intel-rapl:0", "package-0", share=0.25)
    library = ctypes.CDLL(nvml)
    machine.writers.append(lambda m: library.set(ctypes.c_ulonglong(5000 + round(m.joules * 1e3))))
    outcome = find_counters("0000:17:00.0", tmp_path, lambda: Nvml(nvml))
    result = measure(machine.window(0.02), outcome, clock=machine.clock, sleep=machine.sleep)
    assert [c.name for c in result.counters] == ["package-0 (RAPL)", "NVIDIA Fake 17"]
    assert result.counters[1].joules == pytest.approx(8, rel=3e-3)
    assert result.counters[1].idle_watts == pytest.approx(80, rel=2e-3)
    assert result.joules == pytest.approx(10, rel=3e-3)


def test_gpus_that_have_no_counter_or_are_not_there(tmp_path: Path, nvml: str) -> None:
    for bus_id, message in (("0000:18:00.0", "NVML: Not Supported"), ("0000:99:00.0", "NVML: Not Found")):
        result = find_counters(bus_id, tmp_path, lambda: Nvml(nvml))
        assert not result.counters and result.reasons == (message,)
    with pytest.raises(OSError):
        Nvml(str(tmp_path / "none.so"))


def test_an_old_driver(tmp_path: Path, nvml: str) -> None:
    with pytest.raises(NvmlError, match="too old: it has no nvmlNone"):
        Nvml(nvml)._call("nvmlNone")
