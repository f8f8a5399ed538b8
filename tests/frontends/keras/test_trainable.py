"""Training of Keras models beside Keras's own formulas on JAX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")
jax = pytest.importorskip("jax")
if keras.backend.backend() != "jax":
    pytest.skip("Keras has another backend here", allow_module_level=True)

import ingot  # noqa: E402 - Keras settles its backend first
from ingot import optim  # noqa: E402
from ingot.support.errors import InputError  # noqa: E402

L = keras.layers
RNG = np.random.default_rng(0)


def net() -> Any:
    decay = keras.regularizers.L2(0.01)
    return keras.Sequential([
        keras.Input((6,), name="x"), L.Dense(8, activation="relu", kernel_regularizer=decay), L.BatchNormalization(),
        L.Dropout(0.5, seed=3), L.Dense(3, activation="softmax", name="head"),
    ])  # fmt: skip


def likelihood(prediction: Any, y: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy()(y, prediction)


def test_a_step_is_keras_own() -> None:
    """What layers add to the loss, moving averages and the bits of dropout included; the batch's size may vary."""
    model = net()
    step = ingot.train(model, likelihood, optim.SGD(lr=0.1), example_targets=(np.array([0, 1], np.int32),), threads=1)
    first, rest = ([v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables))

    def loss(first: Any, rest: Any, x: Any, y: Any) -> Any:
        prediction, rest, losses = model.stateless_call(first, rest, x, training=True, return_losses=True)
        return likelihood(prediction, y) + sum(losses), rest

    value_and_slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for n in (7, 4, 7):
        x, y = RNG.normal(size=(n, 6)).astype(np.float32), RNG.integers(0, 3, n).astype(np.int32)
        (want, rest), slopes = value_and_slopes(first, rest, x, y)
        first = [v - 0.1 * g for v, g in zip(first, slopes, strict=True)]
        assert float(step(x, y)[0]) == pytest.approx(float(want), rel=1e-5)
    before = [np.asarray(v.value) for v in model.trainable_variables]
    assert step.trained() is model
    for v, old, new in zip(model.trainable_variables, before, first, strict=True):
        np.testing.assert_allclose(v.value, new, atol=1e-6)
        assert np.abs(np.asarray(v.value) - old).max() > 0
    for v, new in zip(model.non_trainable_variables, rest, strict=True):
        np.testing.assert_allclose(v.value, new, atol=1e-6)


def test_frozen_layers_checkpoints_and_refusals(tmp_path: Path) -> None:
    model = net()
    for layer in model.layers[:-1]:
        layer.trainable = False
    batch = RNG.normal(size=(4, 6)).astype(np.float32), np.array([0, 2, 1, 1])
    step = ingot.train(model, "nll", optim.Adam(), threads=1)
    path = f"{model.name}/head"
    assert set(step.training.parameters) == {f"{path}/kernel", f"{path}/bias"}
    assert all("seed" in name for name in step.training.buffers)
    step(*batch)
    step.save_checkpoint(tmp_path / "c.safetensors")
    step.save(tmp_path / "s.ingot")
    want = [float(step(*batch)[0]) for _ in range(3)]
    assert [float(ingot.load(tmp_path / "s.ingot")(*batch)[0])] == want[:1]
    step.load_checkpoint(tmp_path / "c.safetensors")
    assert [float(step(*batch)[0]) for _ in range(3)] == want
    some = ingot.train(model, "nll", optim.SGD(), trainable=["*/bias"], threads=1)
    assert some.training.parameters == (f"{path}/bias",)
    model.save(tmp_path / "m.keras")
    with pytest.raises(InputError, match="load_model"):
        ingot.train(tmp_path / "m.keras", "nll", optim.SGD())
    with pytest.raises(InputError, match="a float scalar array, got a tuple"):
        ingot.train(model, lambda outputs, y: (outputs, y), optim.SGD(), example_targets=batch[1:])
    model.trainable = False
    with pytest.raises(InputError, match="trainable = True"):
        ingot.train(model, "nll", optim.SGD())
