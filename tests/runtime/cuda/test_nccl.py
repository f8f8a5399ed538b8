"""Collectives of GPUs through an NCCL and a driver that are not there: what is asked of both, and in which order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ingot.runtime import tensors
from ingot.runtime.cuda import context as contexts
from ingot.runtime.cuda import device as cuda
from ingot.runtime.cuda import nccl
from ingot.runtime.cuda.device import Loaded
from ingot.runtime.cuda.nccl import Communicators, Nccl
from ingot.runtime.program import Buffer, Collective, Step
from ingot.runtime.ranks import current
from ingot.runtime.ranks.process_group import ProcessGroup, SingleProcess
from ingot.support.errors import DeviceError
from tests.runtime.cuda.fake import FakeDriver
from tests.runtime.cuda.programs import BOTH, KERNELS, summed
from tests.runtime.cuda.test_device import run
from tests.runtime.cuda.test_streaming import COUNT, SIZES, X, chain, expected_sum


class Function:
    """A function of a library: ctypes sets its types."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.argtypes: object = None
        self.restype: object = None

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


def number(value: Any) -> int:
    return value if isinstance(value, int) else value.value or 0


class FakeNccl:
    """libnccl for one GPU. calls: names and numbers in their order."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver, self.calls, self.status = driver, list[tuple[Any, ...]](), 0
        self.ncclGetErrorString = Function(lambda status: b"unhandled system error")

    def __getattr__(self, name: str) -> Function:
        function = Function(lambda *args: self._call(name, *args))
        setattr(self, name, function)
        return function

    def _call(self, name: str, *args: Any) -> int:
        if name == "ncclGetUniqueId":
            self.calls.append((name,))
            ctypes.memset(args[0]._obj.internal, 7, 128)
            return self.status
        if name == "ncclCommInitRank":
            communicator, size, unique_id, index = args
            self.calls.append((name, number(size), bytes(unique_id)[:2], number(index)))
            communicator._obj.value = 4242
            return self.status
        numbers = tuple(map(number, args))
        self.calls.append((name, *numbers))
        if name == "ncclAllReduce":
            source, target, count = numbers[:3]
            self._run(lambda: ctypes.memmove(target, source, 4 * count))
        return self.status

    def _run(self, act: Callable[[], object]) -> None:
        if self._driver.capture is None:
            act()
        else:
            self._driver.capture.append(lambda: (act(), None)[1])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeDriver, FakeNccl]:
    driver = FakeDriver(KERNELS)
    library = FakeNccl(driver)
    fake_nccl = Nccl(library)  # type: ignore[arg-type]
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    monkeypatch.setattr(nccl, "_communicators", [])
    monkeypatch.setattr(current, "_current", [SingleProcess()])
    monkeypatch.setattr(
        cuda, "communicators_of", lambda program, driver: nccl.communicators_of(program, driver, lambda: fake_nccl)
    )
    return driver, library


def names(library: FakeNccl) -> list[str]:
    return [call[0] for call in library.calls]


def test_a_sum_is_a_node_of_the_graph(fake: tuple[FakeDriver, FakeNccl]) -> None:
    _, library = fake
    loaded, x = Loaded(summed((0,))), np.arange(5, dtype=np.float32)
    assert library.calls == [("ncclGetUniqueId",), ("ncclCommInitRank", 1, b"\7\7", 0)]
    np.testing.assert_array_equal(run(loaded, x), 4 * x)
    assert names(library)[2:] == ["ncclAllReduce"] * 2  # while the graph is made
    np.testing.assert_array_equal(run(loaded, x + 1), 4 * (x + 1))
    assert names(library)[2:] == ["ncclAllReduce"] * 2, "the graph is launched again as it is"
    source, target, count, dtype, reduction, communicator, _ = library.calls[2][1:]
    assert (count, dtype, reduction, communicator) == (5, 7, 0, 4242)
    assert source != target


def test_sums_come_one_after_the_other(fake: tuple[FakeDriver, FakeNccl]) -> None:
    driver, _ = fake
    run(Loaded(summed((0,))), np.arange(5, dtype=np.float32))
    first, second = sorted(driver.before)
    assert driver.before[second] == (first,)  # although both need no more than the first kernel


def test_graphs_are_made_anew_where_a_sum_would_move(fake: tuple[FakeDriver, FakeNccl]) -> None:
    driver, library = fake
    loaded = Loaded(summed((0,)))
    for n in (5, 4000, 5):  # the arena grows
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(run(loaded, x), 4 * x)
    assert names(library)[2:] == ["ncclAllReduce"] * 6
    kinds = {kind for kind, _ in driver.live}
    assert kinds == {"memory", "stream", "event", "module", "graph", "executable"}


def test_a_profile_has_the_time_of_a_sum(fake: tuple[FakeDriver, FakeNccl]) -> None:
    loaded, readings = Loaded(summed((0,))), np.zeros(5, np.int64)
    loaded.set_profile(readings)
    run(loaded, np.arange(5, dtype=np.float32))
    seconds = np.diff(readings) / loaded.ticks_per_second
    assert (seconds > 0).all()


def test_weights_are_streamed_between_sums(fake: tuple[FakeDriver, FakeNccl]) -> None:
    _, library = fake
    plain = chain(SIZES)
    lives = [replace(b, first_step=0, last_step=len(SIZES)) if b.kind == "arena" else b for b in plain.buffers]
    temp = Buffer(99, "arena", 4 * COUNT, 0, len(SIZES), device="cuda")
    inner = plain.steps[3]
    reduced = Collective("all_reduce", ((0,),), "f32", "sum")
    halves = (
        replace(inner, args=(*inner.args[:2], (99, 0))),
        Step("all_reduce", ((99, 0), inner.args[2]), (COUNT,), label="sum", device="cuda", collective=reduced),
    )
    program = replace(plain, buffers=(*lives, temp), steps=(*plain.steps[:3], *halves, *plain.steps[4:]))
    loaded = Loaded(program, int(0.75 * program.weights.nbytes))
    for x in (X, X + 1):
        np.testing.assert_array_equal(run(loaded, x), expected_sum(program, x))
    assert names(library)[2:] == ["ncclAllReduce"] * 2
    assert loaded._bounded is not None and loaded._bounded.plan is not None and loaded._bounded.plan.streamed


def test_a_captured_call_begins_its_sums_on_the_stream(
    fake: tuple[FakeDriver, FakeNccl], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, library = fake
    torch = pytest.importorskip("torch")
    loaded, x, y = Loaded(summed((0,))), np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    monkeypatch.setattr(tensors, "current_stream", lambda: 77)
    memory = torch.zeros(1 << 12, dtype=torch.uint8)
    monkeypatch.setattr(contexts, "_scratch", lambda nbytes: memory)
    driver.capturing.add(77)
    context = loaded.claim()
    context.run(context.bind((x.shape,)), [x.ctypes.data, y.ctypes.data], BOTH)
    context.release()
    assert [call[-1] for call in library.calls if call[0] == "ncclAllReduce"] == [77, 77]


@pytest.mark.parametrize(
    ("collective", "calls"),
    [
        (
            Collective("all_gather", ((0, 1),), "bf16"),
            [("ncclAllGather", 1024, 4096, 12, 1, 9, 3)],
        ),
        (
            Collective("reduce_scatter", ((0, 1),), "bf16", "max"),
            [("ncclReduceScatter", 1024, 4096, 3, 9, 2, 9, 3)],
        ),
        (
            Collective("all_to_all", ((0, 1),), "f32"),
            [
                ("ncclGroupStart",),
                ("ncclSend", 1024, 12, 1, 0, 9, 3),
                ("ncclRecv", 4096, 12, 1, 0, 9, 3),
                ("ncclSend", 1036, 12, 1, 1, 9, 3),
                ("ncclRecv", 4108, 12, 1, 1, 9, 3),
                ("ncclGroupEnd",),
            ],
        ),
        (
            Collective("collective_permute", ((0, 1, 2),), "i16", shift=1),
            [
                ("ncclGroupStart",),
                ("ncclSend", 1024, 12, 1, 2, 9, 3),
                ("ncclRecv", 4096, 12, 1, 0, 9, 3),
                ("ncclGroupEnd",),
            ],
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Collective) else "",
)
def test_calls_of_other_collectives(collective: Collective, calls: list[tuple[Any, ...]]) -> None:
    library = FakeNccl(FakeDriver(KERNELS))
    Nccl(library).run(collective, 9, 1, 1024, 4096, 6, 3)  # type: ignore[arg-type]
    assert library.calls == calls


def test_types_that_nccl_cannot_reduce_are_refused() -> None:
    library = FakeNccl(FakeDriver(KERNELS))
    with pytest.raises(DeviceError, match="i16"):
        Nccl(library).run(Collective("all_reduce", ((0,),), "i16", "sum"), 9, 0, 0, 0, 1, 0)  # type: ignore[arg-type]


def test_errors_are_in_the_words_of_nccl() -> None:
    library = FakeNccl(FakeDriver(KERNELS))
    library.status = 2
    with pytest.raises(DeviceError, match=r"ncclCommInitRank.*unhandled system error"):
        Nccl(library).communicator(bytes(128), 1, 0)  # type: ignore[arg-type]


class Broken(ProcessGroup):
    """A group of two whose other rank ends after it has joined."""

    transport, rank, size = "test", 1, 2
    ended = False

    def gather(self, data: bytes, ranks: object = None) -> list[bytes]:
        return [data, data]

    def check(self) -> None:
        if self.ended:
            raise DeviceError("a group of processes", expected="all ranks at work", got="rank 0 has stopped")


def test_a_rank_that_ends_aborts_the_communicators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_WATCH_SECONDS", 0.01)
    driver, group = FakeDriver(KERNELS), Broken()
    library = FakeNccl(driver)
    communicators = Communicators(Nccl(library), driver, group)  # type: ignore[arg-type]
    collective = Collective("all_reduce", ((0, 1),), "f32", "sum")
    communicators.make(collective)
    communicators.check()
    group.ended = True
    communicators._watcher.join(10)
    assert ("ncclCommAbort", 4242) in library.calls
    with pytest.raises(DeviceError, match="rank 0 has stopped"):
        communicators.run(collective, 0, 0, 0, 0)
