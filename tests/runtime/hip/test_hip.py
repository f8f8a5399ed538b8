"""Programs on an AMD GPU through a library that is not there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingot.runtime.cuda import driver
from ingot.runtime.hip import device
from ingot.runtime.hip.library import MISSING_FUNCTIONS, HipDriver, HipLibrary
from ingot.runtime.program import Program
from ingot.support.cubins import KernelCode, pack
from ingot.support.errors import DeviceError
from ingot.support.native import Features
from tests.runtime.cuda.programs import KERNELS, twice
from tests.runtime.hip.fake import FakeHip

MI300 = Features("gfx942", (), target="hip")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeHip:
    library = FakeHip(KERNELS, {"double": 3})
    monkeypatch.setattr(device, "hip_driver", lambda: HipDriver(library))
    return library


def program() -> Program:
    cuda = twice()
    code = pack(MI300, {"gfx942": {name: KernelCode(name, b"hsaco", 256, 0, 3, (1,)) for name in KERNELS}})
    steps, buffers = ([replace(x, device="hip") for x in xs] for xs in (cuda.steps, cuda.buffers))
    return replace(cuda, steps=tuple(steps), buffers=tuple(buffers), code={"hip": code})


def test_a_program_runs_as_a_graph(fake: FakeHip) -> None:
    assert device.DEVICE.refusal(MI300) is None
    loaded = device.DEVICE.load(program(), None)
    for x in (np.arange(5, dtype=np.float32), np.ones(3, np.float32), np.arange(5, dtype=np.float32) - 7):
        y = np.zeros_like(x)
        context = loaded.claim()
        context.run(context.bind((x.shape,)), [x.ctypes.data, y.ctypes.data])
        context.release()
        np.testing.assert_array_equal(y, 4 * x)
    assert "hipCtxSetCurrent" in fake.log and "hipStreamSynchronize" in fake.log


def test_code_for_another_gpu_is_refused(fake: FakeHip) -> None:
    refused = device.DEVICE.refusal(Features("gfx90a", (), target="hip"))
    assert refused is not None and "gfx942" in str(refused) and "hip:gfx942" in str(refused)


def test_an_error_has_the_drivers_words(fake: FakeHip) -> None:
    driver = HipDriver(fake)
    fake.__dict__["hipModuleUnload"] = lambda module: 1
    with pytest.raises(DeviceError, match="out of luck"):
        driver.unload(3)


def test_without_the_library_a_program_says_so() -> None:
    refused = device.DEVICE.refusal(MI300)
    assert refused is not None and "libamdhip64" in str(refused)


def test_each_function_of_the_driver_has_a_counterpart(fake: FakeHip) -> None:
    text = Path(driver.__file__).read_text()
    names = set(re.findall(r"\bcu[A-Z]\w+", text))
    library = HipLibrary(fake)
    assert "cuGraphLaunch" in names
    assert {n for n in names if not hasattr(library, n)} == MISSING_FUNCTIONS, "add it to hip/library.py"
