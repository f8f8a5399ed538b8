"""What the sampler draws: its distribution beside one in numpy, by a chi-squared test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.language.sampler import SETTINGS, Sampler
from tests.language.models import compiled

ROWS, VOCABULARY = 4000, 150
OFF = {name: value for name, (_, value) in SETTINGS.items()}


@cache
def sampler(rows: int) -> Callable[..., np.ndarray]:
    logits, position = Input("logits", TensorType(f32, (rows, VOCABULARY)))(), Input("position", TensorType(i64))()
    s = Sampler.inputs(rows, VOCABULARY)
    program = compiled(Graph((logits, position, *s.settings, s.bias, s.counts), (s.tokens(logits, position),)))

    def draw(logits: np.ndarray, bias: Any = 0, prompt: Any = 0, generated: Any = 0, position: int = 0, **how: float):
        shape = (rows, VOCABULARY)
        counts = np.stack([np.broadcast_to(c, shape) for c in (prompt, generated)], 1).astype(np.int32)
        settings = [np.array(value, SETTINGS[name][0].numpy) for name, value in (OFF | how).items()]
        x, b = (np.ascontiguousarray(np.broadcast_to(v, shape), np.float32) for v in (logits, bias))
        return np.asarray(program(x, np.array(position), *settings, b, counts))

    return draw


def probabilities(logits: np.ndarray, bias: Any = 0, prompt: Any = 0, generated: Any = 0, **how: float) -> np.ndarray:
    s = OFF | how
    x = logits.astype(np.float64) + bias
    is_repeated = np.broadcast_to(np.asarray(prompt) + generated, x.shape) > 0
    r = s["repetition_penalty"]
    x = np.where(is_repeated, np.where(x > 0, x / r, x * r), x)
    x = x - s["frequency_penalty"] * np.asarray(generated) - s["presence_penalty"] * (np.asarray(generated) > 0)
    x = x / s["temperature"]
    order = np.argsort(-x, kind="stable")
    p = np.exp(x - x.max())
    if s["top_k"]:
        p[order[int(s["top_k"]) :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    is_allowed = np.zeros(len(p), bool)
    is_allowed[order] = before < s["top_p"]
    is_allowed[order[0]] = True
    p = np.where(is_allowed & (p >= s["min_p"] * p.max()), p, 0)
    return p / p.sum()


LOGITS = np.random.default_rng(0).normal(size=VOCABULARY).astype(np.float32) * 1.5
TIMES = np.random.default_rng(1).integers(0, 3, VOCABULARY)
CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6, "min_p": 0.05},
    {"top_k": 1},
    {"top_k": 12, "temperature": 2.0},
    {"top_k": 140, "min_p": 0.1},
    {"top_k": 20, "top_p": 0.7},
    {"top_p": 0.5, "temperature": 1.5},
    {"top_p": 0.0},
    {"repetition_penalty": 1.8, "prompt": TIMES, "top_p": 0.9},
    {"repetition_penalty": 1.2, "presence_penalty": 0.7, "frequency_penalty": -0.5, "generated": TIMES},
    {"bias": np.where(TIMES == 1, -np.inf, TIMES), "top_k": 30},
]


@pytest.mark.parametrize("how", CASES, ids=str)
def test_distribution(how: dict[str, Any]) -> None:
    expected = probabilities(LOGITS, **how) * ROWS
    counts = np.bincount(sampler(ROWS)(LOGITS, seed=7, **how), minlength=VOCABULARY)
    assert counts[expected == 0].sum() == 0
    # rare ones are one class: the statistic is of classes that expect five and more
    rare = expected < 5
    pairs = [*zip(counts[~rare], expected[~rare], strict=True), (counts[rare].sum(), expected[rare].sum())]
    pairs = [(c, e) for c, e in pairs if e > 0]
    free = max(len(pairs) - 1, 1)
    statistic = sum((c - e) ** 2 / e for c, e in pairs)
    assert statistic < free + 5 * np.sqrt(2 * free) + 5


def test_seed_and_position_tell_the_noise() -> None:
    draw = sampler(ROWS)
    first = draw(LOGITS, seed=3, position=5)
    assert np.array_equal(first, draw(LOGITS, seed=3, position=5))
    for other in (draw(LOGITS, seed=4, position=5), draw(LOGITS, seed=3, position=6)):
        assert 0.01 < (first == other).mean() < 0.3


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1e-30}, {"top_k": 1}], ids=str)
def test_greedy(how: dict[str, float]) -> None:
    logits = np.random.default_rng(2).normal(size=(3, VOCABULARY)).astype(np.float32)
    assert sampler(3)(logits, **how).tolist() == logits.argmax(1).tolist()
    logits[:, 9] = np.inf
    assert sampler(3)(logits, temperature=0.0).tolist() == [9, 9, 9]
