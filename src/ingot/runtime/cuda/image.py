"""A program's kernels in the GPU's memory."""

from __future__ import annotations

from ingot.runtime.cuda.condition import TELL
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
        self._condition: LoadedKernel | None = None
        try:
            self._load(unpack(code, arch))
        except DeviceError:
            self.unload()
            raise

    def _load(self, kernels: dict[str, KernelCode]) -> None:
        loaded: dict[KernelCode, LoadedKernel] = {}
        for symbol, kernel in kernels.items():
            if kernel not in loaded:
                loaded[kernel] = self._loaded(kernel)
            self.kernels[symbol] = loaded[kernel]

    def _loaded(self, kernel: KernelCode) -> LoadedKernel:
        module = self._driver.load(kernel.cubin)
        self._modules.append(module)
        return LoadedKernel(self._driver.function(module, kernel.name, kernel.shared_bytes), kernel)

    def condition(self) -> LoadedKernel:
        """The kernel that sets the flag of a conditional node."""
        if self._condition is None:
            self._condition = self._loaded(TELL)
        return self._condition

    def unload(self) -> None:
        self.kernels.clear()
        self._condition = None
        while self._modules:
            self._driver.unload(self._modules.pop())


__all__ = ["Image", "LoadedKernel"]
