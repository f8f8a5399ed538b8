"""Lowering with fallbacks: if the compiler refuses a kernel, hangs or dies, try the schedule's next choice and report
it.

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

MAX_TRIES = 4  # choices tried for one kernel
Key = tuple[Group, tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]]
_log = logging.getLogger("ingot.pipeline")


class Variants:
    """Lowers groups for a target, once each. substitutions: messages about refused choices and their replacements."""

    def __init__(self, target: Target[Any], features: Features, threads: int, measured: Mapping[str, Measured]) -> None:
        self._target, self._features, self._threads = target, features, threads
        self._measured = dict(measured)
        self._machine = target.machine(features, threads, measured)
        self._lowered: dict[Key, Lowered] = {}
        self._tried: dict[str, list[Choice]] = {}
        self.substitutions: list[str] = []

    def lower(
        self, group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...]
    ) -> Lowered:
        key = group, ins, outs, constant
        if key not in self._lowered:
            self._lowered[key] = self._target.lower(*key, self._machine)
        return self._lowered[key]

    @property
    def join(self) -> Callable[[Sequence[Lowered]], Lowered | None] | None:
        """The target's function that merges independent kernels into one launch; None if it has none."""
        merge, machine = self._target.merge_launches, self._machine
        return None if merge is None else lambda lows: merge(lows, machine)

    def refuse(self, error: KernelError, kernels: Mapping[str, Kernel]) -> None:
        """Exclude the choice of a kernel that did not compile. kernels: by name. Raises `error` if no choice is left to
        try."""
        site = self._site_of(kernels.get(error.kernel))
        if site is None:
            raise error
        choice = decide(site, self._measured)
        tried = [*self._tried.get(site.key, []), choice]
        alternative = next((c for c in (site.untuned, *site.candidates()) if c not in tried and site.admits(c)), None)
        if alternative is None or len(tried) >= MAX_TRIES:
            raise error
        self._tried[site.key] = tried
        self._measured[site.key] = Measured(alternative, site.untuned)
        self._machine = self._target.machine(self._features, self._threads, self._measured)
        self._lowered = {k: low for k, low in self._lowered.items() if low.site is None or low.site.key != site.key}
        self.substitutions.append(f"{choice}: {error}; {alternative} instead")
        _log.warning("%s", self.substitutions[-1])

    def _site_of(self, kernel: Kernel | None) -> Site | None:
        """The site that chose this kernel; kernels are matched by their bodies, as linking renames them."""
        if kernel is None:
            return None
        sites = (low.site for low in self._lowered.values() for s in low.steps if s.kernel.body is kernel.body)
        return next(sites, None)


__all__ = ["Variants"]
