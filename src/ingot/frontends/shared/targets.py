"""Losses of models to be trained, and the targets that they take after the model's inputs."""

from __future__ import annotations

from ingot.support.errors import InputError


def target_names(count: int) -> list[str]:
    return ["target"] if count == 1 else [f"target_{i}" for i in range(count)]


def check_loss(value: object, array: type, noun: str) -> None:
    """Raises InputError for a loss that is no `array`; noun: the word for one in messages."""
    if not isinstance(value, array):
        fix = f"return one number as a {noun}, computed from the model's results"
        raise InputError("loss", expected=f"a float scalar {noun}", got=f"a {type(value).__name__}", fix=fix)
