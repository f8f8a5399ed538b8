"""Tokens of the program that generates, beside logits of `transformers`; however they are cut into calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.language.cache import CacheForm
from ingot.language.generate import STOPS, generate
from ingot.language.sampler import SETTINGS
from ingot.runtime.executor import CompiledModel
from tests.language.models import MODELS, compiled, model, network

MOST = 8
GREEDY = {"temperature": 0.0}


class Session:
    """A program and what its sequences are so far."""

    def __init__(self, program: CompiledModel, prompt: np.ndarray) -> None:
        self.program, self.prompt, self.position = program, prompt, 0
        program.set_state({name: np.zeros_like(value) for name, value in program.state().items()})

    def read(self, end: int, count: int, how: Mapping[str, float] = GREEDY, stops: Sequence[int] = ()) -> np.ndarray:
        """Up to `end` of the sequences so far, then `count` tokens more."""
        settings = {name: value for name, (_, value) in SETTINGS.items()} | dict(how)
        values = [np.array(settings[name], dtype.numpy) for name, (dtype, _) in SETTINGS.items()]
        ends = np.array([*stops, *[-1] * (STOPS - len(stops))])
        ids, is_prompt = self.prompt[:, self.position : end], np.array(self.position + 1 < end)
        tokens, counts, _ = self.program(ids, np.array([self.position]), is_prompt, np.array(count), ends, *values)
        self.position, new_tokens = end, np.asarray(tokens)[:, : int(counts)]
        self.prompt = np.concatenate([self.prompt, new_tokens], 1)
        return new_tokens


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, CompiledModel]:
    net = model(*MODELS["gemma 3"])
    language = network(net, tmp_path_factory.mktemp("model"), 40)
    return net, compiled(generate(language, CacheForm.of(language.architecture, 2, 40), MOST))


def prompt(length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(3, 61, (2, length))


def expected(net: Any, ids: np.ndarray, count: int) -> np.ndarray:
    torch = pytest.importorskip("torch")
    for _ in range(count):
        with torch.no_grad():
            logits = net(torch.from_numpy(ids)).logits.numpy()
        ids = np.concatenate([ids, logits[:, -1].argmax(1)[:, None]], 1)
    return ids


def test_greedy_tokens(tiny: tuple[Any, CompiledModel]) -> None:
    net, program = tiny
    s = Session(program, prompt(9))
    assert s.read(5, 0).shape == (2, 0)
    s.read(9, 8)
    s.read(17, 3)
    s.read(20, 99)  # at most what a call has room for
    assert s.prompt.tolist() == expected(net, prompt(9), 19).tolist()


def test_rings_of_windows(tiny: tuple[Any, CompiledModel], tmp_path: Path) -> None:
    """The steps of the loop go round the window; a new sequence begins in what an earlier one left."""
    language = network(tiny[0], tmp_path, 40)
    form = CacheForm.of(language.architecture, 2, 40, has_rings=True)
    program = compiled(generate(language, form, MOST))
    for length in (9, 3):
        s = Session(program, prompt(length))
        s.read(length, 8)
        s.position = length + 7  # the last token is in no cache yet; a ring is continued at its end alone
        s.read(length + 8, 5)
        assert s.prompt.tolist() == expected(tiny[0], prompt(length), 13).tolist()


HOW = {"temperature": 0.9, "top_k": 30, "seed": 5, "repetition_penalty": 1.3, "frequency_penalty": 0.4}


@pytest.mark.parametrize("how", [HOW, {"temperature": 1.0, "seed": 6}], ids=["penalties", "plain"])
def test_calls_of_any_length_draw_the_same(tiny: tuple[Any, CompiledModel], how: dict[str, float]) -> None:
    session, cut = Session(tiny[1], prompt(6)), list[list[int]]()
    session.read(6, 8, how)
    session.read(14, 4, how)
    for chunks in ([(6, 1)], [(2, 0), (6, 3)]):
        s = Session(tiny[1], prompt(6))
        for end, count in chunks:
            s.read(end, count, how)
        while s.prompt.shape[1] < 18:
            s.read(s.prompt.shape[1], min(2, 18 - s.prompt.shape[1]), how)
        cut.append(s.prompt.tolist())
    assert cut == [session.prompt.tolist()] * 2


@pytest.mark.slow
def test_threads_draw_the_same(tiny: tuple[Any, CompiledModel], tmp_path: Path) -> None:
    language = network(tiny[0], tmp_path, 40)
    other = compiled(generate(language, CacheForm.of(language.architecture, 2, 40), MOST), threads=2)
    first, second = (Session(program, prompt(9)).read(9, 8, HOW) for program in (tiny[1], other))
    assert np.array_equal(first, second)


def test_stops_end_the_loop_where_all_sequences_came_to_one(tiny: tuple[Any, CompiledModel]) -> None:
    free = Session(tiny[1], prompt(9)).read(9, 8)
    ends = [int(free[0, 2]), int(free[1, 4])]
    step_count = max(next(i for i, token in enumerate(row) if token in ends) for row in free) + 1
    assert step_count < 8
    assert Session(tiny[1], prompt(9)).read(9, 8, stops=ends).tolist() == free[:, :step_count].tolist()


def test_bias_forbids(tiny: tuple[Any, CompiledModel]) -> None:
    s = Session(tiny[1], prompt(5))
    bias = np.full((2, 61), -np.inf, np.float32)
    bias[:, 11] = 0
    s.program.set_state({"bias": bias})
    assert s.read(5, 4, {"temperature": 1.0}).tolist() == [[11] * 4] * 2
