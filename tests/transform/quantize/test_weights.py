"""Weights at levels: by channel, in blocks, with error feedback."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.transform.quantize.sites import Site, find_groups
from ingot.transform.quantize.weights import feedback_factor, quantize_blocks, quantize_channels
from tests.transform.quantize import nets


def site(name: str) -> Site:
    return next(s for g in find_groups(nets.mlp()) for s in g.sites if s.name == name)


@pytest.mark.parametrize("name", ["first", "second"])  # depth first, and output channels first
def test_channels_are_within_half_a_level(name: str):
    s = site(name)
    q = quantize_channels(s, s.weight())
    assert np.abs(q.q).max() == 127
    assert (np.abs(q.value(s) - s.weight()) <= 0.5001 * s.per_channel(q.scale)).all()


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_node_is_the_value(name: str, bits: int):
    s = site(name)
    for q in (quantize_blocks(s, s.weight(), bits), quantize_channels(s, s.weight())):
        (got,) = interpret(Graph((), (q.node(s),)), [])
        np.testing.assert_array_equal(got, q.value(s))
    assert np.abs(q.value(s) - s.weight()).max() < 0.2 * np.abs(s.weight()).max()


def test_zeros_and_one_sided_blocks_are_kept():
    s = site("first")
    w = np.abs(s.weight()) + 1
    w[:, 0] = 0
    q = quantize_blocks(s, w, 4)
    assert (q.value(s)[:, 0] == 0).all()
    assert (quantize_channels(s, w).value(s)[:, 0] == 0).all()


@pytest.mark.parametrize("bits", [4, 8, None])
def test_error_feedback_pays_where_values_are_correlated(bits: int | None):
    s = site("last")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((500, 6)) @ rng.standard_normal((6, 70)) + 0.1 * rng.standard_normal((500, 70))).astype(
        np.float32
    )
    w = s.weight()
    exact = x @ w
    corrected = (
        quantize_blocks(s, w, bits, u) if bits else quantize_channels(s, w, u) for u in (None, feedback_factor(x.T @ x))
    )
    plain, fed = (np.square(x @ q.value(s) - exact).mean() for q in corrected)
    assert fed < 0.5 * plain


@pytest.mark.parametrize("bits", [4, 8, None])
def test_error_feedback_keeps_what_was_pruned(bits: int | None):
    s = site("last")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 70)).astype(np.float32) @ (np.eye(70) + 0.5).astype(np.float32)
    w = np.where(rng.random(s.weight().shape) < 0.8, 0, s.weight())
    corrected = (
        quantize_blocks(s, w, bits, feedback_factor(x.T @ x))
        if bits
        else quantize_channels(s, w, feedback_factor(x.T @ x))
    )
    assert (corrected.value(s)[w == 0] == 0).all()


def test_moments_of_nothing():
    s = site("last")
    plain, fed = (
        quantize_blocks(s, s.weight(), 4),
        quantize_blocks(s, s.weight(), 4, feedback_factor(np.zeros((70, 70), np.float32))),
    )
    np.testing.assert_array_equal(plain.q, fed.q)
