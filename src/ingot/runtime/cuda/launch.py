"""A launch of a kernel: its parameters in memory, where the driver reads them when a node is created or updated."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

from ingot.runtime.cuda.driver import MAP_BYTES, Driver, KernelParams
from ingot.runtime.cuda.image import LoadedKernel
from ingot.runtime.cuda.nccl import Communicators
from ingot.runtime.cuda.order import Access
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Step

_WORD_BYTES = 8  # bytes of a parameter
_MATRIX_PARAMETERS = 4  # the parameters after the tensor map of a matrix: its sizes and its strides
WEIGHTS = 1  # the index of the weights' address among the places
# addresses of the arena, the weights, the buffers with halos of each geometry, the arguments and the results, in this
# order
Places = Sequence[int]


def _addresses(bases: Sequence[tuple[int, int]], places: Places, weights: Callable[[int], int] | None) -> list[int]:
    if weights is None:
        return [places[base] + offset for base, offset in bases]
    return [weights(offset) if base == WEIGHTS else places[base] + offset for base, offset in bases]


class Node:
    """A launch: its parameters in memory, where the driver reads them. A matrix is passed as its tensor map, its two
    sizes, and its two strides, which no kernel reads."""

    def __init__(
        self, driver: Driver, number: int, kernel: LoadedKernel, chunks: int, bases: list[tuple[int, int]],
        dims: list[int], sized: Step | None, accesses: list[Access],
    ) -> None:  # fmt: skip
        """number: the step's. bases: (index into the places, byte offset) of each buffer. sized: the step, if its
        chunks or dims depend on run-time sizes; it may then have no chunks, and does not start early."""
        self.number, self.bases, self.sized, self.accesses = number, bases, sized, accesses
        self.awaits, self.chunks, self.enabled = kernel.code.awaits and sized is None, chunks, True
        code, count = kernel.code, len(bases) + len(dims)
        # Triton adds two parameters, scratch memory and profiling, which these kernels do not use
        self._values = (ctypes.c_uint64 * (count + 2))(*([0] * len(bases)), *(d & (1 << 64) - 1 for d in dims), 0, 0)
        self._driver, self._matrices = driver, {m.parameter: m for m in code.matrices}
        self._map_memory = (ctypes.c_uint8 * (MAP_BYTES * (len(code.matrices) + 1)))()
        first = -(-ctypes.addressof(self._map_memory) // MAP_BYTES) * MAP_BYTES
        self._maps = {m.parameter: first + i * MAP_BYTES for i, m in enumerate(code.matrices)}
        start = ctypes.addressof(self._values)
        pointers: list[int] = []
        for i in range(count + 2):
            cell = start + i * _WORD_BYTES
            pointers += [self._maps[i], *[cell] * _MATRIX_PARAMETERS] if i in self._maps else [cell]
        self._pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.params = KernelParams(
            kernel.function, (ctypes.c_uint * 3)(chunks, 1, 1), (ctypes.c_uint * 3)(code.threads, 1, 1),
            code.shared_bytes, self._pointers, None, None, None,
        )  # fmt: skip
        self.params.cooperative = code.cooperative
        self.launch_key: tuple[int, ...] = ()  # number, chunks and dims of the last run
        self.handle = 0

    def point(self, places: Places, weights: Callable[[int], int] | None = None) -> None:
        """Set the addresses. weights: from an offset among the weights to its address, if these are not contiguous."""
        addresses = _addresses(self.bases, places, weights)
        self._values[: len(addresses)] = addresses
        for i, tensor_map in self._maps.items():
            self._driver.encode(tensor_map, self._matrices[i], addresses[i])

    def set_condition(self, condition: int) -> None:
        """The handle of the conditional node whose flag this launch sets."""
        self._values[len(self.bases)] = condition

    def resize(self, values: Mapping[str, int]) -> bool:
        """Compute chunks and dims from the values of symbols and sizes. Returns whether they have changed."""
        assert self.sized is not None
        first = len(self.bases)
        dims = [evaluate(d, values) & (1 << 64) - 1 for d in self.sized.dims]
        chunks = evaluate(self.sized.chunks, values)
        if chunks == self.chunks and dims == self._values[first : first + len(dims)]:
            return False
        self._values[first : first + len(dims)] = dims
        self.launch_key = self.number, chunks, *dims
        self.chunks, self.params.grid[0] = chunks, max(chunks, 1)
        return True


class Exchange:
    """A collective. A graph includes it as a captured child graph, whose addresses are fixed at the capture."""

    def __init__(
        self, driver: Driver, number: int, step: Step, communicators: Communicators, count: int,
        bases: list[tuple[int, int]], accesses: list[Access],
    ) -> None:  # fmt: skip
        """number: the step's. count: the number of elements of the operand. bases: (index into the places, byte offset)
        of the operand and the result."""
        assert step.collective is not None
        self.number, self.bases, self.accesses = number, bases, accesses
        self._collective, self._count = step.collective, count
        self._driver, self._communicators = driver, communicators

    def run(self, places: Places, stream: int, weights: Callable[[int], int] | None = None) -> None:
        """Begin it on a stream. weights: see `Node.point`."""
        source, target = _addresses(self.bases, places, weights)
        self._communicators.run(self._collective, source, target, self._count, stream)

    def add(self, graph: int, dependencies: Sequence[int], places: Places, stream: int) -> int:
        """Add a node to a graph. stream: a stream without other launches during the call."""
        captured = self._driver.captured(stream, lambda: self.run(places, stream))
        try:
            return self._driver.add_graph(graph, dependencies, captured)
        finally:
            self._driver.drop_graph(captured, ())


__all__ = ["Exchange", "Node", "Places"]
