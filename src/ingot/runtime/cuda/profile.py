"""What runs tell about their steps, if somebody asks: the times of each, or its name to a profiler."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.cuda.nvtx import Ranges
from ingot.support.dataclass import dataclass

TICKS_PER_SECOND = 1e12  # a kernel's time may be some microseconds


@dataclass
class Profile:
    """readings: where runs write the ends of their steps, in ticks. ranges: what launches them by name."""

    ranges: Ranges | None
    readings: NDArray[np.int64] | None = None

    @property
    def is_off(self) -> bool:
        return self.readings is None and self.ranges is None

    def tell(self, seconds: Mapping[int, float] | None) -> None:
        """The seconds of steps by their numbers; those that did not run took none."""
        if self.readings is not None and seconds is not None:
            taken = [seconds.get(number, 0.0) for number in range(len(self.readings) - 1)]
            self.readings[:] = np.rint(np.cumsum([0.0, *taken]) * TICKS_PER_SECOND)


__all__ = ["TICKS_PER_SECOND", "Profile"]
