"""Logits of every family beside `transformers` in float32: a prompt in two chunks, then steps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import DType, TensorType, bf16, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i64
from ingot.language.cache import CacheForm, Position, with_rows
from ingot.language.layers import Network
from ingot.language.programs import chunk
from ingot.language.weights import ArrayWeights
from ingot.support.errors import ImportModelError, InputError, ShapeError
from tests.language.models import FAST, MODELS, compiled, files, model, network

CASES = [pytest.param(name, marks=[pytest.mark.slow] if i >= FAST else []) for i, name in enumerate(MODELS)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    net = model(*MODELS[name])
    language = network(net, tmp_path, 32)
    for batch in (1, 3):
        agrees(language, net, batch)


def agrees(
    language: Network,
    net: Any,
    batch: int = 1,
    tolerance: float = 1e-4,
    dtype: DType = f32,
    has_rings: bool = False,
) -> None:
    """A prompt in two chunks, then steps; the tolerance is of the largest logit."""
    ids = np.random.default_rng(0).integers(3, 61, (batch, 24))
    expected = logits(net, ids)
    form = CacheForm.of(language.architecture, batch, language.context, dtype, has_rings=has_rings)
    program = compiled(chunk(language, form))
    for start, end in pairwise([0, 7, 16, *range(17, 25)]):
        got = np.asarray(program(ids[:, start:end], np.array([start])))
        np.testing.assert_allclose(got, expected[:, end - 1], atol=tolerance * np.abs(expected).max(), rtol=0)


def logits(net: Any, ids: np.ndarray) -> np.ndarray:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return net(torch.from_numpy(ids)).logits.numpy()


@pytest.mark.parametrize(("dtype", "tolerance"), [(f16, 2e-3), (bf16, 2e-2), (i8, 2e-2), (f8e4m3fn, 0.1)], ids=str)
def test_narrow_caches(dtype: DType, tolerance: float, tmp_path: Path) -> None:
    net = model(*MODELS["llama 3"])
    agrees(network(net, tmp_path, 32), net, 1, tolerance, dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "tolerance"), [(f32, 1e-4), (i8, 2e-2), (f8e5m2, 0.2)], ids=str)
def test_rings(dtype: DType, tolerance: float, tmp_path: Path) -> None:
    """Layers with a window keep no more than it: chunks longer and shorter than it, then steps."""
    net = model(*MODELS["gemma 3"])
    language = network(net, tmp_path, 32)
    form = CacheForm.of(language.architecture, 2, 32, dtype, has_rings=True)
    assert {t.shape[2] for layer in form.layers for _, t in layer} == {6, 32}
    agrees(language, net, 2, tolerance, dtype, has_rings=True)


def test_large_values_are_finite_in_8_bit_floats() -> None:
    """They are stored as the largest that there is."""
    x = Input("x", TensorType(f32, (1, 1, 2, 2)))()
    for dtype, largest in ((f8e4m3fn, 448), (f8e5m2, 57344)):
        cache, at = Input("cache", TensorType(dtype, (1, 1, 2, 2)))(), ops.scalar(0, i64)
        graph = Graph((x, cache), with_rows([cache], x, Position(0, at)))
        values = np.array([[[[1e6, -1e6], [448.0, 0.5]]]], np.float32)
        (got,) = interpret(graph, [values, np.zeros((1, 1, 2, 2), dtype.numpy)])
        assert np.asarray(got, np.float32).tolist() == [[[[largest, -largest], [448, 0.5]]]]


def test_other_caches_are_refused(tmp_path: Path) -> None:
    language = network(model(*MODELS["llama 3"]), tmp_path, 32)
    with pytest.raises(InputError, match="caches: expected one of f32, f16, bf16, i8, f8e4m3fn, f8e5m2, got f64"):
        CacheForm.of(language.architecture, 1, 32, f64)


def test_logits_of_every_token(tmp_path: Path) -> None:
    net = model(*MODELS["llama 3"])
    language, ids = network(net, tmp_path, 32), np.random.default_rng(3).integers(3, 61, (2, 9))
    program = compiled(chunk(language, CacheForm.of(language.architecture, 2, 32), every=True))
    np.testing.assert_allclose(np.asarray(program(ids, np.array([0]))), logits(net, ids), atol=1e-4)


def test_factors_of_a_longer_context_than_the_original(tmp_path: Path) -> None:
    """Phi-3's are chosen by the context, once: `transformers` takes them by the length of a call."""
    net = model(*MODELS["phi 3, long"])
    language, ids = network(net, tmp_path, 40), np.random.default_rng(3).integers(3, 61, (1, 36))
    program = compiled(chunk(language, CacheForm.of(language.architecture, 1, 40)))
    np.testing.assert_allclose(np.asarray(program(ids, np.array([0]))), logits(net, ids)[:, -1], atol=1e-4)


def test_a_chunk_lies_within_the_context(tmp_path: Path) -> None:
    language = network(model(*MODELS["llama 3"]), tmp_path, 32)
    program = compiled(chunk(language, CacheForm.of(language.architecture, 1, 32)))
    for ids, at in (
        (np.zeros((1, 33), np.int64), 0),
        (np.zeros((1, 5), np.int64), 28),
        (np.zeros((1, 1), np.int64), -1),
    ):
        with pytest.raises(InputError):
            program(ids, np.array([at]))


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, "needs its up: expected tensor 'model.layers.1.mlp.up"),
        ({"model.layers.0.self_attn.sinks": np.ones(4)}, "another model than family 'llama'.*sinks"),
        ({NORM: np.ones(5)}, NORM),
    ],
    ids=str,
)
def test_tensors_of_another_model_are_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    net = model(*MODELS["llama"])
    architecture, weights = files(net, tmp_path)
    weights = {name: array for name, array in (weights | changes).items() if array is not None}
    language = Network(architecture, ArrayWeights(weights), 32)
    with pytest.raises((ImportModelError, ShapeError), match=match):
        chunk(language, CacheForm.of(architecture, 1, 32))


@pytest.mark.parametrize("name", ["llama 3", "gpt 2"])
def test_files_of_a_model_without_its_head(name: str, tmp_path: Path) -> None:
    net = model(*MODELS[name])
    architecture, weights = files(net, tmp_path)
    bare = {n.removeprefix("model.").removeprefix("transformer."): array for n, array in weights.items()}
    assert bare.keys() != weights.keys()
    agrees(Network(architecture, ArrayWeights(bare), 32), net)


def test_learned_positions_bound_the_context(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="context: expected 1 to 64 tokens, got 65"):
        network(model(*MODELS["gpt 2"]), tmp_path, 65)
