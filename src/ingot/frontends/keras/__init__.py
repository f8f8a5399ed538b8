"""Keras models as graphs: files through a process of their own, models in memory as they are."""

from ingot.frontends.keras.model import import_keras, in_jax, is_keras

__all__ = ["import_keras", "in_jax", "is_keras"]
