"""Objects on disk: who shares them, and what becomes of damaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, const
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support.cache import DiskCache, sharing
from ingot.support.native import Features
from ingot.targets.cpu import assemble, objects
from ingot.targets.cpu.objects import compiled
from ingot.targets.objects import store
from tests.passes.check import arg, graph

TEXT = "define void @kernel() {\n  ret void\n}\n"
X = np.linspace(-2, 2, 37, dtype=np.float32)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that LLVM gets."""
    texts: list[str] = []
    inner = objects.submit

    def emit_and_count(text: str, features: Features):
        texts.append(text)
        return inner(text, features)

    monkeypatch.setattr(objects, "submit", emit_and_count)
    monkeypatch.setattr(assemble, "_drivers", {})
    return texts


def _model(weight: float, first: bool = False) -> Graph:
    """first: behind another kernel, so that the one they share has another number."""
    x = arg("x", 37)
    y = ops.mul(x, ops.Convert(x.dtype)(const(np.full(37, weight, np.float32) * np.arange(37, dtype=np.float32))))
    y = ops.CumReduce("sum", 0)(y)
    return graph(ops.CumReduce("sum", 0)(ops.Reverse((0,))(y)) if first else y)


def _run(model: Graph) -> np.ndarray:
    result = CompiledModel(build_native(model, 1))(X)
    assert isinstance(result, np.ndarray)
    return result


def test_models_share_kernels(tmp_path: Path, begun: list[str]):
    with sharing(DiskCache(tmp_path)):
        one = _run(_model(1.0))
        first = len(begun)
        two = _run(_model(2.0))
        assert first > 1 and len(begun) == first  # the weights alone differ
        _run(_model(2.0, first=True))
        assert 0 < len(begun) - first < first + 1
    np.testing.assert_array_equal(two, _run(_model(2.0)))
    np.testing.assert_allclose(one, np.cumsum(X * np.arange(37, dtype=np.float32)), rtol=1e-5, atol=1e-5)


def test_nothing_is_kept_without_a_cache(tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    with sharing(None):
        _run(_model(1.0))
        before = len(begun)
        _run(_model(2.0))
    assert len(begun) > before and not list(tmp_path.iterdir())


def test_texts_and_machines_have_objects_of_their_own(tmp_path: Path, begun: list[str]):
    arm = Features("aarch64", ("fp-armv8", "neon"), "")
    small = Features("x86_64", (), "")
    with sharing(DiskCache(tmp_path)):
        stored_objects = [compiled(text, f) for text in (TEXT, TEXT + "\n") for f in (arm, small)]
        assert len(begun) == 4
        store(stored_objects)
        second = [compiled(text, f) for text in (TEXT, TEXT + "\n") for f in (arm, small)]
        assert len(begun) == 4 and [o.code.result() for o in second] == [o.code.result() for o in stored_objects]


def test_a_damaged_object_is_made_again(tmp_path: Path, begun: list[str]):
    disk = DiskCache(tmp_path)
    small = Features("x86_64", (), "")
    with sharing(disk):
        store([object_ := compiled(TEXT, small)])
        assert object_.key is not None
        path = disk.path(object_.key)
        for damage in (b"", path.read_bytes()[:-1], bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]):
            path.write_bytes(damage)
            recompiled = compiled(TEXT, small)
            assert recompiled.key == object_.key and not path.exists()
            store([recompiled])
            assert path.read_bytes().endswith(object_.code.result() + object_.key.encode())
    assert len(begun) == 4


def test_another_compiler_makes_its_own(tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch):
    small = Features("x86_64", (), "")
    with sharing(DiskCache(tmp_path)):
        store([compiled(TEXT, small)])
        monkeypatch.setattr(objects, "compiler_identity", lambda *_: b"newer")
        compiled(TEXT, small)
    assert len(begun) == 2
