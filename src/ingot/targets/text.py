"""An assembler for targets whose code is printed text: concatenates the texts of kernels."""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.kernel import Kernel
from ingot.support.native import Code, Features


class TextAssembler:
    def __init__(self, features: Features, print_kernel: Callable[[Kernel], str]) -> None:
        self._features, self._print = features, print_kernel
        self._parts: dict[str, bytes] = {}

    def add(self, kernel: Kernel) -> None:
        self.include(self.begin(kernel))

    def begin(self, kernel: Kernel) -> tuple[str, bytes]:
        return kernel.name, self._print(kernel).encode()

    def include(self, part: tuple[str, bytes]) -> None:
        self._parts[part[0]] = part[1]

    def finish(self) -> Code:
        offsets: dict[str, int] = {}
        offset = 0
        for name, text in self._parts.items():
            offsets[name] = offset
            offset += len(text)
        return Code(self._features, b"".join(self._parts.values()), offsets)
