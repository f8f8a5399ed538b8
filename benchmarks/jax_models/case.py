"""What a model is to the runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """`fn(weights, *inputs)` of JAX. inputs: the arguments at some sizes. axes: which axes vary, as `dynamic=` has it,
    with the symbols' bounds. sizes: those it is tried at; the first is the example's."""

    name: str
    fn: Callable[..., Any]
    weights: Any
    inputs: Callable[[Sizes, np.random.Generator], tuple[Any, ...]]
    sizes: Sequence[Sizes] = ({},)
    axes: Mapping[str, Any] = field(default_factory=dict)


def ids(rng: np.random.Generator, *shape: int, below: int = 100) -> np.ndarray:
    return rng.integers(0, below, shape).astype(np.int32)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def perturbed(weights: Any, seed: int = 11) -> Any:
    """Weights of a tree with noise on each, as what is initialized to 0 or 1 proves nothing."""
    import jax

    rng = np.random.default_rng(seed)

    def noisy(w: Any) -> Any:
        if getattr(w, "dtype", None) != np.float32:
            return w
        array = np.asarray(w)
        return array + 0.1 * np.abs(rng.standard_normal(array.shape)).astype(np.float32)

    return jax.tree.map(noisy, weights)
