"""The null target: another target's passes and schedules without code generation, on any machine.

    null                  passes and schedules of this machine's CPU
    null:cuda:sm_90a      passes and schedules of that GPU

Its programs have a plan, and kernel IR as code: they can be saved, printed (`ingot dump`), and run by the kernel
interpreter (`tests/conformance`); no device runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ingot.ir.kernel import Kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ops.group import Group
from ingot.passes.fusion.policy import FusionPolicy
from ingot.pipeline.target import NamedPass, Options, Target, parse_target, target_of
from ingot.schedule.choice import Measured
from ingot.schedule.lowered import Lowered
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.native import Features
from ingot.targets.text import TextAssembler


@dataclass(frozen=True)
class Machine:
    """A machine of the underlying target."""

    target: Target[Any]
    machine: Any


class NullTarget:
    """See `ingot.pipeline.target.Target`. Features are those of the underlying target, under the name "null:OTHER"."""

    name = "null"
    policy = FusionPolicy()  # unused: the passes bring the underlying target's
    forms = ("ir",)
    export = None
    has_fixed_sizes = False
    overlaps_exchanges = False
    has_paged_attention = False

    def features(self, variant: str) -> Features:
        target, features = parse_target(variant or "native")
        if target.name == self.name:
            raise InputError("target", expected="null:NAME of another target", got=f"null:{variant}")
        return replace(target.features(features), target=f"{self.name}:{target.name}")

    def prepare(self, nodes: int) -> None:
        pass

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        inner = _inner_features(features)
        target = target_of(inner)
        return Machine(target, target.machine(inner, threads, measured))

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        inner = _inner_features(features)
        return target_of(inner).passes(inner, options)

    def lower(
        self, group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...],
        machine: Machine,
    ) -> Lowered:  # fmt: skip
        return machine.target.lower(group, ins, outs, constant, machine.machine)

    def merge_launches(self, lows: Sequence[Lowered], machine: Machine) -> Lowered | None:
        merge = machine.target.merge_launches
        return None if merge is None else merge(lows, machine.machine)

    def chain_kernels(self, kernels: Sequence[Kernel], machine: Machine) -> Kernel | None:
        chain = machine.target.chain_kernels
        return None if chain is None else chain(kernels, machine.machine)

    def assembler(self, features: Features) -> TextAssembler:
        return TextAssembler(features, show_kernel)

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        return show_kernel(kernel)


def _inner_features(features: Features) -> Features:
    """The features of the underlying target."""
    return replace(features, target=features.target.partition(":")[2])


TARGET = NullTarget()
