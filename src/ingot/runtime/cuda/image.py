"""A program's kernels in the GPU's memory."""

from __future__ import annotations

from ingot.runtime.cuda.driver import Driver
from ingot.support.cubins import KernelCode, unpack
from ingot.support.dataclass import dataclass
from ingot.support.native import Code


@dataclass(frozen=True)
class LoadedKernel:
    function: int
    code: KernelCode


class Image:
    """Kernels in the GPU's memory, by their symbols."""

    def __init__(self, driver: Driver, code: Code, arch: str) -> None:
        loaded: dict[KernelCode, LoadedKernel] = {}
        self.kernels: dict[str, LoadedKernel] = {}
        for symbol, kernel in unpack(code, arch).items():
            if kernel not in loaded:
                function = driver.function(driver.load(kernel.cubin), kernel.name, kernel.shared)
                loaded[kernel] = LoadedKernel(function, kernel)
            self.kernels[symbol] = loaded[kernel]


__all__ = ["Image", "LoadedKernel"]
