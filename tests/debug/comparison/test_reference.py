"""Frameworks as references of `ingot compare`, each in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ingot.debug.comparison import reference as references
from ingot.debug.comparison.compare import compare
from ingot.debug.comparison.reference import MissingError, reference
from ingot.debug.source import Words, open_source, read_graph
from ingot.ir.interp import interpret
from ingot.support.errors import InputError


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "model.mlir"
    path.write_text("func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n  return %x : tensor<3xf32>\n}\n")
    monkeypatch.setattr(references, "find_spec", lambda name: None)
    source = open_source(path)
    with pytest.raises(MissingError, match="pip install jax"):
        reference(source)
    comparison = compare(source)
    assert comparison.ok and "jaxlib is not installed" in comparison.refused[0]
    with pytest.raises(MissingError):
        compare(source, interpreter=False)


@pytest.mark.slow
def test_xla_runs_open_sizes_and_complex_numbers(tmp_path: Path):
    jax = pytest.importorskip("jax")
    from jax import export

    shape = export.symbolic_shape("b, 4")
    exported = export.export(jax.jit(lambda x, w: (x.sum(0) * x.shape[0], jax.numpy.fft.fft(x * w))))(
        jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct((4,), "float32")
    )
    path = tmp_path / "model.mlir"
    path.write_text(exported.mlir_module())
    source = open_source(path, Words(weights=["arg1=[1, 2, 3, 4]"]))
    process = reference(source)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    total, spectrum = process.run({"arg0": x})
    np.testing.assert_allclose(total, x.sum(0) * 3, rtol=1e-5)
    expected = np.fft.fft(x * np.arange(1, 5))
    np.testing.assert_allclose(spectrum, np.stack([expected.real, expected.imag], -1), atol=1e-5)
    with pytest.raises(InputError, match="XLA cannot run"):
        process.run({"arg0": x.T.copy()})


@pytest.mark.slow
def test_torch_jit_has_state_and_numbers(tmp_path: Path):
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(8))

        def forward(self, x, rate: int):
            y = x * rate + self.h
            self.h = y.mean(0)
            return {"y": [y, x.sum()]}

    path = tmp_path / "model.pt"
    torch.jit.script(Net().eval()).save(str(path))
    with pytest.raises(InputError, match="--inputs"):
        open_source(path)
    source = open_source(path, Words(inputs=["x=f32:?,8"], weights=["rate=3"]))
    graph = read_graph(source)
    assert graph.inputs[0].shape[1] == 8 and not isinstance(graph.inputs[0].shape[0], int)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((5, 8), np.float32), "b_h": rng.standard_normal(8, np.float32)}
    ours = interpret(graph, list(feeds.values()))
    for got, want in zip(ours, reference(source).run(feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_keras_runs_its_files(tmp_path: Path):
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    a, b = keras.Input((None, 6), name="frames"), keras.Input((6,), name="more")
    h = keras.layers.GRU(8)(a)
    path = tmp_path / "model.keras"
    keras.Model([a, b], [keras.layers.Dense(5, name="d")(keras.layers.Concatenate()([h, b])), h]).save(path)
    comparison = compare(open_source(path), sizes=[{"batch": 3, "frames_1": 7}], interpreter=False)
    assert comparison.ok and {c.reference for c in comparison.checks} == {"Keras"} and len(comparison.checks) == 2
