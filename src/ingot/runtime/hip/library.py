"""AMD's driver library under the names of NVIDIA's, so that one driver class (`runtime/cuda/driver.py`) serves both.

    cuMemAlloc_v2(pointer, bytes)   ->   hipMalloc(pointer, bytes)

HIP's functions have the arguments of CUDA's where this table has a plain name; others are methods of `HipLibrary`. See
the HIP runtime API reference (ROCm 6 and 7). None of it has run on a GPU yet: tests have a library that is not there.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_int, c_uint, c_void_p
from functools import cache
from typing import Any

from ingot.runtime.cuda.driver import Driver, KernelParams
from ingot.support.errors import DeviceError

_NAMES = {
    "cuInit": "hipInit",
    "cuDriverGetVersion": "hipDriverGetVersion",
    "cuDeviceGet": "hipDeviceGet",
    "cuDeviceGetName": "hipDeviceGetName",
    "cuDeviceGetPCIBusId": "hipDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain": "hipDevicePrimaryCtxRetain",
    "cuCtxSetCurrent": "hipCtxSetCurrent",
    "cuCtxSynchronize": "hipDeviceSynchronize",
    "cuModuleLoadData": "hipModuleLoadData",
    "cuModuleUnload": "hipModuleUnload",
    "cuModuleGetFunction": "hipModuleGetFunction",
    "cuMemAlloc_v2": "hipMalloc",
    "cuMemFree_v2": "hipFree",
    "cuMemGetInfo_v2": "hipMemGetInfo",
    "cuMemcpyHtoDAsync_v2": "hipMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync_v2": "hipMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync_v2": "hipMemcpyDtoDAsync",
    "cuMemsetD8Async": "hipMemsetD8Async",
    "cuCtxGetStreamPriorityRange": "hipDeviceGetStreamPriorityRange",
    "cuStreamCreateWithPriority": "hipStreamCreateWithPriority",
    "cuStreamDestroy_v2": "hipStreamDestroy",
    "cuStreamSynchronize": "hipStreamSynchronize",
    "cuStreamIsCapturing": "hipStreamIsCapturing",
    "cuStreamWaitEvent": "hipStreamWaitEvent",
    "cuStreamBeginCapture_v2": "hipStreamBeginCapture",
    "cuStreamEndCapture": "hipStreamEndCapture",
    "cuStreamGetCaptureInfo_v2": "hipStreamGetCaptureInfo_v2",
    "cuStreamUpdateCaptureDependencies": "hipStreamUpdateCaptureDependencies",
    "cuEventCreate": "hipEventCreateWithFlags",
    "cuEventDestroy_v2": "hipEventDestroy",
    "cuEventRecord": "hipEventRecord",
    "cuEventElapsedTime": "hipEventElapsedTime",
    "cuLaunchKernel": "hipModuleLaunchKernel",
    "cuGraphCreate": "hipGraphCreate",
    "cuGraphDestroy": "hipGraphDestroy",
    "cuGraphAddEventRecordNode": "hipGraphAddEventRecordNode",
    "cuGraphAddChildGraphNode": "hipGraphAddChildGraphNode",
    "cuGraphInstantiateWithFlags": "hipGraphInstantiateWithFlags",
    "cuGraphNodeSetEnabled": "hipGraphNodeSetEnabled",
    "cuGraphLaunch": "hipGraphLaunch",
    "cuGraphExecDestroy": "hipGraphExecDestroy",
}
# of what these GPUs' programs have none: maps of matrices, conditional nodes, early starts, programs that meet, edges
# with data
MISSING_FUNCTIONS = frozenset({
    "cuTensorMapEncodeTiled", "cuGraphAddNode_v2", "cuGraphConditionalHandleCreate", "cuGraphAddDependencies_v2",
    "cuGraphKernelNodeSetAttribute", "cuLaunchCooperativeKernel", "cuDeviceGetAttribute",
    "cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2",
})  # fmt: skip
_PROPERTIES_BYTES = 1 << 13  # more than any version's hipDeviceProp_t has
_ARCH = re.compile(rb"gfx[0-9a-f]+")
_MEMORY_TYPE, _HOST_MEMORY = 2, 1  # HIP_POINTER_ATTRIBUTE_MEMORY_TYPE, hipMemoryTypeHost as the driver API has it
_NOT_SUPPORTED = 801


class _KernelParams(Structure):
    """hipKernelNodeParams."""

    _fields_ = (
        ("block", c_uint * 3),
        ("extra", c_void_p),
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("params", POINTER(c_void_p)),
        ("shared", c_uint),
    )

    @staticmethod
    def of(params: KernelParams) -> _KernelParams:
        return _KernelParams(params.block, None, params.func, params.grid, params.params, params.shared)


class HipLibrary:
    """libamdhip64 with the functions that `Driver` calls, as attributes of their CUDA names."""

    def __init__(self, library: Any) -> None:
        self._hip = library
        self.cuGraphAddKernelNode_v2 = _Function(self._add_kernel)
        self.cuGraphExecKernelNodeSetParams_v2 = _Function(self._set_params)
        self.cuGetErrorString = _Function(library.hipDrvGetErrorString)
        self.cuPointerGetAttribute = _Function(self._pointer_attribute)
        self.cuFuncSetAttribute = _Function(lambda *args: 0)  # local memory needs no permission

    def __getattr__(self, name: str) -> Any:
        hip_name = _NAMES.get(name)
        if hip_name is None:
            raise AttributeError(f"{name} has no counterpart in HIP")
        return getattr(self._hip, hip_name)

    def _add_kernel(self, node: Any, graph: Any, dependencies: Any, count: Any, params: Any) -> int:
        hip_params = _KernelParams.of(params._obj)
        return self._hip.hipGraphAddKernelNode(node, graph, dependencies, count, byref(hip_params))

    def _set_params(self, executable: Any, node: Any, params: Any) -> int:
        hip_params = _KernelParams.of(params._obj)
        return self._hip.hipGraphExecKernelNodeSetParams(c_void_p(executable), c_void_p(node), byref(hip_params))

    def _pointer_attribute(self, result: Any, number: Any, address: Any) -> int:
        return self._hip.hipPointerGetAttribute(result, c_int(_MEMORY_TYPE), address)

    def arch(self, ordinal: int) -> str:
        """Of a GPU, without its features: gfx942. The one name of this form in the device's properties, whose places
        differ between versions."""
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        read = getattr(self._hip, "hipGetDevicePropertiesR0600", None) or self._hip.hipGetDeviceProperties
        status = read(properties, c_int(ordinal))
        name = _ARCH.search(properties.raw)
        if status or name is None:
            raise DeviceError("an AMD GPU", expected="a gfx architecture", got="none that its driver tells")
        return name[0].decode()


class _Function:
    """A function to which ctypes' attributes may be given, as to one of a library."""

    def __init__(self, call: Callable[..., int]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> int:
        return self._call(*args)


class HipDriver(Driver):
    """The driver of AMD's GPUs. Its graphs have no conditional nodes, and kernels never start early."""

    def __init__(self, library: Any, ordinal: int = 0) -> None:
        adapter = HipLibrary(library)
        super().__init__(adapter, ordinal)  # type: ignore[arg-type]
        self.version = 0  # of CUDA's features, none
        self.arch = adapter.arch(ordinal)


@cache
def hip_driver() -> HipDriver:
    """The driver of the first GPU. Raises DeviceError if there is none."""
    for name in ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"):
        try:
            return HipDriver(ctypes.CDLL(name))
        except OSError:
            continue
    raise DeviceError(
        "AMD's driver library", expected="libamdhip64.so", got="none", fix="install ROCm, or run this where a GPU is"
    )


__all__ = ["MISSING_FUNCTIONS", "HipDriver", "HipLibrary", "hip_driver"]
