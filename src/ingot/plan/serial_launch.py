"""Kernels that share a launch, one after another: the target can chain those that are one program each.

position = position + 1; is_done = any(token == stops); copies of what a loop carries   ->   one launch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from ingot.ir.kernel import Kernel
from ingot.support.dataclass import dataclass

MAX_KERNELS = 16  # of a launch: each chain is a kernel of its own
# kernels that follow one another as one, with the params of all; None if one of them must be a launch of its own
Chain = Callable[[Sequence[Kernel]], Kernel | None]
Operands = tuple[tuple[int, int], ...]  # (buffer, byte offset) of each param


@dataclass
class SerialLaunch:
    """The kernels of the next launch. launches: those of chains by the identities of their kernels, as equal parts of a
    plan share them; the kernels are kept, so that these stay valid."""

    chain: Chain | None
    kernels: list[Kernel] = field(default_factory=list)
    operands: list[Operands] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    launches: dict[tuple[int, ...], tuple[list[Kernel], Kernel]] = field(default_factory=dict)

    def is_link(self, kernel: Kernel) -> bool:
        """Whether a kernel may share a launch."""
        return self.chain is not None and self.chain([kernel]) is not None

    @property
    def is_full(self) -> bool:
        return len(self.kernels) == MAX_KERNELS

    def add(self, kernel: Kernel, operands: Operands, label: str) -> None:
        self.kernels.append(kernel)
        self.operands.append(operands)
        self.labels.append(label)

    def take(self) -> tuple[Kernel, Operands, str]:
        """The launch, which is begun anew."""
        kernel = self._joined(self.kernels)
        operands, label = tuple(o for part in self.operands for o in part), " > ".join(filter(None, self.labels))
        self.kernels, self.operands, self.labels = [], [], []
        return kernel, operands, label

    def _joined(self, kernels: list[Kernel]) -> Kernel:
        if len(kernels) == 1:
            return kernels[0]
        key = tuple(map(id, kernels))
        if key not in self.launches:
            chain = self.chain and self.chain(kernels)
            assert chain is not None
            self.launches[key] = kernels, chain
        return self.launches[key][1]


__all__ = ["Chain", "SerialLaunch"]
