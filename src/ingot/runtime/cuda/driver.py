"""The CUDA driver through ctypes: a program runs with libcuda.so.1 alone, without toolkit, framework or compiler.

Functions raise DeviceError with the driver's error message. Handles and device addresses are integers. See the CUDA
Driver API reference (versions 12 and 13) for each function; structures follow cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_ulonglong,
    c_void_p,
    sizeof,
)
from functools import cache
from typing import Any

from ingot.support.cubins import MatrixCode
from ingot.support.errors import DeviceError

_OUT_OF_MEMORY, _NO_DEVICE = 2, 100
_MAJOR, _MINOR = 75, 76  # device attributes
_SHARED = 8  # function attribute: bytes of dynamic shared memory
_MEMORY_TYPE, _HOST_MEMORY = 2, 1  # pointer attribute
_NOT_CAPTURING = 0
_RELAXED = 2  # capture mode: the captured functions may allocate memory
_REPLACED = 1  # cuStreamUpdateCaptureDependencies: instead of the earlier ones
_COOPERATIVE = 2  # launch attribute: all blocks of the grid run concurrently
_PROGRAMMATIC = 1  # port and type of an edge: the successor may start before its predecessor has ended
_PROMOTED = 2  # cuTensorMapEncodeTiled: L2 fetches 128 bytes at a time
_CONDITIONAL, _IF, _WHILE = 13, 0, 1  # the type of a conditional node, and its kinds
MAP_BYTES = 128  # of a CUtensorMap
LEAST_VERSION = 12000


class KernelParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2. cooperative: whether all blocks have to run concurrently; not a field of the
    structure."""

    cooperative = False

    _fields_ = (
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("params", POINTER(c_void_p)),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class _Conditional(Structure):
    """CUDA_CONDITIONAL_NODE_PARAMS."""

    _fields_ = (
        ("handle", c_ulonglong),
        ("type", c_int),
        ("size", c_uint),
        ("bodies", POINTER(c_void_p)),
        ("context", c_void_p),
    )


class ConditionalParams(Structure):
    """CUgraphNodeParams of a conditional node."""

    _fields_ = (
        ("type", c_int),
        ("reserved0", c_int * 3),
        ("of", _Conditional),
        ("reserved1", c_ubyte * (29 * 8 - sizeof(_Conditional))),
        ("reserved2", c_ulonglong),
    )


class _Edge(Structure):
    """CUgraphEdgeData."""

    _fields_ = (("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5))


# the functions that every call of a model uses: given argument types, ctypes converts plain integers, three times as
# fast
_ARGUMENT_TYPES: dict[str, tuple[type, ...]] = {
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, c_void_p),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, c_void_p),
}


class Driver:
    """The library, and the primary context of one GPU."""

    def __init__(self, library: ctypes.CDLL, ordinal: int = 0) -> None:
        self._lib = library
        self.workspaces: dict[int, Any] = {}  # by stream: what programs share there (`memory.Workspace`)
        for name, types in _ARGUMENT_TYPES.items():
            getattr(library, name).argtypes = types
        self._set_current, self._capturing = library.cuCtxSetCurrent, library.cuStreamIsCapturing
        self._record, self._launch = library.cuEventRecord, library.cuGraphLaunch
        self._set_params = library.cuGraphExecKernelNodeSetParams_v2
        self._call("cuInit", c_uint(0))
        version = c_int()
        self._call("cuDriverGetVersion", byref(version))
        if version.value < LEAST_VERSION:
            raise DeviceError(
                "the NVIDIA driver", expected=f"CUDA {LEAST_VERSION // 1000} or newer",
                got=f"CUDA {version.value // 1000}.{version.value % 1000 // 10}", fix="update the driver",
            )  # fmt: skip
        self.version = version.value  # 12040 for CUDA 12.4
        device = c_int()
        self._call("cuDeviceGet", byref(device), c_int(ordinal))
        self._device = device.value
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._context = context
        self.enter()

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._lib, name)(*args)
        if status:
            raise _error(self._lib, name, status)

    def enter(self) -> None:
        """Make the context the calling thread's."""
        if status := self._set_current(self._context):
            raise _error(self._lib, "cuCtxSetCurrent", status)

    def attribute(self, number: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), c_int(number), c_int(self._device))
        return value.value

    @property
    def capability(self) -> int:
        """The GPU's compute capability: 90 for 9.0."""
        return 10 * self.attribute(_MAJOR) + self.attribute(_MINOR)

    @property
    def name(self) -> str:
        """The GPU's name, as NVIDIA spells it."""
        return self._text("cuDeviceGetName")

    @property
    def bus_id(self) -> str:
        """The GPU's address on the PCI bus, "0000:17:00.0"."""
        return self._text("cuDeviceGetPCIBusId")

    def _text(self, function: str) -> str:
        text = ctypes.create_string_buffer(256)
        self._call(function, text, c_int(len(text)), c_int(self._device))
        return text.value.decode(errors="replace")

    # -- code

    def load(self, cubin: bytes) -> int:
        module = c_void_p()
        self._call("cuModuleLoadData", byref(module), c_char_p(cubin))
        return module.value or 0

    def unload(self, module: int) -> None:
        self._call("cuModuleUnload", c_void_p(module))

    def function(self, module: int, name: str, shared: int) -> int:
        """A kernel of a module, allowed `shared` bytes of dynamic shared memory."""
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), c_void_p(module), c_char_p(name.encode()))
        if shared > 48 << 10:
            self._call("cuFuncSetAttribute", function, c_int(_SHARED), c_int(shared))
        return function.value or 0

    # -- memory

    def allocate(self, nbytes: int) -> int:
        address = c_void_p()
        status = self._lib.cuMemAlloc_v2(byref(address), c_size_t(max(nbytes, 1)))
        if status == _OUT_OF_MEMORY:
            free, total = c_size_t(), c_size_t()
            self._call("cuMemGetInfo_v2", byref(free), byref(total))
            got = f"{free.value >> 20} of {total.value >> 20} MiB free"
            fix = "smaller inputs or fewer models, or torch.cuda.empty_cache() for what PyTorch keeps"
            raise DeviceError("memory of the GPU", expected=f"{-(-nbytes >> 20)} MiB", got=got, fix=fix)
        if status:
            raise _error(self._lib, "cuMemAlloc_v2", status)
        return address.value or 0

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", c_void_p(address))

    def to_device(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync_v2", c_void_p(address), c_void_p(source), c_size_t(nbytes), c_void_p(stream))

    def to_host(self, target: int, address: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync_v2", c_void_p(target), c_void_p(address), c_size_t(nbytes), c_void_p(stream))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoDAsync_v2", c_void_p(target), c_void_p(source), c_size_t(nbytes), c_void_p(stream))

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", c_void_p(address), c_ubyte(byte), c_size_t(nbytes), c_void_p(stream))

    def is_pinned(self, address: int) -> bool:
        """Whether this host memory is page-locked, so that copies to and from it return before they have ended."""
        kind = c_uint()
        status = self._lib.cuPointerGetAttribute(byref(kind), c_int(_MEMORY_TYPE), c_void_p(address))
        return status == 0 and kind.value == _HOST_MEMORY

    # -- streams

    def stream(self, *, urgent: bool = False) -> int:
        """urgent: its pending kernels start before those of other streams."""
        stream, least, greatest = c_void_p(), c_int(), c_int()
        if urgent:
            self._call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
        # 1: does not wait for the default stream
        self._call("cuStreamCreateWithPriority", byref(stream), c_uint(1), greatest)
        return stream.value or 0

    def drop_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", c_void_p(stream))

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", c_void_p(stream))

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream is being captured: launches on it become part of a graph instead of running."""
        capture_status = c_int()
        if status := self._capturing(stream, byref(capture_status)):
            raise _error(self._lib, "cuStreamIsCapturing", status)
        return capture_status.value != _NOT_CAPTURING

    # -- events

    def event(self, *, timed: bool = False) -> int:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), c_uint(0 if timed else 2))
        return event.value or 0

    def drop_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", c_void_p(event))

    def record(self, event: int, stream: int) -> None:
        if status := self._record(event, stream):
            raise _error(self._lib, "cuEventRecord", status)

    def wait(self, stream: int, event: int) -> None:
        """Let later work on the stream wait for an event that was recorded on another stream."""
        self._call("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0))

    def seconds(self, begin: int, end: int) -> float:
        """The seconds between two completed events."""
        milliseconds = c_float()
        self._call("cuEventElapsedTime", byref(milliseconds), c_void_p(begin), c_void_p(end))
        return milliseconds.value * 1e-3

    def synchronize_all(self) -> None:
        """Wait for all work in progress, on all streams."""
        self._call("cuCtxSynchronize")

    def launch_kernel(self, params: KernelParams, stream: int) -> None:
        """Launch a single kernel with the current values of its parameters."""
        name, extra = ("cuLaunchCooperativeKernel", ()) if params.cooperative else ("cuLaunchKernel", (None,))
        self._call(
            name, c_void_p(params.func), *map(c_uint, params.grid), *map(c_uint, params.block),
            c_uint(params.shared), c_void_p(stream), params.params, *extra,
        )  # fmt: skip

    def encode(self, at: int, matrix: MatrixCode, address: int) -> None:
        """Write the tensor map of a matrix in memory to `at`: `MAP_BYTES` bytes at a multiple of 64."""
        self._call(
            "cuTensorMapEncodeTiled", c_void_p(at), c_uint(matrix.kind), c_uint(2), c_void_p(address + matrix.offset),
            (c_ulonglong * 2)(matrix.columns, matrix.rows), (c_ulonglong * 1)(matrix.stride),
            (c_uint * 2)(matrix.box_columns, matrix.box_rows), (c_uint * 2)(1, 1), c_uint(0), c_uint(matrix.swizzle),
            c_uint(_PROMOTED), c_uint(0),
        )  # fmt: skip

    # -- graphs

    def graph(self) -> int:
        graph = c_void_p()
        self._call("cuGraphCreate", byref(graph), c_uint(0))
        return graph.value or 0

    def add_kernel(self, graph: int, dependencies: Sequence[int], params: KernelParams, *, awaits: bool = False) -> int:
        """A kernel node after the nodes `dependencies`. awaits: the kernel itself waits for these, which are kernels,
        and so may start before they have ended (programmatic dependent launch)."""
        starts_early = awaits and bool(dependencies) and hasattr(self._lib, "cuGraphAddDependencies_v2")
        node, count = c_void_p(), len(dependencies)
        nodes = (c_void_p * count)(*dependencies)
        edges_in = (None, c_size_t(0)) if starts_early or not dependencies else (nodes, c_size_t(count))
        self._call("cuGraphAddKernelNode_v2", byref(node), c_void_p(graph), *edges_in, byref(params))
        if params.cooperative:
            value = (c_uint * 16)(1)  # CUlaunchAttributeValue
            self._call("cuGraphKernelNodeSetAttribute", node, c_int(_COOPERATIVE), byref(value))
        if starts_early:
            targets = (c_void_p * count)(*[node] * count)
            edges = (_Edge * count)(*[_Edge(_PROGRAMMATIC, 0, _PROGRAMMATIC)] * count)
            self._call("cuGraphAddDependencies_v2", c_void_p(graph), nodes, targets, edges, c_size_t(count))
        return node.value or 0

    def condition(self, graph: int) -> int:
        """A handle by which a kernel sets the flag of a conditional node of this graph."""
        handle = c_ulonglong()
        self._call(
            "cuGraphConditionalHandleCreate", byref(handle), c_void_p(graph), self._context, c_uint(0), c_uint(0)
        )
        return handle.value

    def add_conditional(
        self, graph: int, dependencies: Sequence[int], condition: int, count: int, *, loop: bool
    ) -> tuple[int, list[int]]:
        """A node after the nodes `dependencies`, and the graphs of its bodies, which the node owns. loop: a WHILE node,
        whose one body runs until the flag is 0; else an IF node: its first body runs if the flag is not 0, the second
        if it is."""
        kind = _WHILE if loop else _IF
        params = ConditionalParams(_CONDITIONAL, of=_Conditional(condition, kind, count, None, self._context))
        node, nodes = c_void_p(), (c_void_p * len(dependencies))(*dependencies)
        self._call(
            "cuGraphAddNode_v2", byref(node), c_void_p(graph), nodes if dependencies else None, None,
            c_size_t(len(dependencies)), byref(params),
        )  # fmt: skip
        return node.value or 0, [params.of.bodies[i] for i in range(count)]

    def add_event(self, graph: int, dependencies: Sequence[int], event: int) -> int:
        """A node that records an event after the nodes `dependencies`."""
        node, nodes = c_void_p(), (c_void_p * len(dependencies))(*dependencies)
        self._call(
            "cuGraphAddEventRecordNode", byref(node), c_void_p(graph), nodes if dependencies else None,
            c_size_t(len(dependencies)), c_void_p(event),
        )  # fmt: skip
        return node.value or 0

    def captured(self, stream: int, begin: Callable[[], None]) -> int:
        """The captured graph of the work that `begin` launches on a stream. It does not run."""
        self._call("cuStreamBeginCapture_v2", c_void_p(stream), c_int(_RELAXED))
        graph = c_void_p()
        try:
            begin()
        finally:
            self._call("cuStreamEndCapture", c_void_p(stream), byref(graph))
        return graph.value or 0

    def captured_graph(self, stream: int) -> tuple[int, list[int]]:
        """The graph that a capture of this stream makes, and its nodes that later work on the stream comes after."""
        status, number, graph, nodes, count = c_int(), c_ulonglong(), c_void_p(), POINTER(c_void_p)(), c_size_t()
        places = [byref(status), byref(number), byref(graph), byref(nodes)]
        if hasattr(self._lib, "cuStreamGetCaptureInfo_v3"):
            edges = c_void_p()
            self._call("cuStreamGetCaptureInfo_v3", c_void_p(stream), *places, byref(edges), byref(count))
        else:
            self._call("cuStreamGetCaptureInfo_v2", c_void_p(stream), *places, byref(count))
        return graph.value or 0, [nodes[i] or 0 for i in range(count.value)]

    def continue_capture(self, stream: int, nodes: Sequence[int]) -> None:
        """Let later work on a stream that is captured come after these nodes of the captured graph alone."""
        places = (c_void_p * len(nodes))(*nodes)
        edges = (None,) if hasattr(self._lib, "cuStreamUpdateCaptureDependencies_v2") else ()
        name = f"cuStreamUpdateCaptureDependencies{'_v2' if edges else ''}"
        self._call(name, c_void_p(stream), places, *edges, c_size_t(len(nodes)), c_uint(_REPLACED))

    def add_graph(self, graph: int, dependencies: Sequence[int], inner: int) -> int:
        """A node after the nodes `dependencies` that runs a copy of another graph."""
        node, nodes = c_void_p(), (c_void_p * len(dependencies))(*dependencies)
        self._call(
            "cuGraphAddChildGraphNode", byref(node), c_void_p(graph), nodes if dependencies else None,
            c_size_t(len(dependencies)), c_void_p(inner),
        )  # fmt: skip
        return node.value or 0

    def instantiate(self, graph: int) -> int:
        executable = c_void_p()
        self._call("cuGraphInstantiateWithFlags", byref(executable), c_void_p(graph), c_ulonglong(0))
        return executable.value or 0

    def update(self, executable: int, node: int, params: KernelParams) -> None:
        if status := self._set_params(executable, node, byref(params)):
            raise _error(self._lib, "cuGraphExecKernelNodeSetParams_v2", status)

    def enable(self, executable: int, node: int, is_enabled: bool) -> None:
        """Enable a kernel node, or let launches skip it."""
        self._call("cuGraphNodeSetEnabled", c_void_p(executable), c_void_p(node), c_uint(is_enabled))

    def launch(self, executable: int, stream: int) -> None:
        if status := self._launch(executable, stream):
            raise _error(self._lib, "cuGraphLaunch", status)

    def drop_graph(self, graph: int, executables: Sequence[int]) -> None:
        """Destroy a graph and its executables, after their launches in progress."""
        for executable in executables:
            self._call("cuGraphExecDestroy", c_void_p(executable))
        self._call("cuGraphDestroy", c_void_p(graph))


def _error(library: ctypes.CDLL, name: str, status: int) -> DeviceError:
    text = c_char_p()
    library.cuGetErrorString(c_int(status), byref(text))
    message = (text.value or b"unknown error").decode(errors="replace")
    if status == _NO_DEVICE:
        return DeviceError("an NVIDIA GPU", expected="one that the driver sees", got="none")
    return DeviceError(f"the GPU's driver refused {name}", got=f"{message} ({status})")


@cache
def driver() -> Driver:
    """The driver of the first GPU. Raises DeviceError if there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        got = str(error).removeprefix("libcuda.so.1: ")
        fix = "install the driver, or run this where there is a GPU"
        raise DeviceError("the NVIDIA driver", expected="libcuda.so.1", got=got, fix=fix) from error
    return Driver(library)


__all__ = ["Driver", "KernelParams", "driver"]
