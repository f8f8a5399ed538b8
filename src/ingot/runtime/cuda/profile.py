"""Profiling of runs on request: the time of each step, or its name for a profiler."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.cuda.nvtx import Ranges
from ingot.support.dataclass import dataclass

TICKS_PER_SECOND = 1e12  # picoseconds, as a kernel may take less than a microsecond


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


__all__ = ["TICKS_PER_SECOND", "Profile"]
