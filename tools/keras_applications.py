"""Keras applications through Keras on JAX beside Keras itself, on demand: an hour of processor time.

    python tools/keras_applications.py [NAME ...]

Weights are random, statistics and biases of norms perturbed, results logits: a reference whose standard deviation is
below 1e-3 would prove nothing and is refused. One program of an open batch runs at batches of 1 and 3. Prints a row of
docs/reference/keras.md for each: nodes of the graph, the largest difference as a part of the largest logit.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import numpy as np

_LEAST_DEVIATION = 1e-3
_SIZES = {  # of images, where 96 is not enough or not a choice
    "InceptionV3": 139, "InceptionResNetV2": 139, "Xception": 139, "NASNetMobile": 224, "VGG16": 64, "VGG19": 64,
}  # fmt: skip
_NAMES = (
    "ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2", "ResNet152V2",
    "EfficientNetB0", "EfficientNetB1", "EfficientNetB2", "EfficientNetB3", "EfficientNetB4",
    "EfficientNetV2B0", "EfficientNetV2B1", "EfficientNetV2B2", "EfficientNetV2B3", "EfficientNetV2S",
    "MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large", "DenseNet121", "DenseNet169", "DenseNet201",
    "NASNetMobile", "InceptionV3", "InceptionResNetV2", "Xception", "ConvNeXtTiny", "ConvNeXtSmall", "VGG16", "VGG19",
)  # fmt: skip


def _perturb(model: Any) -> None:
    """Statistics, scales and biases as training would leave them: norms that do nothing prove nothing."""
    rng = np.random.default_rng(11)
    for v in model.variables:
        if v.name in ("gamma", "moving_variance"):
            v.assign(rng.uniform(0.6, 1.4, v.shape))
        elif v.name in ("beta", "moving_mean", "bias"):
            v.assign(rng.uniform(-0.2, 0.2, v.shape))


def check(name: str) -> str:
    import jax
    import keras

    import ingot
    from ingot.frontends.keras import import_keras

    size = _SIZES.get(name, 96)
    inputs = keras.Input((size, size, 3), name="image")
    model = getattr(keras.applications, name)(weights=None, classifier_activation=None, input_tensor=inputs)
    _perturb(model)
    began = time.perf_counter()
    nodes = len(import_keras(model).nodes())
    read = time.perf_counter() - began
    compiled = ingot.compile(model)
    whole = time.perf_counter() - began
    worst, rng = 0.0, np.random.default_rng(3)
    reference = jax.jit(lambda x: model(x, training=False))
    for batch in (1, 3):
        x = rng.normal(size=(batch, size, size, 3)).astype(np.float32) * 50 + 128
        want = np.asarray(reference(x))
        if not want.std() > _LEAST_DEVIATION:
            return f"| {name} | almost constant: {want.std():.1e} |"
        worst = max(worst, float(np.abs(compiled(x) - want).max() / np.abs(want).max()))
    return f"| {name} | {size} | {nodes} | {worst:.1e} | read in {read:.1f} s, with compiling {whole:.1f} s"


def _forget() -> None:
    import jax
    import keras

    keras.backend.clear_session()
    jax.clear_caches()
    gc.collect()


def main(names: list[str]) -> None:
    os.environ["KERAS_BACKEND"] = "jax"
    from ingot.support.errors import IngotError

    for name in names or _NAMES:
        try:
            print(check(name), flush=True)
            _forget()
        except IngotError as error:
            print(f"| {name} | {error} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
