"""The fixture of a SavedModel that Keras on JAX exports: its graph is a StableHLO program in an attribute.

/tmp/tf/bin/python tools/tensorflow_program.py tests/frontends/tensorflow/fixtures       (and so with jax installed)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"  # which is settled when Keras is imported

import keras
from tensorflow_fixtures import called, data, perturbed, saved, write


def main(folder: Path) -> None:
    x = image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, activation="relu")(x))
    x = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x))
    files = saved(perturbed(keras.Model(image, x)))
    write(folder / "program.zip", files, called(files, [{"image": data(n, 8, 8, 3)} for n in (1, 3)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
