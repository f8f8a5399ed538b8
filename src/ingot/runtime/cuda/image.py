"""A program's kernels in the GPU's memory, and the kernel that sets the flag of a conditional node of a CUDA graph.

The latter is PTX, which the driver compiles. cudaGraphSetConditional is a function that the driver provides to kernels;
see "Dynamic Control Flow in CUDA Graphs" in the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from ingot.runtime.cuda.driver import Driver
from ingot.support.cubins import KernelCode, unpack
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError
from ingot.support.native import Code

# the flag comes first, as buffers do; the two additional parameters of Triton's kernels are not read
_PTX = b"""
.version 8.3
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry tell(.param .u64 flag, .param .u64 handle) {
  .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .b16 %h<2>; .reg .pred %p;
  ld.param.u64 %rd1, [flag];
  ld.param.u64 %rd2, [handle];
  cvta.to.global.u64 %rd3, %rd1;
  ld.global.u8 %h1, [%rd3];
  setp.ne.s16 %p, %h1, 0;
  selp.u32 %r1, 1, 0, %p;
  { .param .b64 a; .param .b32 b;
    st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); }
  ret;
}
\0"""
TELL = KernelCode("tell", _PTX, threads=1, shared_bytes=0, parameters=2, writes=())


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
