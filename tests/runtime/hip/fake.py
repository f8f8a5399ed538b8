"""AMD's driver library of memory and lists, which runs each kernel as a Python function on memory of the host."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from typing import Any

Run = Callable[[list[int]], None]  # on the values of a kernel's parameters


def number(x: Any) -> int:
    return (x.value if hasattr(x, "value") else x) or 0


class FakeHip:
    """kernels: what each function does. counts: parameters of each. log: the functions that were called, in order."""

    def __init__(self, kernels: Mapping[str, Run], counts: Mapping[str, int], arch: str = "gfx942") -> None:
        self.kernels, self.counts, self._arch = kernels, counts, arch
        self.log: list[str] = []
        self._numbers = itertools.count(1)
        self._blocks: dict[int, ctypes.Array] = {}
        self._functions: dict[int, str] = {}
        self._nodes: dict[int, tuple[str, list[int]]] = {}
        self._graphs: dict[int, list[int]] = {}
        self._executables: dict[int, dict[int, tuple[str, list[int]]]] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        """What needs no answer: events, streams, contexts."""
        if not name.startswith("hip"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.log.append(name)
            return 0

        self.__dict__[name] = function = _Settable(call)
        return function

    def _new_handle(self, pointer: Any) -> int:
        pointer._obj.value = handle = next(self._numbers)
        return handle

    def hipDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 60_300_000
        return 0

    def hipGetDevicePropertiesR0600(self, properties: Any, ordinal: Any) -> int:
        text = f"AMD Instinct\0{self._arch}:sramecc+:xnack-\0".encode()
        ctypes.memmove(properties, text, len(text))
        return 0

    def hipMalloc(self, address: Any, nbytes: Any) -> int:
        block = (ctypes.c_uint8 * (number(nbytes) + 64))()
        address._obj.value = start = -(-ctypes.addressof(block) // 64) * 64
        self._blocks[start] = block
        return 0

    def hipFree(self, address: Any) -> int:
        del self._blocks[number(address)]
        return 0

    def hipMemcpyHtoDAsync(self, to: Any, source: Any, nbytes: Any, stream: Any) -> int:
        ctypes.memmove(number(to), number(source), number(nbytes))
        return 0

    hipMemcpyDtoHAsync = hipMemcpyDtoDAsync = hipMemcpyHtoDAsync

    def hipMemsetD8Async(self, to: Any, byte: Any, nbytes: Any, stream: Any) -> int:
        ctypes.memset(number(to), number(byte), number(nbytes))
        return 0

    def hipModuleLoadData(self, module: Any, code: Any) -> int:
        self._new_handle(module)
        return 0

    def hipModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        self._functions[self._new_handle(function)] = name.value.decode()
        return 0

    def hipGraphCreate(self, graph: Any, flags: Any) -> int:
        self._graphs[self._new_handle(graph)] = []
        return 0

    def hipGraphAddKernelNode(self, node: Any, graph: Any, before: Any, count: Any, params: Any) -> int:
        handle = self._new_handle(node)
        assert all(number(before[i]) in self._graphs[number(graph)] for i in range(number(count)))
        self._nodes[handle] = self._read(params._obj)
        self._graphs[number(graph)].append(handle)
        return 0

    def _read(self, params: Any) -> tuple[str, list[int]]:
        name = self._functions[params.func]
        assert (*params.block,)[1:] == (*params.grid,)[1:] == (1, 1) and params.grid[0] > 0
        values = [ctypes.c_int64.from_address(params.params[i]).value for i in range(self.counts[name])]
        return name, values

    def hipGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: Any) -> int:
        self._executables[self._new_handle(executable)] = {n: self._nodes[n] for n in self._graphs[number(graph)]}
        return 0

    def hipGraphExecKernelNodeSetParams(self, executable: Any, node: Any, params: Any) -> int:
        self._executables[number(executable)][number(node)] = self._read(params._obj)
        return 0

    @property
    def hipGraphLaunch(self) -> Any:
        def launch(executable: Any, stream: Any) -> int:
            for name, values in self._executables[number(executable)].values():
                self.kernels[name](values)
            return 0

        return _Settable(launch)

    def hipDrvGetErrorString(self, status: Any, text: Any) -> int:
        text._obj.value = b"out of luck"
        return 0


class _Settable:
    """A function that takes `argtypes`, as ctypes' do."""

    def __init__(self, call: Callable[..., int]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> int:
        return self._call(*args)
