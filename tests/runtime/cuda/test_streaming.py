"""Weights within a bound of device memory, on a driver that is not there."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ingot.runtime.cuda import device as cuda
from ingot.runtime.cuda.device import DEVICE, Loaded
from ingot.runtime.cuda.streaming import SLOTS, plan_weights, weight_ranges
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Buffer, Program, Step, TensorSpec
from ingot.support.errors import DeviceError, InputError
from tests.runtime.cuda.fake import FakeDriver
from tests.runtime.cuda.programs import KERNELS, code
from tests.runtime.cuda.test_device import run

COUNT = 512  # of floats: 2 KiB


class Metered(FakeDriver):
    """peak: the most bytes that were held at a time. copied: bytes to the device."""

    def __init__(self) -> None:
        super().__init__(KERNELS)
        self.sizes: dict[int, int] = {}
        self.peak = self.copied = 0

    def allocate(self, nbytes: int) -> int:
        address = super().allocate(nbytes)
        self.sizes[address] = nbytes
        self.peak = max(self.peak, sum(self.sizes.values()))
        return address

    def free(self, address: int) -> None:
        del self.sizes[address]
        super().free(address)

    def to_device(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self.copied += nbytes
        super().to_device(address, source, nbytes, stream)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Metered:
    driver = Metered()
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    return driver


def chain(sizes: list[int]) -> Program:
    """y = x + the sum of the weights' beginnings: a step for each weight, of `sizes` floats >= COUNT."""
    weights = np.random.default_rng(0).standard_normal(sum(sizes)).astype(np.float32)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) * 4
    shape = (COUNT,)
    count = len(sizes)
    buffers = [Buffer(0, "input", COUNT * 4), Buffer(1, "output", COUNT * 4)]
    buffers += [
        Buffer(2 + i, "weight", n * 4, offset=int(start))
        for i, (n, start) in enumerate(zip(sizes, starts, strict=True))
    ]
    temps = [0, *(2 + count + i for i in range(count - 1)), 1]
    buffers += [Buffer(2 + count + i, "arena", COUNT * 4, i, i + 1) for i in range(count - 1)]
    steps = [
        Step("add", ((temps[i], 0), (2 + i, 0), (temps[i + 1], 0)), (COUNT,), COUNT, f"add {i}") for i in range(count)
    ]
    result = Program(
        symbols=(), inputs=(TensorSpec("x", "f32", shape),), outputs=(TensorSpec("y", "f32", shape),),
        buffers=tuple(replace(b, device="cuda") for b in buffers),
        steps=tuple(replace(s, device="cuda") for s in steps),
        code={"cuda": code()}, weights=weights.view(np.uint8),
    )  # fmt: skip
    result.check()
    return result


def expected_sum(program: Program, x: np.ndarray) -> np.ndarray:
    weights = program.weights.view(np.float32)
    for start in sorted(weight_ranges(program)):
        x = x + weights[start // 4 : start // 4 + COUNT]
    return x


X = np.linspace(-1, 1, COUNT, dtype=np.float32)
SIZES = [1024, 4096, 512, 2048, 1024, 4096, 640, 1024]


@pytest.mark.parametrize("share", [0.95, 0.75, 0.6])
def test_a_model_that_does_not_fit_runs_right_within_its_bound(fake: Metered, share: float):
    program = chain(SIZES)
    bound = int(program.weights.nbytes * share)
    loaded = Loaded(program, bound)
    for x in (X, X + 1):
        np.testing.assert_array_equal(run(loaded, x), expected_sum(program, x))
    assert loaded._bounded is not None
    plan = loaded._bounded.plan
    assert plan is not None and plan.streamed
    others = loaded.arena_bytes + 2 * X.nbytes  # the argument and the result are staged
    assert fake.peak <= bound
    assert abs(fake.peak - plan.nbytes - others) <= 0.05 * fake.peak


def test_twice_the_allowed_memory_streams_what_it_must_and_no_more(fake: Metered):
    program = chain([1024] * 40)
    bound = program.weights.nbytes // 2
    loaded = Loaded(program, bound)
    np.testing.assert_array_equal(run(loaded, X), expected_sum(program, X))
    before = fake.copied
    np.testing.assert_array_equal(run(loaded, X), expected_sum(program, X))
    assert loaded._bounded is not None and loaded._bounded.plan is not None
    streamed = program.weights.nbytes - loaded._bounded.plan.resident_bytes
    assert fake.copied - before <= streamed + X.nbytes  # slots may still hold some
    room = bound - loaded.arena_bytes - 2 * X.nbytes - SLOTS * 4096
    assert loaded._bounded.plan.resident_bytes > room - 4096


def test_what_fits_stays_and_runs_as_without_a_bound(fake: Metered):
    program = chain(SIZES)
    loaded = Loaded(program, 2 * program.weights.nbytes)
    np.testing.assert_array_equal(run(loaded, X), expected_sum(program, X))
    copied = fake.copied
    np.testing.assert_array_equal(run(loaded, X), expected_sum(program, X))
    assert fake.copied - copied == X.nbytes
    assert loaded._bounded is not None and loaded._bounded.plan is not None and not loaded._bounded.plan.streamed


def test_a_step_that_needs_more_than_the_bound_is_an_error(fake: Metered):
    program = chain(SIZES)
    with pytest.raises(DeviceError, match="device_memory: expected 16384 bytes for weights"):
        run(Loaded(program, 20_000), X)


def test_random_programs_run_right_or_are_refused(fake: Metered):
    rng = np.random.default_rng(1)
    count = 0
    for _ in range(60):
        program = chain([int(n) for n in rng.integers(1, 9, rng.integers(1, 12)) * COUNT])
        bound = int(program.weights.nbytes * rng.uniform(0.2, 1.3)) + 3 * X.nbytes
        loaded = Loaded(program, bound)
        try:
            np.testing.assert_array_equal(run(loaded, X), expected_sum(program, X))
        except DeviceError:
            biggest = max(weight_ranges(program).values())
            assert biggest + loaded.arena_bytes + 2 * X.nbytes > bound - SLOTS * 4096
            continue
        count += 1
    assert count > 20


def test_plans_keep_every_byte_apart():
    program = chain(SIZES)
    nbytes = weight_ranges(program)
    plan = plan_weights(program, int(program.weights.nbytes * 0.75))
    for places, size in [(plan.resident, plan.resident_bytes), *((p, plan.slot_bytes) for p in plan.streamed.values())]:
        ends = sorted((place, place + nbytes[start]) for start, place in places.items())
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends)) and ends[-1][1] <= size
    assert set(plan.resident) | {s for p in plan.streamed.values() for s in p} == set(nbytes)


def test_steps_are_timed_and_all_is_given_back(fake: Metered):
    program = chain(SIZES)
    model = CompiledModel(program, device_memory=int(program.weights.nbytes * 0.75))
    np.testing.assert_array_equal(model(X), expected_sum(program, X))
    rows = model.profile(X)
    assert [label for label, _ in rows] == [f"add {i}" for i in range(len(SIZES))]
    assert all(seconds == pytest.approx(COUNT) for _, seconds in rows)  # a second for each block
    del model
    import gc

    gc.collect()
    assert not fake.sizes and not {kind for kind, _ in fake.live} & {"memory", "stream", "event"}


def test_a_bound_is_for_devices_with_memory_of_their_own(fake: Metered):
    with pytest.raises(InputError, match="bytes > 0"):
        DEVICE.load(chain(SIZES), None, 0)
    from ingot.runtime.cpu.device import DEVICE as CPU

    with pytest.raises(InputError, match="memory of its own"):
        CPU.load(chain(SIZES), None, 1 << 30)
