"""A program's kernels in the GPU's memory."""

from __future__ import annotations

from ingot.runtime.cuda.driver import Driver
from ingot.support.cubins import KernelCode, unpack
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError
from ingot.support.native import Code


@dataclass(frozen=True)
class LoadedKernel:
    function: int
    code: KernelCode


class Image:
    """Kernels in the GPU's memory, by their symbols, until they are unloaded."""

    def __init__(self, driver: Driver, code: Code, arch: str) -> None:
        self._driver = driver
        self._modules: list[int] = []
        self.kernels: dict[str, LoadedKernel] = {}
        try:
            self._load(unpack(code, arch))
        except DeviceError:
            self.unload()
            raise

    def _load(self, kernels: dict[str, KernelCode]) -> None:
        loaded: dict[KernelCode, LoadedKernel] = {}
        for symbol, kernel in kernels.items():
            if kernel not in loaded:
                self._modules.append(self._driver.load(kernel.cubin))
                function = self._driver.function(self._modules[-1], kernel.name, kernel.shared)
                loaded[kernel] = LoadedKernel(function, kernel)
            self.kernels[symbol] = loaded[kernel]

    def unload(self) -> None:
        self.kernels.clear()
        while self._modules:
            self._driver.unload(self._modules.pop())


__all__ = ["Image", "LoadedKernel"]
