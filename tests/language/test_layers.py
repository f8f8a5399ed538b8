"""Logits of every family beside `transformers` in float32: a prompt in two chunks, then steps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ingot.language.cache import CacheForm
from ingot.language.programs import chunk
from tests.language.models import FAST, MODELS, compiled, decoder, model

CASES = [pytest.param(name, marks=[pytest.mark.slow] if i >= FAST else []) for i, name in enumerate(MODELS)]


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = model(*MODELS[name])
    language = decoder(net, tmp_path, 32)
    for batch in (1, 3):
        program = compiled(chunk(language, CacheForm.of(language.architecture, batch, 32)))
        ids = np.random.default_rng(0).integers(3, 61, (batch, 24))
        with torch.no_grad():
            expected = net(torch.from_numpy(ids)).logits.numpy()
        ends = [7, 16, *range(17, 25)]
        for start, end in pairwise([0, *ends]):
            got = np.asarray(program(ids[:, start:end], np.array([start])))
            np.testing.assert_allclose(got, expected[:, end - 1], atol=1e-4 * np.abs(expected).max(), rtol=0)
