"""Where the compiler of kernels refuses one, hangs or dies, its schedule's next choice is taken, and told.

tiles rows 128 columns 256 ...: killed after 120 s   ->   tiles rows 128 columns 128 ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingot.ir.kernel import Kernel
from ingot.ir.layout import Layout
from ingot.ops.group import Group
from ingot.pipeline.target import Target
from ingot.schedule.choice import Choice, Measured, Site, decide
from ingot.schedule.lowered import Lowered
from ingot.support.errors import KernelError
from ingot.support.native import Features

TRIES = 4  # choices of one kernel
Key = tuple[Group, tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]]
_log = logging.getLogger("ingot.pipeline")


class Variants:
    """Lowers groups for a target, once each. told: what was refused and what was taken in its place."""

    def __init__(self, target: Target[Any], features: Features, threads: int, measured: Mapping[str, Measured]) -> None:
        self._target, self._features, self._threads = target, features, threads
        self._measured = dict(measured)
        self._machine = target.machine(features, threads, measured)
        self._lowered: dict[Key, Lowered] = {}
        self._tried: dict[str, list[Choice]] = {}
        self.told: list[str] = []

    def lower(
        self, group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...]
    ) -> Lowered:
        key = group, ins, outs, constant
        if key not in self._lowered:
            self._lowered[key] = self._target.lower(*key, self._machine)
        return self._lowered[key]

    @property
    def join(self) -> Callable[[Sequence[Lowered]], Lowered | None] | None:
        """Kernels that run beside each other as one, where the target has such."""
        beside, machine = self._target.beside, self._machine
        return None if beside is None else lambda lows: beside(lows, machine)

    def refuse(self, error: KernelError, kernels: Mapping[str, Kernel]) -> None:
        """Lower what gave a kernel otherwise from here on. kernels: by name. Raises the error where there is no other
        choice."""
        site = self._site_of(kernels.get(error.kernel))
        if site is None:
            raise error
        now = decide(site, self._measured)
        tried = [*self._tried.get(site.key, []), now]
        other = next((c for c in (site.untuned, *site.others()) if c not in tried and site.admits(c)), None)
        if other is None or len(tried) >= TRIES:
            raise error
        self._tried[site.key] = tried
        self._measured[site.key] = Measured(other, site.untuned)
        self._machine = self._target.machine(self._features, self._threads, self._measured)
        self._lowered = {k: low for k, low in self._lowered.items() if low.site is None or low.site.key != site.key}
        self.told.append(f"{now}: {error}; {other} instead")
        _log.warning("%s", self.told[-1])

    def _site_of(self, kernel: Kernel | None) -> Site | None:
        """What was decided for a kernel; naming one keeps its body."""
        if kernel is None:
            return None
        found = (low.site for low in self._lowered.values() for s in low.steps if s.kernel.body is kernel.body)
        return next(found, None)


__all__ = ["Variants"]
