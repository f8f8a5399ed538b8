"""Keras models as graphs: files are read in a separate process, models in memory directly."""

from ingot.frontends.keras.model import import_keras, in_jax, is_keras

__all__ = ["import_keras", "in_jax", "is_keras"]
