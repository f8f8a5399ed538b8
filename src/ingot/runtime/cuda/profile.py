"""Profiling of runs on request: the time of each step, or NVTX ranges (INGOT_NVTX=1), with which Nsight Systems shows
the steps of a program by name.

See NVIDIA's NVTX reference (C interface, version 2 and 3): nvtxRangePushA, nvtxRangePop.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.cuda.driver import Driver
from ingot.runtime.cuda.launch import Exchange, Node, Places
from ingot.runtime.program import Program
from ingot.support import flags
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError

TICKS_PER_SECOND = 1e12  # picoseconds, as a kernel may take less than a microsecond
_LIBRARY = "libnvToolsExt.so.1"


class Ranges:
    """Launches each step of a program in a range of its name."""

    def __init__(
        self, driver: Driver, program: Program, push: Callable[[str], object], pop: Callable[[], object]
    ) -> None:
        self._driver, self._push, self._pop = driver, push, pop
        self._names = [f"{step.label} [{step.kernel}]" if step.label else step.kernel for step in program.steps]

    def launch(
        self, parts: Sequence[Node | Exchange], places: Places, stream: int, seconds: dict[int, float] | None = None
    ) -> None:
        """Launch kernels and collectives one by one: the launch of a whole graph would be one range. seconds: unused; a
        profile measures the steps without ranges."""
        for part in parts:
            self._push(self._names[part.number])
            try:
                if isinstance(part, Node):
                    part.point(places)
                    self._driver.launch_kernel(part.params, stream)
                else:
                    part.run(places, stream)
            finally:
                self._pop()


@dataclass
class Profile:
    """readings: receives the end of each step of a run, in ticks. ranges: launches the steps in named ranges."""

    ranges: Ranges | None
    readings: NDArray[np.int64] | None = None

    @property
    def is_off(self) -> bool:
        return self.readings is None and self.ranges is None

    def tell(self, seconds: Mapping[int, float] | None) -> None:
        """Write the readings. seconds: the times of the steps by their numbers; steps that did not run take none."""
        if self.readings is not None and seconds is not None:
            step_seconds = [seconds.get(number, 0.0) for number in range(len(self.readings) - 1)]
            self.readings[:] = np.rint(np.cumsum([0.0, *step_seconds]) * TICKS_PER_SECOND)


def ranges_of(program: Program, driver: Driver) -> Ranges | None:
    """None unless INGOT_NVTX is 1. Raises DeviceError if it is 1 and NVTX is missing."""
    return Ranges(driver, program, *_functions()) if flags.nvtx() else None


def _functions() -> tuple[Callable[[str], object], Callable[[], object]]:
    """(push a range with a name, pop the last one), from the package nvtx or from the library."""
    if importlib.util.find_spec("nvtx") is not None:
        package: Any = importlib.import_module("nvtx")
        return package.push_range, package.pop_range
    spec = importlib.util.find_spec("nvidia.nvtx") if importlib.util.find_spec("nvidia") else None
    folders = [] if spec is None else [Path(f) / "lib" for f in spec.submodule_search_locations or ()]
    for name in [*(str(folder / _LIBRARY) for folder in folders), _LIBRARY]:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        push: Callable[[bytes], object] = library.nvtxRangePushA
        return lambda text, push=push: push(text.encode()), library.nvtxRangePop
    raise DeviceError("INGOT_NVTX=1", expected=f"the package nvtx, or {_LIBRARY}", got="none", fix="pip install nvtx")


__all__ = ["TICKS_PER_SECOND", "Profile", "Ranges", "ranges_of"]
