"""The energy of engines in processes of their own, and of a compiled model."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ingot
from ingot.bench import language, run
from ingot.bench.round_robin import Worker, WorkerFailed
from ingot.runtime import device
from ingot.support.energy import measure as measuring
from ingot.support.energy.counters import EnergyCounters, find_counters
from tests.support.energy.machine import Machine

onnx = pytest.importorskip("onnx")


class Engine:
    """A worker whose call takes 10 ms of the machine's time."""

    def __init__(self, machine: Machine, fails: bool = False) -> None:
        self.machine, self.fails = machine, fails

    def ask(self, seconds: float, count: bool) -> dict[str, Any]:
        assert count
        if self.fails:
            raise WorkerFailed("it ended")
        return {"calls": self.machine.window(0.01)(seconds)}


def test_engines_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0")
    patched = partial(measuring.measure, clock=machine.clock, sleep=machine.sleep)
    monkeypatch.setattr(run, "measure", patched)
    outcome = find_counters(None, tmp_path)
    result = run._with_energy(run.Result("ort", 0.01), cast(Worker, Engine(machine)), outcome)
    assert result.energy is not None and result.energy.joules == pytest.approx(0.4, rel=1e-3)
    failed = run._with_energy(run.Result("ort", 0.01), cast(Worker, Engine(machine, fails=True)), outcome)
    assert failed.failure == "it ended" and failed.seconds is None


def test_a_profile_with_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the machine stands still but for the calls, each of which takes 40 W for 100 ms."""
    text = '<ir_version: 10, opset_import: ["" : 18]> m (float[n] x) => (float[n] y) { y = Tanh(x) }'
    model = ingot.compile(onnx.parser.parse_model(text), threads=1)
    x = np.ones(5, np.float32)
    assert model.profile(x).energy is None
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0")
    result = find_counters(None, tmp_path)
    original, calls = device.calls_for, list[int]()

    def calls_for(call: Any, streams: int) -> Any:
        def timed() -> None:
            calls.append(1)
            call()
            machine.advance(0.1, machine.busy_watts)

        return original(timed, machine.clock, streams)

    monkeypatch.setattr(device, "calls_for", calls_for)
    monkeypatch.setattr(device, "measure", partial(measuring.measure, clock=machine.clock, sleep=machine.sleep))
    monkeypatch.setattr(device, "find_counters", lambda gpu: result)
    profile = model.profile(x, energy=True)
    assert profile.energy is not None and profile.energy.joules == pytest.approx(4, rel=1e-3)
    assert len(calls) > 80 and [label for label, _ in profile]
    monkeypatch.setattr(device, "find_counters", lambda gpu: EnergyCounters((), ()))
    assert str(model.profile(x, energy=True).energy) == "energy: no counter on this machine"


class Speaker:
    """A language model of which reading a prompt takes a millisecond a token, and writing a token ten."""

    context, vocabulary = 4096, 100

    def __init__(self, machine: Machine) -> None:
        self.machine, self.read = machine, 0

    def reset(self) -> None:
        self.read = 0

    def generate(self, prompt: Any, *, max_tokens: int, temperature: float, ignore_ends: bool = False) -> None:
        new = 0 if self.read else len(prompt)
        self.read = len(prompt)
        self.machine.advance(new * 0.001 + (max_tokens if ignore_ends else 0) * 0.01, self.machine.busy_watts)


@pytest.mark.parametrize("step", [0.0, 0.1])
def test_tokens(tmp_path: Path, step: float) -> None:
    machine = Machine(tmp_path, step=step)
    machine.zone("intel-rapl:0", "package-0")
    result = find_counters(None, tmp_path)
    prefill, decode = language.energy_of_tokens(Speaker(machine), 128, 64, result, machine.clock, machine.sleep)
    assert prefill.joules == pytest.approx(0.04, rel=3e-3) and decode.joules == pytest.approx(0.4, rel=3e-3)
    assert "a token" in str(prefill) and "tokens" in str(decode) and decode.seconds == pytest.approx(0.01)
    no_counters = language.energy_of_tokens(Speaker(machine), 128, 64, EnergyCounters((), ()))
    assert [str(e) for e in no_counters] == ["energy: no counter on this machine"] * 2


class Choir:
    """A language model with sequences: as `Speaker`, one token after another, and with a cache of prompts."""

    context, vocabulary = 4096, 100

    def __init__(self, machine: Machine) -> None:
        self.machine, self.prefilled = machine, set[tuple[int, ...]]()
        self.is_closed = False

    def engine(self, queue: int) -> Choir:
        return self

    def request(self, *, max_tokens: int, **_: Any) -> int:
        return max_tokens

    def submit(self, ids: Any, tokens: int) -> list[int]:
        read = 0 if tuple(ids) in self.prefilled else len(ids)
        self.prefilled.add(tuple(ids))
        self.machine.advance(read * 0.001 + (tokens if tokens > 1 else 0) * 0.01, self.machine.busy_watts)
        return [0] * tokens

    def close(self) -> None:
        self.is_closed = True


def test_tokens_of_several_answers(tmp_path: Path) -> None:
    machine = Machine(tmp_path, step=0.1)
    machine.zone("intel-rapl:0", "package-0")
    choir, counters = Choir(machine), find_counters(None, tmp_path)
    prefill, decode = language.energy_of_joint_tokens(choir, 4, 128, 64, counters, machine.clock, machine.sleep)
    assert prefill.joules == pytest.approx(0.04, rel=3e-3) and decode.joules == pytest.approx(0.4, rel=3e-3)
    assert choir.is_closed and len(next(iter(choir.prefilled))) == 128


def test_calls_of_several_streams() -> None:
    barrier = threading.Barrier(3)
    assert measuring.calls_for(lambda: barrier.wait(timeout=20), streams=3)(0.0) == 3
