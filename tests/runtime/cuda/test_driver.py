"""What is asked of libcuda, and what is told when it refuses: through a library of Python functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from ingot.runtime.cuda import driver as module
from ingot.runtime.cuda.driver import ConditionalParams, Driver, KernelParams
from ingot.support.errors import DeviceError

Function = Callable[..., int]


class Library:
    """A driver whose functions return 0, or do what `functions` says. calls: the names in order. missing: those it
    lacks."""

    def __init__(self, **functions: Function) -> None:
        self.functions: dict[str, Function] = {
            "cuDriverGetVersion": writes_value(12080),
            "cuGetErrorString": words,
            **functions,
        }
        self.calls: list[str] = []
        self.missing: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name in self.missing:
            raise AttributeError(name)

        def function(*args: object) -> int:
            self.calls.append(name)
            return self.functions.get(name, lambda *args: 0)(*args)

        setattr(self, name, function)  # types of arguments are set on one object
        return function


def put(place: Any, value: int) -> None:
    """Through what `byref` gives."""
    place._obj.value = value


def writes_value(value: int) -> Function:
    def function(place: Any, *rest: object) -> int:
        put(place, value)
        return 0

    return function


def words(status: ctypes.c_int, place: Any) -> int:
    place._obj.value = {2: b"out of memory", 100: b"no CUDA-capable device"}.get(status.value, b"it broke")
    return 0


def driver_of(**functions: Function) -> tuple[Driver, Library]:
    library = Library(**functions)
    return Driver(library), library  # type: ignore[arg-type]


def test_a_machine_without_a_driver_or_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="an NVIDIA GPU: expected one that the driver sees"):
        driver_of(cuInit=lambda flags: 100)

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(module.ctypes, "CDLL", missing)
    with pytest.raises(DeviceError, match=r"the NVIDIA driver: expected libcuda\.so\.1, got cannot open"):
        module.driver.__wrapped__()


def test_an_old_driver_is_told_its_version() -> None:
    with pytest.raises(DeviceError, match=r"expected CUDA 12 or newer, got CUDA 11\.4.*update the driver"):
        driver_of(cuDriverGetVersion=writes_value(11040))


def test_too_little_memory_says_what_was_needed() -> None:
    def info(free: Any, total: Any) -> int:
        put(free, 3 << 20)
        put(total, 80 << 30)
        return 0

    driver, _ = driver_of(cuMemAlloc_v2=lambda place, nbytes: 2, cuMemGetInfo_v2=info)
    with pytest.raises(DeviceError, match="memory of the GPU: expected 5 MiB, got 3 of 81920 MiB free"):
        driver.allocate((4 << 20) + 1)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cuGraphLaunch", lambda d: d.launch(1, 0)), ("cuEventRecord", lambda d: d.record(1, 0)),
        ("cuStreamIsCapturing", lambda d: d.is_capturing(7)), ("cuModuleLoadData", lambda d: d.load(b"cubin")),
        ("cuGraphExecKernelNodeSetParams_v2", lambda d: d.update(1, 2, KernelParams())),
        ("cuGraphNodeSetEnabled", lambda d: d.enable(1, 2, False)), ("cuCtxSetCurrent", lambda d: d.enter()),
    ],
)  # fmt: skip
def test_refusals_have_the_drivers_words(name: str, call: Callable[[Driver], object]) -> None:
    driver, library = driver_of()
    library.functions[name] = lambda *args: 719
    with pytest.raises(DeviceError, match=rf"the GPU's driver refused {name}: got it broke \(719\)"):
        call(driver)


def test_kernel_nodes_have_the_layout_of_cuda_h() -> None:
    """CUDA_KERNEL_NODE_PARAMS_v2 on 64 bits."""
    places = {name: getattr(KernelParams, name).offset for name, *_ in KernelParams._fields_}
    assert places == {
        "func": 0, "grid": 8, "block": 20, "shared": 32, "params": 40, "extra": 48, "kernel": 56, "context": 64,
    }  # fmt: skip
    assert ctypes.sizeof(KernelParams) == 72


def test_a_programmatic_edge_is_added_behind_the_node() -> None:
    calls: list[tuple[int, ...]] = []

    def edges(graph: object, sources: Any, targets: Any, data: Any, count: ctypes.c_size_t) -> int:
        calls.append((sources[0], targets[0], data[0].from_port, data[0].to_port, data[0].type, count.value))
        return 0

    driver, library = driver_of(cuGraphAddKernelNode_v2=writes_value(42), cuGraphAddDependencies_v2=edges)
    library.calls.clear()
    assert driver.add_kernel(1, [41], KernelParams(), awaits=True) == 42
    assert library.calls == ["cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2"]
    assert calls == [(41, 42, 1, 0, 1, 1)]
    library.calls.clear()
    driver.add_kernel(1, [41], KernelParams())
    driver.add_kernel(1, [], KernelParams(), awaits=True)
    assert library.calls == ["cuGraphAddKernelNode_v2"] * 2


def test_programs_that_wait_for_each_other_run_at_once() -> None:
    calls: list[tuple[int, int, int]] = []

    def attribute(node: Any, number: ctypes.c_int, value: Any) -> int:
        calls.append((node.value, number.value, value._obj[0]))
        return 0

    driver, library = driver_of(cuGraphAddKernelNode_v2=writes_value(42), cuGraphKernelNodeSetAttribute=attribute)
    params = KernelParams()
    params.cooperative = True
    assert driver.add_kernel(1, [41], params) == 42
    assert calls == [(42, 2, 1)]
    library.calls.clear()
    driver.launch_kernel(params, 0)
    driver.launch_kernel(KernelParams(), 0)
    assert library.calls == ["cuLaunchCooperativeKernel", "cuLaunchKernel"]


def test_conditional_nodes_have_the_layout_of_cuda_h() -> None:
    """CUgraphNodeParams on 64 bits, and the graphs of the bodies where the driver says that they are."""
    bodies, calls = (ctypes.c_void_p * 2)(51, 52), list[tuple[int, ...]]()

    def add(place: Any, graph: Any, before: Any, edges: object, count: Any, parameters: Any) -> int:
        put(place, 50)
        numbers = (ctypes.c_uint64 * 32).from_buffer(parameters._obj)
        calls.append((count.value, before[0], edges is None, *numbers[:6], any(numbers[6:])))
        numbers[4] = ctypes.addressof(bodies)
        return 0

    driver, _ = driver_of(
        cuGraphAddNode_v2=add, cuGraphConditionalHandleCreate=writes_value(7), cuDevicePrimaryCtxRetain=writes_value(9)
    )
    assert ctypes.sizeof(ConditionalParams) == 256
    assert driver.condition(1) == 7
    assert driver.add_conditional(1, [41], 7, 2, loop=False) == (50, [51, 52])
    assert driver.add_conditional(1, [41], 7, 1, loop=True) == (50, [51])
    # node type and reserved ones, handle, type and size of the array, the array, the context
    assert calls == [(1, 41, True, 13, 0, 7, 2 << 32, 0, 9, False), (1, 41, True, 13, 0, 7, 1 | 1 << 32, 0, 9, False)]


@pytest.mark.parametrize("is_new", [True, False])
def test_nodes_are_added_to_a_graph_that_is_captured(is_new: bool) -> None:
    """CUDA 12.3 and later tell of edges, too."""
    ends, calls = (ctypes.c_void_p * 2)(41, 42), list[tuple[Any, ...]]()

    def info(stream: Any, status: Any, number: Any, graph: Any, nodes: Any, *rest: Any) -> int:
        put(graph, 40)
        nodes._obj.contents = ctypes.cast(ends, ctypes.POINTER(ctypes.c_void_p)).contents
        put(rest[-1], 2)
        calls.append((stream.value, len(rest)))
        return 0

    def update(stream: Any, nodes: Any, *rest: Any) -> int:
        calls.append((stream.value, [*nodes], rest[:-2], rest[-2].value, rest[-1].value))
        return 0

    names = {"cuStreamGetCaptureInfo_v3": info, "cuStreamUpdateCaptureDependencies_v2": update}
    if not is_new:
        names = {"cuStreamGetCaptureInfo_v2": info, "cuStreamUpdateCaptureDependencies": update}
    driver, library = driver_of(**names)
    if not is_new:
        library.missing = {"cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2"}
    assert driver.captured_graph(7) == (40, [41, 42])
    driver.continue_capture(7, [43])
    assert calls == [(7, 2 if is_new else 1), (7, [43], (None,) if is_new else (), 1, 1)]
