"""What the host does of a call on a GPU, without one: the driver's functions do nothing, the tensors lie on the host.

    python -m benchmarks.gpu.host [--results 3]
    python -m benchmarks.gpu.host --gpu               on a GPU, through its driver

Needs the package triton and, without a GPU, a C compiler. Microseconds of the thread's processor time until a call
returns, the least of many rounds. Then where they go: the median of each part of a call, which has that of the
functions of the driver that it calls, and what watching these costs.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

import ingot
from ingot.runtime import tensors
from ingot.runtime.cuda import device
from ingot.runtime.cuda.driver import Driver
from ingot.runtime.executable import LoadedProgram
from ingot.runtime.executor import CompiledModel

GIVES = (  # functions whose first argument is a handle to be made
    "cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreateWithPriority",
    "cuEventCreate", "cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphAddEventRecordNode",
    "cuGraphInstantiateWithFlags",
)  # fmt: skip
NOTHING = (
    "cuInit", "cuCtxSetCurrent", "cuCtxSynchronize", "cuModuleUnload", "cuFuncSetAttribute", "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async", "cuStreamDestroy_v2", "cuStreamSynchronize",
    "cuStreamWaitEvent", "cuCtxGetStreamPriorityRange", "cuEventDestroy_v2", "cuEventRecord", "cuLaunchKernel",
    "cuGraphAddDependencies_v2", "cuGraphExecKernelNodeSetParams_v2", "cuGraphNodeSetEnabled", "cuGraphLaunch",
    "cuGraphExecDestroy", "cuGraphDestroy",
)  # fmt: skip
OTHERS = """
#include <stdlib.h>
static size_t handle = 4096;
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGet(int *d, int ordinal) { *d = ordinal; return 0; }
int cuDeviceGetAttribute(int *v, int which) { *v = which == 75 ? 9 : 0; return 0; }
int cuMemAlloc_v2(void **a, size_t n) { return posix_memalign(a, 512, n); }
int cuMemFree_v2(void *a) { free(a); return 0; }
int cuStreamIsCapturing(void *s, int *v) { *v = 0; return 0; }
int cuPointerGetAttribute(unsigned *v) { *v = 2; return 0; }
"""


def stub() -> Driver:
    """A driver that makes handles and does nothing."""
    source = OTHERS + "".join(f"int {name}(void) {{ return 0; }}\n" for name in NOTHING)
    source += "".join(f"int {name}(size_t *h) {{ *h = handle += 64; return 0; }}\n" for name in GIVES)
    folder = Path(tempfile.mkdtemp())
    (folder / "stub.c").write_text(source)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", "libstub.so", "stub.c"], cwd=folder, check=True)
    return Driver(ctypes.CDLL(str(folder / "libstub.so")))


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    is_cuda, is_cpu, device = True, False, torch.device("cuda", 0)


class Net(torch.nn.Module):
    def __init__(self, results: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(results))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


def best(call: Callable[[], object], wait: Callable[[], object], calls: int = 20) -> float:
    """Of few calls between waits, so that no queue is full."""
    found: list[float] = []
    for _ in range(1000):
        begin = time.thread_time()
        for _ in range(calls):
            call()
        found.append(time.thread_time() - begin)
        wait()
    return min(found) * 1e6 / calls


class Clock:
    """Times functions that others call: `watch` puts itself in a function's place until `stop`."""

    def __init__(self) -> None:
        self.taken: dict[str, list[int]] = {}  # nanoseconds of each call, with those of the functions inside
        self._kept: list[tuple[object, str, object]] = []

    def watch(self, owner: object, attribute: str, name: str) -> None:
        function, now = getattr(owner, attribute), time.perf_counter_ns

        def timed(*args: object, **kwargs: object) -> object:
            begin = now()
            result = function(*args, **kwargs)
            self.taken.setdefault(name, []).append(now() - begin)
            return result

        self._kept.append((owner, attribute, vars(owner).get(attribute)))
        setattr(owner, attribute, timed)

    def stop(self) -> None:
        for owner, attribute, before in self._kept:
            setattr(owner, attribute, before) if before is not None else delattr(owner, attribute)


DRIVER = ("enter", "is_capturing", "record", "wait", "update", "launch", "synchronize", "to_device", "to_host", "copy")


def parts(model: CompiledModel, call: Callable[[], object], wait: Callable[[], object], rounds: int = 400) -> None:
    """Print where a call's time goes."""
    executable = model._executable
    assert isinstance(executable, LoadedProgram)
    loaded = executable._loaded
    (context,) = loaded._idle  # type: ignore[attr-defined]
    clock = Clock()
    for owner, names in (
        (executable._arguments, ("take",)), (loaded, ("claim",)), (context, ("bind", "run", "release")),
        *((maker, ("new_tensor", "new_array")) for maker in executable._output_adapters), (loaded._driver, DRIVER),  # type: ignore[attr-defined]
    ):  # fmt: skip
        for name in names:
            clock.watch(owner, name, f"driver.{name}" if owner is loaded._driver else name)  # type: ignore[attr-defined]
    empty = Clock()
    holder = SimpleNamespace(nothing=lambda: None)
    empty.watch(holder, "nothing", "nothing")
    try:
        for _ in range(rounds):
            call()
            holder.nothing()
            wait()
    finally:
        clock.stop()
    cost = statistics.median(empty.taken["nothing"])
    for name, taken in clock.taken.items():
        median = max(statistics.median(taken) - cost, 0.0) / 1e3
        print(f"    {name:22} {len(taken) / rounds:5.1f} times {median:7.2f} us")


def without_a_gpu() -> None:
    """Let models run through the stub."""
    driver = stub()
    device.driver = lambda: driver  # type: ignore[assignment]
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda index: 0
    tensors.TensorAdapter._empty_cuda = property(lambda self: tensors._fast_empty("cpu"))  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=1)
    parser.add_argument("--gpu", action="store_true")
    asked = parser.parse_args()
    net, x = Net(asked.results).half().eval(), torch.randn(8, 64).half()
    program = ingot.compile(net, (x,), target="cuda:sm_90a").program
    if not asked.gpu:
        without_a_gpu()
    model, given = CompiledModel(program), x.cuda() if asked.gpu else x.as_subclass(Elsewhere)
    wait = torch.cuda.synchronize if asked.gpu else lambda: None
    kept: list[object] = []

    def moving() -> None:
        kept[:] = [model(given), *kept[:1]]

    for name, call in (
        ("results where the last ones were", lambda: model(given)), ("results elsewhere", moving),
        ("arrays on the host", lambda: model(x.numpy())),
    ):  # fmt: skip
        print(f"{name:34} {best(call, wait):6.1f} us")
        parts(model, call, wait)


if __name__ == "__main__":
    main()
