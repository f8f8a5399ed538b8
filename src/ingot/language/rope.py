"""Rotary position embeddings (Su et al. 2021): the angles of each position, with context scaling."""

from __future__ import annotations

import math

import numpy as np

from ingot.support.dataclass import dataclass

SCALINGS = ("none", "linear", "dynamic", "yarn", "llama3", "longrope")


@dataclass(frozen=True)
class Rope:
    """The first `width` elements of each head are rotated in pairs (i, i + width / 2), or (2 i, 2 i + 1) if
    `interleaved`, by position * base^(-2 i / width).

    scaling: one of SCALINGS, by `factor` from the `original` context.
    "linear" divides angles by the factor (Chen et al. 2023). "dynamic" increases the base with the length beyond the
    original context (NTK). "yarn" interpolates between scaled and unscaled frequencies by the wavelength, from `slow`
    to `fast` rotations in the original context (Peng et al. 2023). "llama3" does so by its own rule. "longrope" divides
    each frequency by its `long` factor if the context is larger than the original, else by its `short` one (Ding et al.
    2024); if there are none, the file has them as a tensor. magnitude: of queries and keys; 0: that of the scaling's
    paper.
    """

    width: int
    base: float = 10000.0
    interleaved: bool = False
    scaling: str = "none"
    factor: float = 1.0
    original: int = 0
    magnitude: float = 0.0
    slow: float = 1.0
    fast: float = 32.0
    truncated: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def tables(self, context: int, factors: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(cos, sin), f32[context, width / 2]. factors: divisors of the frequencies, from the file."""
        frequencies = self.frequencies(context)
        if factors is not None:
            frequencies = frequencies / factors.astype(np.float64)
        # angles in f32, as in the training of such models
        angles = np.arange(context, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
        scale = np.float32(self._magnitude())
        return np.cos(angles) * scale, np.sin(angles) * scale

    def frequencies(self, context: int) -> np.ndarray:
        """f64[width / 2], or f64[context, width / 2] if they depend on the position."""
        exponents = np.arange(0, self.width, 2) / self.width
        plain = self.base**-exponents
        match self.scaling:
            case "linear":
                return plain / self.factor
            case "dynamic":
                length = np.maximum(np.arange(1, context + 1), self.original)[:, None]
                stretch = self.factor * length / self.original - (self.factor - 1)
                return (self.base * stretch ** (self.width / (self.width - 2))) ** -exponents
            case "yarn":
                low, high = self._pair_of(self.fast), self._pair_of(self.slow)
                if self.truncated:
                    low, high = math.floor(low), math.ceil(high)
                low, high = max(low, 0), min(high, self.width - 1)
                ramp = (np.arange(len(plain)) - low) / (high - low if high != low else 0.001)
                unscaled_share = 1 - np.clip(ramp, 0, 1)
                return plain / self.factor * (1 - unscaled_share) + plain * unscaled_share
            case "llama3":
                rotations = self.original * plain / (2 * math.pi)
                unscaled_share = np.clip((rotations - self.slow) / (self.fast - self.slow), 0, 1)
                return (1 - unscaled_share) * plain / self.factor + unscaled_share * plain
            case "longrope":
                factors = self.long if context > self.original else self.short
                return plain / np.asarray(factors or 1.0)
            case _:
                return plain

    def _pair_of(self, rotations: float) -> float:
        """The (fractional) index of the pair with this number of rotations in the original context."""
        return self.width * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(self.base))

    def _magnitude(self) -> float:
        if self.magnitude or self.factor <= 1:
            return self.magnitude or 1.0
        match self.scaling:
            case "yarn":
                return 0.1 * math.log(self.factor) + 1
            case "longrope":
                return math.sqrt(1 + math.log(self.factor) / math.log(self.original))
            case _:
                return 1.0
