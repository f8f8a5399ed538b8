"""Steps in NVTX ranges, through a driver and an NVTX that are not there."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ingot.runtime.cuda import device as cuda
from ingot.runtime.cuda import profile
from ingot.runtime.cuda.device import Loaded
from ingot.runtime.program import Program
from ingot.support.errors import DeviceError
from tests.runtime.cuda.fake import FakeDriver, run
from tests.runtime.cuda.programs import KERNELS, twice, until_100


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver(KERNELS)
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    library = SimpleNamespace(
        push_range=lambda text: driver.log.append(("push", text)), pop_range=lambda: driver.log.append(("pop",))
    )
    monkeypatch.setitem(sys.modules, "nvtx", library)
    monkeypatch.setattr(profile.importlib.util, "find_spec", lambda name: object() if name == "nvtx" else None)
    monkeypatch.setenv("INGOT_NVTX", "1")
    return driver


def named(program: Program) -> Program:
    steps = tuple(replace(step, label=f"Mul @ layer{i}") for i, step in enumerate(program.steps))
    return replace(program, steps=steps)


def test_each_kernel_is_launched_in_a_range_of_its_name(fake: FakeDriver) -> None:
    loaded, x = Loaded(named(twice())), np.arange(5, dtype=np.float32)
    for _ in range(2):  # the second call, too
        fake.log.clear()
        np.testing.assert_array_equal(run(loaded, x), 4 * x)
        entries = [entry[:2] for entry in fake.log if entry[0] in ("push", "launch", "pop")]
        assert entries == [
            ("push", "Mul @ layer0 [double]"), ("launch", "double"), ("pop",),
            ("push", "Mul @ layer1 [double]"), ("launch", "double"), ("pop",),
        ]  # fmt: skip


def test_loops_are_followed(fake: FakeDriver) -> None:
    """With the results of a graph, and as many ranges as launches."""
    x = np.array([3, 1], np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("INGOT_NVTX")
        want = run(Loaded(until_100()), x)
    fake.log.clear()
    np.testing.assert_array_equal(run(Loaded(until_100()), x), want)
    kinds = [entry[0] for entry in fake.log]
    assert kinds.count("push") == kinds.count("pop") == kinds.count("launch") > 3


def test_a_profile_of_its_own_has_no_ranges(fake: FakeDriver) -> None:
    loaded, x = Loaded(twice()), np.arange(5, dtype=np.float32)
    readings = np.zeros(3, np.int64)
    loaded.set_profile(readings)
    run(loaded, x)
    assert readings[-1] > 0 and "push" not in [entry[0] for entry in fake.log]


def test_without_the_flag_there_is_a_graph(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_NVTX", "0")
    run(Loaded(twice()), np.arange(5, dtype=np.float32))
    assert fake.nodes and "push" not in [entry[0] for entry in fake.log]


def test_a_missing_library_is_an_error(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(profile, "_LIBRARY", "libnothing.so.1")
    with pytest.raises(DeviceError, match="pip install nvtx"):
        Loaded(twice())
