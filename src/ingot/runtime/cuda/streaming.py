"""Weights within a bound of device memory. Weights that do not fit stay on the host and are copied into one of two
slots before the step that reads them: while a kernel reads one slot, the weights of the next step are copied to the
other.

    resident | slot 0 | slot 1        copies:  w4 -> 0   w7 -> 1   (4 has ended) w9 -> 0
                                      kernels:      4         7         9
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.cuda.driver import Driver
from ingot.runtime.cuda.launch import Exchange, Node, Places
from ingot.runtime.cuda.memory import Memory
from ingot.runtime.program import Program
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError
from ingot.support.log import Log

SLOTS = 2
_ALIGN_BYTES = 256  # bytes: what the driver's own allocations have
_log = Log("ingot.runtime.cuda")


@dataclass(frozen=True)
class WeightPlan:
    """The placement of weights. A weight is identified by its start, its offset among all weights. resident: the
    address offset on the GPU of each resident weight, by start. streamed: for each step that reads other weights, their
    offsets in a slot. slot_bytes: the size of each of the `slots`."""

    resident: Mapping[int, int]
    streamed: Mapping[int, Mapping[int, int]]
    resident_bytes: int
    slot_bytes: int
    slots: int

    @property
    def nbytes(self) -> int:
        return self.resident_bytes + self.slots * self.slot_bytes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES


def weight_ranges(program: Program) -> dict[int, int]:
    """The bytes of each weight by its start among all weights."""
    nbytes_by_start: dict[int, int] = {}
    for buffer in program.buffers:
        if buffer.kind == "weight" and buffer.alias is None:
            assert isinstance(buffer.nbytes, int)
            nbytes_by_start[buffer.offset] = max(nbytes_by_start.get(buffer.offset, 0), buffer.nbytes)
    return nbytes_by_start


def weights_of_steps(program: Program) -> dict[int, frozenset[int]]:
    """The starts of the weights that each step reads, for steps that read any."""
    buffers = {b.id: b for b in program.buffers}
    starts_by_step: dict[int, frozenset[int]] = {}
    for number, step in enumerate(program.steps):
        starts: set[int] = set()
        for identity, _ in step.args:
            buffer = buffers[identity]
            while buffer.alias is not None:
                buffer = buffers[buffer.alias[0]]
            if buffer.kind == "weight":
                starts.add(buffer.offset)
        if starts and step.target is None:
            starts_by_step[number] = frozenset(starts)
    return starts_by_step


def plan_weights(program: Program, allowed: int) -> WeightPlan:
    """The plan with two slots, or else with one, that streams the fewest bytes. The weights of the steps that read the
    most are resident, as they determine the size of the slots, then the smallest ones that fit. Raises DeviceError if
    not even the weights of the largest step fit.
    """
    nbytes, steps = weight_ranges(program), weights_of_steps(program)
    if program.weights.nbytes <= allowed:  # as they lie in the program
        return WeightPlan({start: start for start in nbytes}, {}, program.weights.nbytes, 0, 0)

    def total(starts: Iterable[int]) -> int:
        return sum(_aligned(nbytes[s]) for s in starts)

    largest = sorted(steps, key=lambda n: -total(steps[n]))
    for slots in range(SLOTS, 0, -1):
        best: WeightPlan | None = None
        resident: set[int] = set()
        for number in [None, *largest]:
            resident |= steps[number] if number is not None else set[int]()
            slot_bytes = max(total(step_starts - resident) for step_starts in steps.values())
            free_bytes = allowed - total(resident) - slots * slot_bytes
            if free_bytes < 0:
                continue
            resident_starts = set(resident)
            for start in sorted(set(nbytes) - resident_starts, key=lambda s: nbytes[s]):
                if (free_bytes := free_bytes - _aligned(nbytes[start])) < 0:
                    break
                resident_starts.add(start)
            plan = _placed(nbytes, resident_starts, steps, slots)
            if best is None or plan.resident_bytes > best.resident_bytes:
                best = plan
        if best is not None:
            return best
    min_bytes = total(steps[largest[0]])
    fix = "allow more, or use smaller inputs"
    raise DeviceError("device_memory", expected=f"{min_bytes} bytes for weights", got=max(allowed, 0), fix=fix)


def _placed(
    nbytes: Mapping[int, int], resident_starts: set[int], steps: Mapping[int, frozenset[int]], slots: int
) -> WeightPlan:
    resident, end = _stacked(nbytes, sorted(resident_starts))
    stacks = {
        number: _stacked(nbytes, sorted(starts - resident_starts))
        for number, starts in steps.items()
        if starts - resident_starts
    }
    streamed = {number: places for number, (places, _) in stacks.items()}
    slot_bytes = max((size for _, size in stacks.values()), default=0)
    return WeightPlan(resident, streamed, end, slot_bytes, slots if slot_bytes else 0)


def _stacked(nbytes: Mapping[int, int], starts: Iterable[int]) -> tuple[dict[int, int], int]:
    places: dict[int, int] = {}
    end = 0
    for start in starts:
        places[start] = end
        end += _aligned(nbytes[start])
    return places, end


_RATE_BYTES, _RATE_REPEATS = 32 << 20, 5


def copy_rate(driver: Driver) -> tuple[float, float]:
    """(bytes per second, seconds of a small copy): the best of several copies from the host, done as weights are
    streamed."""
    driver.enter()
    source, memory = np.ones(_RATE_BYTES, np.uint8), Memory(driver)
    memory.hold(source.nbytes)

    def seconds(nbytes: int) -> float:
        begin = time.perf_counter()
        driver.to_device(memory.address, source.ctypes.data, nbytes, 0)
        driver.synchronize(0)
        return time.perf_counter() - begin

    try:
        large, small = (min(seconds(n) for _ in range(_RATE_REPEATS)) for n in (source.nbytes, _ALIGN_BYTES))
    finally:
        memory.free()
    return source.nbytes / max(large - small, 1e-9), small


class BoundedWeights:
    """The weights of a program on the GPU. Together with arenas, arguments and state they take at most `device_memory`
    bytes.

    Serves one run at a time. plan: the placement, after `fit` has been called.
    """

    def __init__(self, driver: Driver, program: Program, device_memory: int) -> None:
        self._driver, self._program, self.device_memory = driver, program, device_memory
        self._nbytes = weight_ranges(program)
        self._starts = sorted(self._nbytes)
        self._weights: NDArray[np.uint8] = program.weights
        self.resident, self._slots = Memory(driver), [Memory(driver) for _ in range(SLOTS)]
        self._stream = driver.stream()
        self._copied, self._ended = ([driver.event() for _ in range(SLOTS)] for _ in range(2))
        self.plan: WeightPlan | None = None
        self.state_bytes = 0
        self._slot_steps: list[int | None] = [None] * SLOTS  # the step whose weights lie in each slot
        self._next_slot = 0

    def fit(self, others: int) -> WeightPlan:
        """The plan that leaves `others` bytes for everything except state. Moves the weights if the last plan does not.
        Raises DeviceError if there is no such plan."""
        others += self.state_bytes
        if self.plan is not None and self.plan.nbytes + others <= self.device_memory:
            return self.plan
        self._driver.synchronize_all()
        self.plan = None
        plan = plan_weights(self._program, self.device_memory - others)
        for memory in (self.resident, *self._slots):
            memory.free()
        self._slot_steps.clear()
        self._slot_steps.extend(None for _ in range(plan.slots))
        self._next_slot = 0
        self.resident.hold(plan.resident_bytes)
        for start, place in plan.resident.items():
            self._copy(start, self.resident.address + place, 0)
        for slot in self._slots[: plan.slots]:
            slot.hold(plan.slot_bytes)
        self._driver.synchronize(0)
        streamed = sum(self._nbytes.values()) - sum(self._nbytes[s] for s in plan.resident)
        if streamed:
            _log.info("%d bytes of weights stay on the GPU, %d come from the host in each call, for %d steps",
                      plan.resident_bytes, streamed, len(plan.streamed))  # fmt: skip
        self.plan = plan
        return plan

    def notes(self) -> list[str]:
        """A description of the copies of each run, after the first one has placed the weights."""
        if self.plan is None or not self.plan.streamed:
            return []
        heading = f"device_memory {self.device_memory}: {self.plan.resident_bytes} bytes of weights stay on the GPU"
        lines = [f"{heading}; copied from the host in each call:"]
        for number, places in self.plan.streamed.items():
            label = self._program.steps[number].label
            lines.append(f"  step {number} {label}: {sum(self._nbytes[start] for start in places)} bytes")
        return lines

    def launch(
        self, parts: Sequence[Node | Exchange], places: Places, stream: int, seconds: dict[int, float] | None = None
    ) -> None:
        """Launch kernels and collectives one by one. Each waits for its weights, while those of the next one are
        copied.

        seconds: receives the seconds of each step. If given, the copies for a step do not start early and are part of
        its time.
        """
        driver = self._driver
        begin, end = (driver.event(timed=True) for _ in range(2)) if seconds is not None else (0, 0)
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            if seconds is not None:
                driver.record(begin, stream)
            weights = self.begin(part.number, stream)
            if isinstance(part, Node):
                part.point(places, weights)
                driver.launch_kernel(part.params, stream)
            else:
                part.run(places, stream, weights)
            self.end(part.number, stream)
            if seconds is not None:
                driver.record(end, stream)
                driver.synchronize(stream)
                seconds[part.number] = seconds.get(part.number, 0.0) + driver.seconds(begin, end)
            elif after is not None:
                self.load(after.number)
        for event in (begin, end) if seconds is not None else ():
            driver.drop_event(event)

    def load(self, step: int) -> None:
        """Start to copy the weights of a step, if they are streamed and not in a slot."""
        assert self.plan is not None
        if step not in self.plan.streamed or step in self._slot_steps:
            return
        slot, self._next_slot = self._next_slot, (self._next_slot + 1) % self.plan.slots
        self._driver.wait(self._stream, self._ended[slot])
        self._slot_steps[slot] = step
        for start, place in self.plan.streamed[step].items():
            self._copy(start, self._slots[slot].address + place, self._stream)
        self._driver.record(self._copied[slot], self._stream)

    def begin(self, step: int, stream: int) -> Callable[[int], int]:
        """Let the stream wait for the weights of a step. Returns a function from the offset of a weight to its
        address."""
        assert self.plan is not None
        self.load(step)
        slot = self._slot_steps.index(step) if step in self.plan.streamed else None
        if slot is not None:
            self._driver.wait(stream, self._copied[slot])
        slot_places = {} if slot is None else self.plan.streamed[step]
        base = 0 if slot is None else self._slots[slot].address
        resident = self.plan.resident

        def address(offset: int) -> int:
            start = self._starts[bisect_right(self._starts, offset) - 1]
            place = self.resident.address + resident[start] if start in resident else base + slot_places[start]
            return place + offset - start

        return address

    def end(self, step: int, stream: int) -> None:
        """Record that the kernel that reads the weights of a step was launched."""
        if step in self._slot_steps:
            self._driver.record(self._ended[self._slot_steps.index(step)], stream)

    def _copy(self, start: int, address: int, stream: int) -> None:
        source = self._weights[start : start + self._nbytes[start]]
        self._driver.to_device(address, source.ctypes.data, source.nbytes, stream)

    def free(self) -> None:
        for memory in (self.resident, *self._slots):
            memory.free()
        for event in (*self._copied, *self._ended):
            self._driver.drop_event(event)
        self._driver.drop_stream(self._stream)
