"""Programs on a GPU through a driver that is not there: what is launched, copied and freed, and in which order."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ingot.runtime import describe, tensors
from ingot.runtime.cuda import context as contexts
from ingot.runtime.cuda import device as cuda
from ingot.runtime.cuda import graphs, runs
from ingot.runtime.cuda.device import CudaDevice, Loaded
from ingot.runtime.program import Buffer, Program, TensorSpec
from ingot.runtime.state import StateTensors
from ingot.support.cubins import KernelCode, MatrixCode, pack, unpack
from ingot.support.errors import ArtifactError, DeviceError, InputError
from tests.runtime.cuda.fake import FakeDriver, run
from tests.runtime.cuda.programs import (
    BOTH,
    H100,
    HALO,
    KERNELS,
    branches,
    branching,
    code,
    counting,
    first_of_positive,
    nested_loops,
    twice,
    twice_of_halo,
    until_100,
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver(KERNELS)
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    return driver


def test_kernels_run_in_order_on_copies_of_host_arrays(fake: FakeDriver) -> None:
    x = np.arange(5, dtype=np.float32)
    loaded = Loaded(twice())
    np.testing.assert_array_equal(run(loaded, x), 4 * x)
    assert [entry[0] for entry in fake.log[-4:]] == ["to_device", "launch", "launch", "to_host"]
    first, second = sorted(fake.nodes)
    assert fake.nodes[second].before == (first,)
    assert fake.nodes[first].params.grid[0] == 5


def test_branches_run_side_by_side(fake: FakeDriver) -> None:
    """Each kernel is behind what it reads from, and no other."""
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(run(Loaded(branches()), x), 4 * x)
    first, second, *_ = handles = list(fake.nodes)
    assert [fake.nodes[h].before for h in handles] == [(), (), (first,), (second,)]
    assert [fake.nodes[h].awaits for h in handles] == [True] * 4


def test_a_second_call_reuses_the_graph_and_other_sizes_have_their_own(fake: FakeDriver) -> None:
    loaded = Loaded(twice())
    x = np.arange(5, dtype=np.float32)
    run(loaded, x)
    nodes = len(fake.nodes)
    np.testing.assert_array_equal(run(loaded, x + 1), 4 * (x + 1))
    assert len(fake.nodes) == nodes
    np.testing.assert_array_equal(run(loaded, x[:3].copy()), 4 * x[:3])
    assert len(fake.nodes) == 2 * nodes


def test_arrays_on_the_gpu_are_used_where_they_lie(fake: FakeDriver) -> None:
    loaded, x = Loaded(twice()), np.arange(4, dtype=np.float32)
    places = [fake.allocate(16), fake.allocate(16), fake.allocate(16)]
    ctypes.memmove(places[0], x.ctypes.data, 16)
    context = loaded.claim()
    fake.log.clear()
    context.run(context.bind(((4,),)), places[:2], BOTH)
    assert {entry[0] for entry in fake.log} == {"launch"}
    np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * 4).from_address(places[1])), 4 * x)
    fake.log.clear()
    context.run(context.bind(((4,),)), [places[0], places[2]], BOTH)
    assert [entry[0] for entry in fake.log] == ["update", "launch", "launch"], "only the node that writes the result"


def test_a_call_like_the_last_one_is_a_launch_alone(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, places = Loaded(twice()), [fake.allocate(16) for _ in range(3)]
    context = loaded.claim()
    instance = context.bind(((4,),))
    events: list[str] = []
    monkeypatch.setattr(fake, "record", lambda event, stream: events.append("event"))
    for name in ("update", "launch"):
        monkeypatch.setattr(fake, name, lambda *args, name=name: events.append(name))
    through = context._through
    monkeypatch.setattr(context, "_through", lambda *args: (events.append("all"), through(*args))[1])
    for pointers in (places[:2], places[:2], [places[0], places[2]], [places[0], places[2]]):
        context.run(instance, pointers, BOTH)
    assert events == ["all", "launch", "launch", "update", "launch", "launch"], "a node moves with its result"
    events.clear()
    context.run(context.bind(((3,),)), places[:2], BOTH)
    context.run(instance, places[:2], BOTH)
    context.run(instance, [places[0], places[2] + 4], BOTH)
    assert events == ["all", "launch", "all", "launch", "all", "update", "launch"], "other sizes, no address"


def test_results_that_take_turns_have_a_graph_each(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a few; then nothing but launches is asked for. Results at ever new addresses move one graph."""
    monkeypatch.setattr(graphs, "MAX_COPIED_NODES", 1)
    loaded, places = Loaded(twice()), [fake.allocate(16) for _ in range(8)]
    context = loaded.claim()
    x = np.arange(4, dtype=np.float32)
    ctypes.memmove(places[0], x.ctypes.data, 16)

    def updates(results: list[int]) -> int:
        fake.log.clear()
        for result in results:
            ctypes.memset(result, 0, 16)
            context.run(context.bind(((4,),)), [places[0], result], BOTH)
            np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * 4).from_address(result)), 4 * x)
        return fake.log.count(("update",))

    a, b, c, d, e, f, g = places[1:]
    assert updates([a, b, a]) == 1, "a copy of the graph as it was built"
    assert updates([b, a, b, a]) == 0
    assert updates([c, d, e, f, g]) == 5
    assert sum(kind == "executable" for kind, _ in fake.live) == 2
    updates([f, e, d, c, b, a] * 2)
    assert sum(kind == "executable" for kind, _ in fake.live) <= graphs.MIN_COPIES
    assert sum(kind == "graph" for kind, _ in fake.live) == 1
    context.release()
    del loaded
    assert {kind for kind, _ in fake.live} == {"memory"}, "the arguments"


def test_layers_that_share_a_program_have_a_graph_each(fake: FakeDriver) -> None:
    """torch.compile makes one program of equal layers: 48 calls of a step at 48 sets of addresses."""
    loaded, places = Loaded(twice()), [fake.allocate(16) for _ in range(49)]
    context = loaded.claim()
    for turn in range(4):
        fake.log.clear()
        for place in places[1:]:
            context.run(context.bind(((4,),)), [place, places[0]], BOTH)
        assert (fake.log.count(("update",)) == 0) == (turn > 1), "a turn builds, and one copies"
    context.release()


def test_kernels_that_await_what_they_read_start_early(fake: FakeDriver) -> None:
    program = twice()
    kernels = {"double": KernelCode("double", b"cubin", 128, 0, 3, (1,), awaits=True)}
    loaded = Loaded(replace(program, code={"cuda": pack(H100, {"sm_90a": kernels, "sm_80": kernels})}))
    run(loaded, np.arange(4, dtype=np.float32))
    assert [node.awaits for _, node in sorted(fake.nodes.items())] == [True, True]
    fake.nodes.clear()
    plain = {"double": KernelCode("double", b"cubin", 128, 0, 3, (1,))}
    two_variants = replace(program, code={"cuda": pack(H100, {"sm_90a": plain, "sm_80": plain})})
    run(Loaded(two_variants), np.array([1, 2], np.float32))
    assert not any(node.awaits for node in fake.nodes.values())


def test_matrices_are_told_by_maps_that_move_with_their_memory(fake: FakeDriver) -> None:
    program, places = twice(), [fake.allocate(32) for _ in range(3)]
    # from the second element on: 4 bytes
    matrix = MatrixCode(0, 6, rows=2, columns=2, stride=16, offset=4, box_rows=1, box_columns=2, swizzle=0)
    kernels = {"matrix": KernelCode("matrix", b"cubin", 128, 0, 3, (1,), matrices=(matrix,))}
    steps = (replace(program.steps[0], kernel="matrix", args=((0, 0), (1, 0))),)
    packed = pack(H100, {"sm_90a": kernels, "sm_80": kernels})
    assert unpack(packed, "sm_90a") == kernels
    loaded = Loaded(replace(program, steps=steps, code={"cuda": packed}))
    context = loaded.claim()
    x = np.arange(8, dtype=np.float32)
    for source, target in ((0, 1), (2, 1), (2, 0)):
        ctypes.memmove(places[source], x.ctypes.data, 32)
        context.run(context.bind(((4,),)), [places[source], places[target]], BOTH)
        got = np.ctypeslib.as_array((ctypes.c_float * 4).from_address(places[target]))
        np.testing.assert_array_equal(got, 2 * x[1:5])


def test_a_matrix_of_no_parameter_is_refused() -> None:
    matrix = MatrixCode(3, 6, 2, 2, 16, 0, 1, 2, 0)
    with pytest.raises(ArtifactError, match="numbers of 3 parameters"):
        KernelCode.of_record(KernelCode("double", b"cubin", 128, 0, 3, (1,), matrices=(matrix,)).record())


def test_unaligned_tensors_are_copied_first(fake: FakeDriver) -> None:
    loaded, x = Loaded(twice()), np.arange(4, dtype=np.float32)
    place, result = fake.allocate(32) + 4, fake.allocate(16)
    ctypes.memmove(place, x.ctypes.data, 16)
    context = loaded.claim()
    fake.log.clear()
    context.run(context.bind(((4,),)), [place, result], BOTH)
    assert [entry[0] for entry in fake.log] == ["copy", "launch", "launch"]
    np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * 4).from_address(result)), 4 * x)


def test_a_host_argument_beside_those_on_the_gpu(fake: FakeDriver) -> None:
    """Pageable memory is free again when its copy has been asked for, pinned memory is not."""
    loaded, x, result = Loaded(twice()), np.arange(4, dtype=np.float32), fake.allocate(16)
    context = loaded.claim()
    for waits in (False, True):
        fake.pinned = {x.ctypes.data} if waits else set()
        fake.log.clear()
        context.run(context.bind(((4,),)), [x.ctypes.data, result], [False, True])
        assert [entry[0] for entry in fake.log] == ["to_device", "launch", "launch", *["synchronize"] * waits]
    np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * 4).from_address(result)), 4 * x)


def test_a_context_goes_from_stream_to_stream_in_order(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, places = Loaded(twice()), [fake.allocate(16), fake.allocate(16)]
    context, streams = loaded.claim(), itertools.chain([7, 7], itertools.repeat(8))
    monkeypatch.setattr(tensors, "current_stream", lambda: next(streams))
    for _ in range(3):
        context.run(context.bind(((4,),)), places, BOTH)
    assert [entry for entry in fake.log if entry[0] == "wait"] == [("wait", 8)]


class Scratch:
    """As a tensor of PyTorch's, from a fake driver."""

    def __init__(self, fake: FakeDriver, nbytes: int) -> None:
        self._address = fake.allocate(nbytes)

    def data_ptr(self) -> int:
        return self._address


def values(address: int, count: int = 4) -> np.ndarray:
    """Numbers of a fake driver's memory."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def test_capture_adds_nodes_in_memory_of_the_callers_graph(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the edges of our own graphs, behind what was captured before; nothing runs until the graph does."""
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    scratch: list[Scratch] = []  # of the caller's pool

    def allocate(nbytes: int) -> Scratch:
        scratch.append(Scratch(fake, nbytes))
        return scratch[-1]

    monkeypatch.setattr(contexts, "_scratch", allocate)
    loaded, x = Loaded(branches()), np.arange(4, dtype=np.float32)
    places = [fake.allocate(16), fake.allocate(32) + 4]
    context = loaded.claim()
    instance, before = context.bind(((4,),)), {*fake.live}
    fake.capturing.add(7)
    fake.log.clear()
    fake.copy(places[0], places[0], 16, 7)  # the caller's
    (_, first), nodes_before = fake.captured_graph(7), {*fake.nodes}
    context.run(instance, places, BOTH)
    fake.copy(places[1], places[1], 16, 7)
    assert not fake.log and {kind for kind, _ in fake.live - before} == {"memory"} and len(scratch) == 1
    a, b, c, d = sorted(fake.nodes.keys() - nodes_before)
    assert [fake.nodes[n].before for n in (a, b, c, d)] == [tuple(first), tuple(first), (a,), (b,)]
    assert [fake.nodes[n].awaits for n in (a, b, c, d)] == [False, False, True, True]
    for shift in (0, 3):
        values(places[0])[:] = x + shift
        fake.replay(7)
        np.testing.assert_array_equal(values(places[1]), 4 * (x + shift))
    with pytest.raises(DeviceError, match="values on the GPU"):
        context.run(instance, [x.ctypes.data, places[1]], [False, True])
    fake.capturing.clear()  # the model goes on as before
    values(places[1])[:] = 0
    context.run(instance, places, BOTH)
    np.testing.assert_array_equal(values(places[1]), 4 * (x + 3))


def test_a_captured_model_outlives_its_last_reference(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    monkeypatch.setattr(contexts, "_scratch", lambda nbytes: Scratch(fake, nbytes))
    places = [fake.allocate(16), fake.allocate(32)]
    loaded = Loaded(branches())
    context = loaded.claim()
    fake.capturing.add(7)
    context.run(context.bind(((4,),)), places, BOTH)
    fake.capturing.clear()
    held = {*fake.live}
    del loaded, context
    gc.collect()
    assert {*fake.live} == held
    values(places[0])[:] = np.arange(4)
    fake.replay(7)
    np.testing.assert_array_equal(values(places[1]), 4 * np.arange(4))


def test_loops_are_captured_unless_the_host_decides(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    monkeypatch.setattr(contexts, "_scratch", lambda nbytes: Scratch(fake, nbytes))
    places = [fake.allocate(16) for _ in range(2)]
    for version, stream in ((12080, 7), (12030, 8)):
        fake.version = version
        monkeypatch.setattr(tensors, "current_stream", lambda stream=stream: stream)
        loaded = Loaded(until_100())
        context = loaded.claim()
        instance = context.bind(((4,),))
        fake.capturing.add(stream)
        if version < 12040:
            with pytest.raises(DeviceError, match="loops or branches that the host decides"):
                context.run(instance, places, BOTH)
            continue
        context.run(instance, places, BOTH)
        for start, end in ((3, 192), (101, 202)):
            values(places[0])[:] = start
            fake.replay(7)
            np.testing.assert_array_equal(values(places[1]), np.full(4, end))
        fake.capturing.clear()


def test_models_on_one_stream_share_an_arena_and_halos(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halos of one geometry are filled once. What grows moves, and the graphs with it; the last model frees it."""
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    models, places = (
        [Loaded(make_program()) for make_program in (twice, twice, twice_of_halo, twice_of_halo)],
        [fake.allocate(512)],
    )
    places.append(fake.allocate(512))
    before = len(fake.live)
    contexts_of = [model.claim() for model in models]
    for count in (4, 100, 4):
        values(places[0], count)[:] = np.arange(count)
        for number in range(len(contexts_of)):
            contexts_of[number].run(contexts_of[number].bind(((count,),)), places, BOTH)
            want = 4 * np.arange(count) if number < 2 else np.full(count, 2 * HALO)
            np.testing.assert_allclose(values(places[1], count), want, rtol=1e-6)
    assert [entry for entry in fake.log if entry[0] == "fill"] == [("fill", 0x3F, 64), ("fill", 0x3F, 448)]
    allocation_count = len(fake.live) - before
    assert sum(kind == "memory" for kind, _ in fake.live) == 2 + 4 + 3, "arguments, weights, an arena and two halos"
    assert allocation_count > 3 and [*fake.workspaces] == [7]
    del models, contexts_of
    gc.collect()
    assert {kind for kind, _ in fake.live} == {"memory"} and len(fake.live) == 2 and not fake.workspaces


def test_results_elsewhere_move_the_nodes_that_write_them(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call at addresses that were used before is a launch; the arena stays where it is."""
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    loaded, x, results = Loaded(twice()), fake.allocate(16), [fake.allocate(16) for _ in range(2)]
    context, addresses = loaded.claim(), list[int]()
    for number, choice in enumerate([0, 0, 1, 0, 1, 1]):
        values(x)[:] = number
        fake.log.clear()
        context.run(context.bind(((4,),)), [x, results[choice]], BOTH)
        np.testing.assert_array_equal(values(results[choice]), np.full(4, 4 * number))
        addresses.append(sum(entry == ("update",) for entry in fake.log))
    assert addresses == [0, 0, 1, 0, 0, 0], "the second copy is made for places that come again"


def test_times_of_steps_are_those_between_events(fake: FakeDriver) -> None:
    loaded, x = Loaded(twice()), np.arange(5, dtype=np.float32)
    readings = np.zeros(3, np.int64)
    loaded.set_profile(readings)
    np.testing.assert_array_equal(run(loaded, x), 4 * x)
    np.testing.assert_array_equal(readings / loaded.ticks_per_second, [0, 5, 10])
    loaded.set_profile(None)
    loops = Loaded(until_100())  # 64 doublings of the first of 2 elements: a start and six turns
    readings = np.zeros(6, np.int64)
    loops.set_profile(readings)
    run(loops, np.array([3, 1], np.float32))
    np.testing.assert_array_equal(np.diff(readings) / loops.ticks_per_second, [2, 6, 0, 10, 0])
    del loops, loaded
    assert not fake.live


# of x: what `branching` gives
BRANCHES = [([3, 1], [384, 128]), ([60, 1], [240, 4]), ([30, 40], [120, 160]), ([100, 7], [400, 28])]


@pytest.mark.parametrize(("version", "graph_count", "conditional_count"), [(12080, 1, 3), (12040, 3, 2), (12030, 7, 0)])
def test_loops_and_branches_are_conditional_nodes(
    fake: FakeDriver, version: int, graph_count: int, conditional_count: int
) -> None:
    """Or several graphs, and the host reads the flags, where the driver knows none, or none with two bodies."""
    fake.version = version
    loaded = Loaded(branching())
    for x, y in BRANCHES:
        fake.log.clear()
        np.testing.assert_array_equal(run(loaded, np.array(x, np.float32)), y)
        waits = sum(entry[0] == "to_host" for entry in fake.log)
        assert waits == 1 if graph_count == 1 else waits > 1, "the host reads the result alone"
    assert (sum(kind == "graph" for kind, _ in fake.live), len(fake.conditionals)) == (graph_count, conditional_count)
    del loaded
    assert not fake.live and not fake.conditionals


def test_nodes_inside_of_conditional_ones_move_with_their_memory(fake: FakeDriver) -> None:
    loaded, places = Loaded(branching()), [fake.allocate(16) for _ in range(3)]
    context = loaded.claim()
    for x, y in BRANCHES:
        for result in places[1:]:
            ctypes.memmove(places[0], np.array(x, np.float32).ctypes.data, 8)
            ctypes.memset(result, 0, 8)
            context.run(context.bind(((2,),)), [places[0], result], BOTH)
            np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * 2).from_address(result)), y)
    assert sum(kind == "graph" for kind, _ in fake.live) == 1


def test_plans_tell_what_becomes_of_jumps() -> None:
    older = "with a driver older than CUDA {} there are several graphs, and the host reads its flag"
    loop, branch = older.format("12.4"), older.format("12.8")
    assert describe.graphs(until_100()) == ["1 CUDA graph", f"  the loop that step 2 leaves is a WHILE node; {loop}"]
    assert describe.graphs(branching()) == [
        "1 CUDA graph",
        f"  the branch at step 1 is an IF node; {branch}",
        f"  the loop that step 4 leaves is a WHILE node; {loop}",
        f"  the branch at step 8 is an IF node; {loop}",
    ]
    assert describe.graphs(twice()) == ["1 CUDA graph"]


def test_sizes_that_steps_find_are_read_by_the_host(fake: FakeDriver) -> None:
    """Kernels behind them have as many chunks; those of none are passed over, and start nobody early."""
    program = first_of_positive()
    assert describe.graphs(program) == ["2 CUDA graphs", "  the host waits at step 2 for $p"]
    loaded = Loaded(program)
    context = loaded.claim()
    for x in ([1, -1, 2, 3, 4], [-1, -2, -3, -4, -5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [-9, 1, -9, -9, -9]):
        inputs = np.asarray(x, np.float32)
        y, count = np.zeros(6, np.float32), sum(e > 0 for e in x)
        instance = context.bind(((5,),))
        fake.log.clear()
        context.run(instance, [inputs.ctypes.data, y.ctypes.data])
        assert instance.actual_shapes() == [(count,)]
        np.testing.assert_array_equal(y[:count], 4 * inputs[:count])
        launched = [entry[2] for entry in fake.log if entry[:2] == ("launch", "double")]
        assert launched == [count] * (2 if count else 0)
    assert not any(node.awaits for node in fake.nodes.values())
    long_input, y = np.ones(9, np.float32), np.zeros(6, np.float32)
    instance = context.bind(((9,),))
    fake.log.clear()
    context.run(instance, [long_input.ctypes.data, y.ctypes.data])
    assert [entry[1] for entry in fake.log if entry[0] == "launch"] == ["positive", "sizes"]
    with pytest.raises(InputError, match="0 to 6"):
        instance.actual_shapes()
    context.release()
    del context, instance
    readings = np.zeros(len(program.steps) + 1, np.int64)
    loaded.set_profile(readings)
    run(loaded, np.array([1, 1, -1, 0, 0], np.float32))
    np.testing.assert_array_equal(np.diff(readings) / loaded.ticks_per_second, [1, 1, 0, 2, 2])


def test_loops_of_known_turns_are_one_graph(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether they go on; a captured stream has them, too. With more kernels the host follows the flags."""
    x, program = np.array([1, 2, 3], np.float32), nested_loops(("n", 1, "-"))
    assert describe.graphs(program)[0] == "1 CUDA graph" and "n - 1 turns" in describe.graphs(program)[1]
    loaded = Loaded(program)
    fake.log.clear()
    np.testing.assert_array_equal(run(loaded, x), 2 * 2**4 * x)
    launched = [entry[1] for entry in fake.log if entry[0] == "launch"]
    assert launched == ["double"] * 5
    np.testing.assert_array_equal(run(loaded, x[:1].copy()), 2 * x[:1])
    result = fake.allocate(12)
    data = fake.allocate(12)
    ctypes.memmove(data, x.ctypes.data, 12)
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    monkeypatch.setattr(contexts, "_scratch", lambda nbytes: Scratch(fake, nbytes))
    fake.capturing.add(7)
    context = loaded.claim()
    context.run(context.bind(((3,),)), [data, result], BOTH)
    context.release()
    fake.replay(7)
    np.testing.assert_array_equal(values(result, 3), 32 * x)
    readings = np.zeros(9, np.int64)
    loaded.set_profile(readings)
    run(loaded, x)
    np.testing.assert_array_equal(np.diff(readings) / loaded.ticks_per_second, [3, 0, 0, 0, 0, 12, 0, 0])
    monkeypatch.setattr(
        runs, "MAX_UNROLLED_KERNELS", 5
    )  # the outer loop's six kernels are more, the inner one's two are not
    fake.capturing.clear()
    capped, x = Loaded(program), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(run(capped, x), 2 * 4**3 * x)  # the flag is asked for: until 128
    assert len(fake.conditionals) == 1


@pytest.mark.parametrize("copied", ["", "as asked"])
def test_state_stays_on_the_gpu(fake: FakeDriver, copied: str) -> None:
    loaded, x = Loaded(counting(copied)), np.arange(5, dtype=np.float32)
    program = loaded._program
    state = StateTensors(program.state, loaded.store)
    for step in range(3):
        y, context = np.zeros_like(x), loaded.claim()
        fake.log.clear()
        context.run(context.bind((x.shape, *state.shapes)), [x.ctypes.data, *state.pointers, y.ctypes.data])
        operations = [entry[0] for entry in fake.log if entry[0] not in ("update", "allocate")]
        assert operations == ["to_device", *["launch"] * 3, "to_host"]
        state.exchange()
        context.release()
        del context
        np.testing.assert_array_equal(y, 4 * x)
        np.testing.assert_array_equal(state.read()["s"], np.arange(1, 5) * 2.0 ** (step + 1))
    state.write({"s": np.zeros(4, np.float32)})
    assert not state.read()["s"].any()
    assert "update" not in [entry[0] for entry in fake.log] or copied
    del loaded
    assert not fake.live


@pytest.mark.parametrize("build_program", [twice, until_100])
def test_all_is_given_back_with_the_model(fake: FakeDriver, build_program: Callable[[], Program]) -> None:
    loaded = Loaded(build_program())
    for n in range(1, 2 * contexts.MAX_SHAPE_SETS):  # some graphs are dropped on the way
        run(loaded, np.ones(n, np.float32))
    extra_claims = [loaded.claim(), loaded.claim()]
    while extra_claims:
        context = extra_claims.pop()
        context.bind(((3,),))
        context.release()
    assert {kind for kind, _ in fake.live} == {"memory", "stream", "event", "module", "graph", "executable"}
    gc.disable()  # without waiting for the collector of cycles
    del loaded
    gc.enable()
    assert not fake.live
    assert ("synchronize_all",) in fake.log


@pytest.mark.parametrize("name", ["allocate", "load", "function", "to_device"])
def test_a_model_that_cannot_be_loaded_keeps_nothing(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fails(*args: object) -> int:
        raise DeviceError("the GPU", expected=name, got="none")

    monkeypatch.setattr(fake, name, fails)
    with pytest.raises(DeviceError, match=name):
        Loaded(twice())
    assert not fake.live


def test_graphs_that_cannot_be_moved_are_made_anew(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, places = Loaded(twice()), [fake.allocate(16) for _ in range(3)]
    context = loaded.claim()
    instance = context.bind(((4,),))
    context.run(instance, places[:2], BOTH)

    def fails(*args: object) -> None:
        raise DeviceError("the GPU", expected="an update", got="none")

    monkeypatch.setattr(fake, "update", fails)
    with pytest.raises(DeviceError, match="an update"):
        context.run(instance, [places[0], places[2]], BOTH)
    x = np.arange(4, dtype=np.float32)
    ctypes.memmove(places[0], x.ctypes.data, 16)
    for result in (places[2], places[2]):
        ctypes.memset(result, 0, 16)
        context.run(instance, [places[0], result], BOTH)
        np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * 4).from_address(result)), 4 * x)


def test_graphs_of_the_latest_sizes_are_kept(fake: FakeDriver) -> None:
    """A bound on how many; those that were dropped are made anew."""
    loaded = Loaded(twice())
    for n in [*range(1, 3 * contexts.MAX_SHAPE_SETS), 1, 2]:
        x = np.full(n, n, np.float32)
        np.testing.assert_array_equal(run(loaded, x), 4 * x)
        assert sum(kind == "executable" for kind, _ in fake.live) <= contexts.MAX_SHAPE_SETS
    live_before = {*fake.live}
    run(loaded, np.ones(2, np.float32))
    assert live_before == {*fake.live}


def test_values_of_an_input_are_sizes(fake: FakeDriver) -> None:
    program = twice()
    sizes = TensorSpec("sizes", "i64", (1,), (("n",),))
    buffer = Buffer(len(program.buffers), "input", 8, index=1)
    loaded = Loaded(replace(program, inputs=(*program.inputs, sizes), buffers=(*program.buffers, buffer)))
    context = loaded.claim()
    try:
        assert context.bind(((5,), (1,), (5,))).nbytes == [20, 8, 20]
    finally:
        context.release()


@pytest.mark.parametrize("name", ["allocate", "to_device", "fill", "add_kernel", "instantiate", "launch", "to_host"])
def test_a_failed_call_leaves_the_model_usable(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Too little memory for larger sizes, or whatever the driver refuses on the way: those before work as they did, on
    an arena whose halo has its values."""
    loaded, x = Loaded(twice_of_halo()), np.ones(3, np.float32)
    want = run(loaded, x)
    np.testing.assert_array_equal(want.view(np.uint8), np.full(3, 2 * HALO, np.float32).view(np.uint8))

    def fails(*args: object, **kwargs: object) -> int:
        raise DeviceError("the GPU", expected=name, got="none")

    for large in (300, 4000):
        with monkeypatch.context() as broken:
            broken.setattr(fake, name, fails)
            context = loaded.claim()
            with pytest.raises(DeviceError, match=name):
                y = np.zeros(large, np.float32)
                context.run(context.bind(((large,),)), [y.ctypes.data, y.ctypes.data])
            context.release()
        np.testing.assert_array_equal(run(loaded, x), want)
        np.testing.assert_array_equal(run(loaded, np.ones(large, np.float32)), np.full(large, want[0]))
    del loaded, context
    assert not fake.live


def test_what_follows_a_failed_call_waits_for_its_kernels(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result's copy fails behind the launch, and the host has not waited."""
    loaded, x = Loaded(twice_of_halo()), np.ones(3, np.float32)
    run(loaded, x)
    recorded: list[int] = []

    def fails(*args: object) -> None:
        raise DeviceError("the GPU", expected="to_host", got="none")

    monkeypatch.setattr(fake, "to_host", fails)
    monkeypatch.setattr(fake, "record", lambda event, stream: recorded.append(stream))
    context = loaded.claim()
    with pytest.raises(DeviceError, match="to_host"):
        context.run(context.bind(((3,),)), [x.ctypes.data, x.ctypes.data])
    assert len(recorded) == 1
    context.release()


@pytest.mark.parametrize("name", ["add_kernel", "instantiate"])
def test_graphs_that_cannot_be_made_leave_nothing(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake.version = 12000  # several graphs
    loaded = Loaded(until_100())
    real, calls = getattr(fake, name), iter(range(100))

    def fails(*args: object, **kwargs: object) -> int:
        if next(calls):
            raise DeviceError("the GPU", expected=name, got="none")
        return real(*args, **kwargs)

    monkeypatch.setattr(fake, name, fails)
    with pytest.raises(DeviceError, match=name):
        run(loaded, np.ones(3, np.float32))
    assert not {kind for kind, _ in fake.live} & {"graph", "executable"}


def test_programs_for_other_gpus_are_refused(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CudaDevice().refusal(H100) is None
    fake.capability = 80
    assert CudaDevice().refusal(H100) is None
    fake.capability = 100
    refused = CudaDevice().refusal(H100)
    assert refused is not None and "sm_100" in str(refused) and "sm_90a, sm_80" in str(refused)

    def none() -> FakeDriver:
        raise DeviceError("the NVIDIA driver", expected="libcuda.so.1", got="none")

    monkeypatch.setattr(cuda, "driver", none)
    refused = CudaDevice().refusal(H100)
    assert refused is not None and "libcuda" in str(refused)


def test_records_of_kernels_stay_inside_the_blob() -> None:
    kernel_code = code()
    assert unpack(kernel_code, "sm_80")["double"].cubin == b"cubin"
    assert len(kernel_code.symbols) == 2 * len(KERNELS)
    for blob in (kernel_code.blob[:10], b"\xff" * len(kernel_code.blob)):
        with pytest.raises(ArtifactError, match="kernel"):
            unpack(replace(kernel_code, blob=blob), "sm_90a")
    with pytest.raises(ArtifactError):
        unpack(replace(kernel_code, symbols={"double": -1}), "sm_90a")


def test_what_would_break_a_capture_is_refused(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the driver is asked for anything: an error of its own would end the capture."""
    loaded = Loaded(counting(""))
    store = loaded.store(64)
    value = np.zeros(64, np.uint8)
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    fake.capturing.add(7)
    before, calls = [*fake.log], set(fake.live)
    for refused in (lambda: Loaded(twice()), lambda: store.write(0, value.ctypes.data, 64), lambda: store.read(0, 64)):
        with pytest.raises(DeviceError, match=r"a CUDA graph that is captured.*before the capture begins"):
            refused()
    assert (fake.log, fake.live) == (before, calls)
    fake.capturing.clear()
    store.write(0, value.ctypes.data, 64)


def test_a_captured_seed_is_written_by_each_replay(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded(counting(""))
    store, seed = loaded.store(16), fake.allocate(16)
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    fake.capturing.add(7)
    store.write(0, seed, 16, True)
    fake.capturing.clear()
    for number in (3, 5):
        values(seed)[:] = number
        fake.replay(7)
        np.testing.assert_array_equal(values(store.address), np.full(4, number))


def test_threads_have_contexts_of_their_own(fake: FakeDriver) -> None:
    """As many calls as threads at one time, each with its own arena; afterwards they serve the next ones."""
    loaded, barrier = Loaded(twice()), threading.Barrier(4)
    matches: dict[int, list[np.ndarray]] = {}

    def calls(number: int) -> None:
        for step in range(5):
            context = loaded.claim()
            barrier.wait(10)
            x, y = np.full(3, 10 * number + step, np.float32), np.zeros(3, np.float32)
            with lock:  # the fake driver runs one kernel at a time
                context.run(context.bind(((3,),)), [x.ctypes.data, y.ctypes.data])
            context.release()
            barrier.wait(10)
            matches.setdefault(number, []).append(y)

    lock = threading.Lock()
    threads = [threading.Thread(target=calls, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for number, results in matches.items():
        for iteration, y in enumerate(results):
            np.testing.assert_array_equal(y, np.full(3, 4 * (10 * number + iteration), np.float32))
    assert len(matches) == 4 == sum(kind == "stream" for kind, _ in fake.live)


def test_a_model_that_goes_while_a_stream_is_captured_waits_for_nothing(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had is given back with the next one, or when one is loaded."""
    first, second, x = Loaded(twice()), Loaded(until_100()), np.ones(4, np.float32)
    run(first, x)
    run(second, x)
    live_before = {*fake.live}
    monkeypatch.setattr(tensors, "current_stream", lambda: 7)
    fake.capturing.add(7)
    fake.log.clear()
    del first
    assert (fake.live, fake.log) == (live_before, [])
    fake.capturing.clear()
    third = Loaded(twice())
    assert ("synchronize_all",) in fake.log and len(fake.live) < len(live_before)
    fake.capturing.add(7)
    del second
    fake.capturing.clear()
    del third
    assert not fake.live


@pytest.mark.parametrize("then", [7, 9])
def test_new_values_of_the_state_are_written_behind_the_last_call(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, then: int
) -> None:
    """On the caller's stream, which the next call waits for, on that of the call before or another one; the host waits
    for neither."""
    loaded, places = Loaded(counting("")), [fake.allocate(16) for _ in range(2)]
    state = StateTensors(loaded._program.state, loaded.store)
    streams = iter([7, 8, 8, then])  # of a call; of a write, which asks twice; of a call
    monkeypatch.setattr(tensors, "current_stream", lambda: next(streams))
    context = loaded.claim()
    instance = context.bind(((4,), *state.shapes))
    pointers, resident = [places[0], *state.pointers, places[1]], [True] * 4
    context.run(instance, pointers, resident)
    fake.log.clear()
    state.write({"s": np.full(4, 3, np.float32)})
    context.run(instance, pointers, resident)
    assert [e for e in fake.log if e[0] in ("wait", "synchronize", "synchronize_all")] == [("wait", 8), ("wait", then)]
    monkeypatch.setattr(tensors, "current_stream", lambda: then)
    np.testing.assert_array_equal(state.read()["s"], np.full(4, 6))
