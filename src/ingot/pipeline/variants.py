"""Lowering with fallbacks: if the compiler refuses a kernel, hangs or dies, try the schedule's next choice and report
it. Kernels of a launch that was merged get launches of their own.

tiles rows 128 columns 256 ...: killed after 120 s   ->   tiles rows 128 columns 128 ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ingot.ir.kernel import Body, Kernel
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
    """Lowers groups for a target, each once. substitutions: messages about refused choices and what replaces them."""

    def __init__(self, target: Target[Any], features: Features, threads: int, measured: Mapping[str, Measured]) -> None:
        self._target, self._features, self._threads = target, features, threads
        self._measured = dict(measured)
        self._machine = target.machine(features, threads, measured)
        self._lowered: dict[Key, Lowered] = {}
        self._tried_choices: dict[str, list[Choice]] = {}
        self._merged: list[tuple[list[Body], Kernel]] = []
        self._separate: list[list[Body]] = []  # kernels that are not merged, as the code of their launch was refused
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
        merge = self._target.merge_launches
        return None if merge is None else partial(self._merge, merge)

    def _merge(
        self, merge: Callable[[Sequence[Lowered], Any], Lowered | None], lowerings: Sequence[Lowered]
    ) -> Lowered | None:
        bodies = [s.kernel.body for lowering in lowerings for s in lowering.steps]
        if any(_are_same(bodies, others) for others in self._separate):
            return None
        merged = merge(lowerings, self._machine)
        if merged is not None:
            self._merged.append((bodies, merged.steps[0].kernel))
        return merged

    @property
    def chain(self) -> Callable[[Sequence[Kernel]], Kernel | None] | None:
        """The target's function that chains kernels that follow one another; None if it has none."""
        chain = self._target.chain_kernels
        return None if chain is None else partial(self._chain, chain)

    def _chain(
        self, chain: Callable[[Sequence[Kernel], Any], Kernel | None], kernels: Sequence[Kernel]
    ) -> Kernel | None:
        bodies = [kernel.body for kernel in kernels]
        if any(kernel.body is body for kernel in kernels for others in self._separate for body in others):
            return None
        chained = chain(kernels, self._machine)
        if chained is not None and len(kernels) > 1:
            self._merged.append((bodies, chained))
        return chained

    def refuse(self, error: KernelError, kernels: Mapping[str, Kernel]) -> None:
        """Exclude the choice of a kernel that did not compile, or the launch that merged it with others. kernels: by
        name. Raises `error` if no choice is left to try."""
        kernel = kernels.get(error.kernel)
        for bodies, merged in self._merged:
            if kernel is not None and merged.body is kernel.body:
                self._separate.append(bodies)
                self._report(f"{error}; {len(bodies)} launches instead of one")
                return
        site = self._site_of(kernel)
        if site is None:
            raise error
        choice = decide(site, self._measured)
        tried = [*self._tried_choices.get(site.key, []), choice]
        alternative = next((c for c in (site.untuned, *site.candidates()) if c not in tried and site.admits(c)), None)
        if alternative is None or len(tried) >= MAX_TRIES:
            raise error
        self._tried_choices[site.key] = tried
        self._measured[site.key] = Measured(alternative, site.untuned)
        self._machine = self._target.machine(self._features, self._threads, self._measured)
        self._lowered = {
            k: lowering
            for k, lowering in self._lowered.items()
            if lowering.site is None or lowering.site.key != site.key
        }
        self._report(f"{choice}: {error}; {alternative} instead")

    def _report(self, substitution: str) -> None:
        self.substitutions.append(substitution)
        _log.warning("%s", substitution)

    def _site_of(self, kernel: Kernel | None) -> Site | None:
        """The site that chose this kernel; kernels are matched by their bodies, as linking renames them."""
        if kernel is None:
            return None
        for lowering in self._lowered.values():
            if any(step.kernel.body is kernel.body for step in lowering.steps):
                return lowering.site
        return None


def _are_same(bodies: list[Body], others: list[Body]) -> bool:
    return len(bodies) == len(others) and all(a is b for a, b in zip(bodies, others, strict=True))


__all__ = ["Variants"]
