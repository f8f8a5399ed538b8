"""Keras models as TFLite files: read back as the model that they were made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
pytest.importorskip("flatbuffers")
pytest.importorskip("jax")
keras = pytest.importorskip("keras")

import ingot  # noqa: E402
from ingot.frontends.tflite.file import read  # noqa: E402

pytestmark = pytest.mark.slow
layers: Any = keras.layers


def _chain(shape: tuple[int, ...], *steps: Any) -> Any:
    x = y = keras.Input(shape)
    for step in steps:
        y = step(y)
    return keras.Model(x, y)


def mlp() -> Any:
    dense = layers.Dense(32, activation="relu"), layers.Dropout(0.1), layers.Dense(16, activation="tanh")
    return _chain((20,), *dense, layers.Dense(3, activation="softmax"))


def cnn() -> Any:
    strided = layers.Conv2D(12, 3, strides=2, padding="same"), layers.BatchNormalization(), layers.ReLU(6.0)
    first = layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D()
    return _chain((20, 20, 1), *first, *strided, layers.Flatten(), layers.Dense(10))


def separable() -> Any:
    stem = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()
    parts = layers.DepthwiseConv2D(3, padding="same"), layers.SeparableConv2D(12, 3, padding="same", activation="swish")
    pools = layers.AveragePooling2D(2, padding="same"), layers.GlobalMaxPooling2D()
    return _chain((18, 18, 3), *stem, *parts, *pools, layers.Dense(4, activation="sigmoid"))


def lines() -> Any:
    first = layers.Conv1D(12, 5, padding="causal", dilation_rate=2, activation="elu"), layers.MaxPooling1D(2)
    second = layers.Conv1D(8, 3, strides=2), layers.LeakyReLU(), layers.GlobalAveragePooling1D()
    return _chain((40, 6), *first, *second, layers.Dense(2))


def lstm() -> Any:
    return _chain((15, 6), layers.LSTM(10, return_sequences=True), layers.LSTM(8), layers.Dense(3))


def gru() -> Any:
    return _chain((15, 6), layers.Bidirectional(layers.GRU(7)), layers.Dense(3, activation="softplus"))


def attention() -> Any:
    x = keras.Input((12,), dtype="int32")
    y = layers.Embedding(50, 16)(x)
    y = layers.LayerNormalization()(layers.add([y, layers.MultiHeadAttention(2, 8)(y, y)]))
    y = layers.Dense(16, activation="gelu")(y)
    return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(y)))


def residual() -> Any:
    x = keras.Input((16, 16, 3))
    y = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    z = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(y))
    z = layers.GlobalAveragePooling2D()(layers.Activation("relu")(layers.add([y, z])))
    return keras.Model(x, layers.Dense(5, activation="softmax")(z))


def upsampling() -> Any:
    first = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu"), layers.UpSampling2D(2)
    second = layers.Conv2D(3, 3, padding="same"), layers.UpSampling2D(2, interpolation="bilinear")
    return _chain((6, 6, 4), *first, *second, layers.Activation("hard_sigmoid"))


def norms() -> Any:
    first = layers.Conv2D(8, 1), layers.GroupNormalization(2), layers.PReLU(), layers.ZeroPadding2D(1)
    views = layers.Cropping2D(((1, 0), (0, 1))), layers.Permute((3, 1, 2)), layers.Reshape((8, -1))
    return _chain((8, 8, 6), *first, *views, layers.Dense(3, activation="selu"))


MODELS = {f.__name__: f for f in (mlp, cnn, separable, lines, lstm, gru, attention, residual, upsampling, norms)}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_open_batch(name: str, tmp_path: Path) -> None:
    make: Callable[[], Any] = MODELS[name]
    keras.utils.set_random_seed(0)
    model, rng, path = make(), np.random.default_rng(0), tmp_path / "m.tflite"
    shape = (2, *model.input_shape[1:])
    x = rng.integers(0, 50, shape).astype(np.int32) if name == "attention" else rng.standard_normal(shape, np.float32)
    ingot.export(model, path, (x,))
    want = np.asarray(model(x))
    (got,) = ingot.compile(path, cache=False).run([x])
    assert np.ptp(want) > 1e-3 and np.abs(got - want).max() < 2e-6 * np.abs(want).max()
    names = {op.name for op in read(path).subgraphs[0].operators}
    if name in ("mlp", "cnn", "residual"):  # no arithmetic is left of norms, activations and softmax
        assert names <= {"CONV_2D", "FULLY_CONNECTED", "MAX_POOL_2D", "MEAN", "ADD", "RESHAPE", "TANH", "SOFTMAX"}
