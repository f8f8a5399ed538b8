"""State: what a program reads behind its inputs, and writes anew before its outputs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import ArtifactError, IngotError, InputError, VerifyError
from tests.runtime import models
from tests.runtime.test_artifact import rewrite_header

START, ONES = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)


@pytest.mark.parametrize("in_place", [False, True])
def test_calls(in_place: bool) -> None:
    program = models.summing(in_place=in_place)
    model = CompiledModel(program, threads=2)
    assert ([s.name for s in model.inputs], [s.name for s in model.outputs]) == (["x"], ["y"])
    for i in range(1, 4):
        assert np.array_equal(model(ONES), 2 * (START + i))  # type: ignore[arg-type]
    assert np.array_equal(model.state()["sum"], START + 3)
    assert np.array_equal(CompiledModel(program).state()["sum"], START)  # another model has its own
    model.set_state({"sum": -START[::-1]})
    assert np.array_equal(model(ONES), 2 * (1 - START[::-1]))  # type: ignore[arg-type]
    assert ("state  sum: f32[1000], in place" if in_place else "f32[1000], copied: as asked") in model.plan()
    before = model.state()
    model.explain(ONES)
    assert np.array_equal(model.state()["sum"], before["sum"])


def test_a_call_that_fails_changes_nothing() -> None:
    model = CompiledModel(models.summing())
    with pytest.raises(InputError):
        model(ONES[:-1])
    with pytest.raises(InputError, match=r"expected shape \(1000,\)"):
        model.set_state({"sum": ONES[:-1]})
    with pytest.raises(InputError, match="expected one of sum"):
        model.set_state({"sum": ONES, "count": ONES})
    assert np.array_equal(model.state()["sum"], START)
    with pytest.raises(InputError, match="expected one of none"):
        CompiledModel(models.static()).set_state({"sum": ONES})


def test_a_call_that_gets_no_context_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on a GPU without memory for its stream."""
    model = CompiledModel(models.summing())

    def fails() -> NoReturn:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(models.loaded(model), "claim", fails)
        with pytest.raises(IngotError, match="out of memory"):
            model(ONES)
    caller = threading.Thread(target=model, args=(ONES,), daemon=True)
    caller.start()
    caller.join(30)
    assert not caller.is_alive()


def test_one_call_at_a_time() -> None:
    model = CompiledModel(models.summing(), threads=1)
    with ThreadPoolExecutor(8) as threads:
        firsts = threads.map(lambda _: float(model(ONES)[0]), range(400))  # type: ignore[index]
        assert sorted(firsts) == [2.0 * i for i in range(1, 401)]
    assert np.array_equal(model.state()["sum"], START + 400)


def test_saved(tmp_path: Path) -> None:
    model, path = CompiledModel(models.summing()), tmp_path / "model.ingot"
    model(ONES)
    model.save(path)
    loaded = CompiledModel(artifact.load(path))
    assert np.array_equal(loaded.state()["sum"], START)
    assert np.array_equal(loaded(ONES), 2 * (START + 1))  # type: ignore[arg-type]
    for size in (0, 3999, 1 << 40, -1, "4000", None):
        CompiledModel(models.summing()).save(path)
        rewrite_header(path, lambda h, size=size: h.update(state=size))
        with pytest.raises(ArtifactError):
            artifact.load(path)


def test_pairs_are_checked() -> None:
    program = models.summing()
    spec = program.state[0].spec
    for value in (START.astype(np.int32), START[1:]):
        with pytest.raises(VerifyError, match="an initial value of its type"):
            program.with_state({"sum": value})
    with pytest.raises(VerifyError, match=r"\['count'\]: the graph has to name it"):
        program.with_state({"count": START})
    with pytest.raises(VerifyError, match="as many bytes"):
        replace(program, state=(replace(program.state[0], initial=program.state[0].initial[4:]),)).check()
    open_size = replace(program.state[0], spec=replace(spec, shape=(("n",),)))
    with pytest.raises(VerifyError, match="a fixed size"):
        replace(program, state=(open_size,)).check()
