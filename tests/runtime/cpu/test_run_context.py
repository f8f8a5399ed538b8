"""Calls side by side: each run has an arena and threads of its own, as many as there are cores for them."""

import threading

import numpy as np
import pytest

from ingot.runtime.cpu import device, memory
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import IngotError, InputError
from tests.runtime import models
from tests.runtime.models import loaded
from tests.runtime.side_by_side import run, wrong_calls

X = np.ones(1000, np.float32)
WANT = (X + np.arange(1000, dtype=np.float32)) * 8


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_cores", lambda: 4)


@pytest.mark.parametrize(("threads", "limit"), [(1, 4), (2, 2), (3, 1), (8, 1)])
@pytest.mark.usefixtures("four_cores")
def test_as_many_contexts_as_there_are_cores_for(threads: int, limit: int):
    model = CompiledModel(models.static(), threads=threads)
    contexts = [loaded(model).claim() for _ in range(limit)]
    assert len(set(map(id, contexts))) == len({context.pool.workspace.arena.address for context in contexts}) == limit
    done = threading.Event()

    def call() -> None:
        assert np.array_equal(model(X), WANT)  # type: ignore[arg-type]
        done.set()

    waiting = threading.Thread(target=call)
    waiting.start()
    assert not done.wait(0.05)
    for mine in contexts:
        mine.release()
    waiting.join()
    assert done.is_set() and len(loaded(model)._contexts) == limit


@pytest.mark.usefixtures("four_cores")
def test_calls_that_do_not_overlap_share_a_context():
    model = CompiledModel(models.static(), threads=1)
    for _ in range(3):
        assert np.array_equal(model(X), WANT)  # type: ignore[arg-type]
    assert len(loaded(model)._contexts) == 1


@pytest.mark.usefixtures("four_cores")
def test_another_model_with_as_many_threads_leaves_a_pool():
    first, second = (CompiledModel(models.static(), threads=2) for _ in range(2))
    mine = loaded(first).claim()
    try:
        assert np.array_equal(second(X), WANT)  # type: ignore[arg-type]
    finally:
        mine.release()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_refused_call_gives_its_context_back(threads: int):
    model = CompiledModel(models.dynamic(), threads=threads)
    for _ in range(3):
        with pytest.raises(InputError):
            model(X, X[:-1])
    y, _ = model(X, X)  # type: ignore[misc]
    assert np.array_equal(y, X + X + np.float32(1) + np.float32(1))


def test_a_call_that_there_is_no_memory_for_leaves_the_others_theirs():
    """The arena of the call before is gone by then."""

    class Full(memory.Region):
        def __init__(self, nbytes: int) -> None:
            super().__init__(nbytes if nbytes < 1 << 20 else 1 << 60)

    model = CompiledModel(models.dynamic(), threads=1)
    want = X + X + np.float32(1) + np.float32(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "Region", Full)
        large = np.zeros(1 << 20, np.float32)
        for _ in range(2):
            y, _ = model(X, X)  # type: ignore[misc]
            assert np.array_equal(y, want)
            (context,) = loaded(model)._contexts
            with pytest.raises(IngotError, match="out of memory"):
                model(large, large)
            assert context.current is None
    y, _ = model(X, X)  # type: ignore[misc]
    assert np.array_equal(y, want)


def test_a_profile_ends_for_all_shapes():
    """Its memory is the caller's, who lets it go."""
    model = CompiledModel(models.dynamic(), threads=1)
    model(X, X)
    readings = np.zeros(len(model.program.steps) + 1, np.int64)
    loaded(model).set_profile(readings)
    model(X, X)
    assert readings.all()
    model(X[:9], X[:9])  # as another thread may do
    loaded(model).set_profile(None)
    readings[:] = 0
    model(X, X)
    assert not readings.any()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("four_cores")
def test_callers_of_one_model_at_many_sizes(threads: int):
    assert not wrong_calls([CompiledModel(models.dynamic(), threads=threads)], calls=300)


def test_contexts_in_the_child_of_a_fork():
    stdout = run("""
from ingot.runtime.cpu import device
device.available_cores = lambda: 4
model = CompiledModel(models.static(), threads=2)
taken = [model._executable._loaded.claim() for _ in range(2)]
child = os.fork()
if child == 0:
    def call():
        for _ in range(50):
            assert np.array_equal(model(x), want)
    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    os._exit(0 if len(model._executable._loaded._contexts) == 2 else 3)
_, status = os.waitpid(child, 0)
assert status == 0, status
print("fine")
""")
    assert stdout == "fine\n"
