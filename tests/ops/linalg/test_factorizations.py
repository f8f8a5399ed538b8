"""Factorizations by their defining properties, by panels, and of symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, dtype_of
from ingot.ops import linalg
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.targets.cpu.workers import host_features

RNG = np.random.default_rng(0)


def _run(build: Callable[..., tuple[Node, ...]], *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays))
    return interpret(Graph(inputs, tuple(build(*inputs))), arrays)


def _assert_near(a: np.ndarray, b: np.ndarray, size: float = 1.0) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=100 * np.finfo(a.dtype).eps * size)


def _assert_orthonormal(q: np.ndarray) -> None:
    _assert_near(q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], *2 * q.shape[-1:])))


DEFICIENT = np.outer(np.arange(1.0, 7), np.ones(4))
SPECIAL = [
    np.zeros((5, 5)),
    np.eye(5),
    np.ones((6, 6)),
    np.diag([1.0, -1.0, 1e-3, 0.0]),
    np.diag([1e150, -1.0, 1e-150]),
    RNG.normal(size=(3, 2, 2)),
    RNG.normal(size=(3, 3)),
    RNG.normal(size=(2, 7, 7)).astype(np.float32),
]


@pytest.mark.parametrize("x", [*SPECIAL, DEFICIENT, DEFICIENT.T, RNG.normal(size=(0, 3)), RNG.normal(size=(1, 4))])
@pytest.mark.parametrize("full", [False, True])
def test_singular_values(x: np.ndarray, full: bool) -> None:
    u, s, v = _run(lambda x: linalg.svd(x, full), x)
    k, size = s.shape[-1], max(1.0, float(np.abs(x).max(initial=0)))
    _assert_orthonormal(u)
    _assert_orthonormal(v)
    assert (np.diff(s) <= 0).all() and (s >= 0).all()
    _assert_near((u[..., :k] * s[..., None, :]) @ v[..., :k].swapaxes(-1, -2), x, size)
    _assert_near(s, np.linalg.svd(x, compute_uv=False), size)
    _assert_near(_run(lambda x: (linalg.singular_values(x),), x)[0], s, size)


@pytest.mark.parametrize("x", SPECIAL)
def test_eigenvalues(x: np.ndarray) -> None:
    w, v = _run(lambda x: ops.Eigh()(x).results, x)
    full = np.tril(x) + np.tril(x, -1).swapaxes(-1, -2)
    size = max(1.0, float(np.abs(x).max()))
    _assert_orthonormal(v)
    _assert_near(full @ v, v * w[..., None, :], size)
    _assert_near(w, np.linalg.eigvalsh(full), size)


def test_general_eigenvalues() -> None:
    """Compiled: defective matrices, a permutation, exact zeros, large and small numbers, and NaN in one of a batch."""
    eye, rng = np.eye(5), np.random.default_rng(3)
    x = np.stack([
        rng.normal(size=(5, 5)), eye + np.eye(5, k=1), np.eye(5, k=1), np.roll(eye, 1, 0), np.ones((5, 5)), 0 * eye,
        rng.normal(size=(5, 5)) * 1e200, rng.normal(size=(5, 5)) * 1e-200, np.diag([1.0, 2, 3, 3, np.nan]),
    ])  # fmt: skip
    node = Input("x", TensorType(dtype_of(x), x.shape))()
    model = CompiledModel(build_program(Graph((node,), ops.Eig()(node).results), host_features(), 1), threads=1)
    results = model(x)
    assert isinstance(results, tuple)
    w, v = results[0] + 1j * results[1], results[2] + 1j * results[3]
    assert np.isnan(w[-1]).all() and np.isnan(v[-1]).all()
    x, w, v = x[:-1], w[:-1], v[:-1]
    size = np.maximum(np.abs(x).max((1, 2)), np.finfo(np.float64).tiny)[:, None, None]
    np.testing.assert_allclose((x @ v - v * w[:, None]) / size, 0, atol=2e-14)
    np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1, rtol=1e-14)
    roots = np.exp(2j * np.pi * np.arange(5) / 5)
    np.testing.assert_array_equal(np.sort_complex(np.round(w[3], 12)), np.sort_complex(np.round(roots, 12)))
    assert (w[4].imag == 0).all() and not w[5].any()


@pytest.mark.parametrize("x", [DEFICIENT, DEFICIENT.T, SPECIAL[-1]])
@pytest.mark.parametrize("complete", [False, True])
def test_orthogonal_bases(x: np.ndarray, complete: bool) -> None:
    q, r = _run(lambda x: linalg.qr(x, complete), x)
    _assert_orthonormal(q)
    _assert_near(q @ r, x, float(np.abs(x).max()))
    np.testing.assert_array_equal(r, np.triu(r))


def test_rank_deficient_systems() -> None:
    a, b = DEFICIENT + 0.0, RNG.normal(size=(6, 2))
    least = ops.full((), 1e-9, ops.scalar(0.0).dtype)
    (x, _), (inverse,) = (
        _run(lambda a, b: linalg.least_squares(a, b, ops.cast(least, a.dtype)), a, b),
        _run(lambda a: (linalg.pseudo_inverse(a, ops.cast(least, a.dtype)),), a),
    )
    _assert_near(inverse, np.linalg.pinv(a))
    _assert_near(x, np.linalg.lstsq(a, b, rcond=1e-9)[0])


def test_matrix_exponential() -> None:
    x = np.stack([np.zeros((3, 3)), np.diag([1.0, -30.0, 5.0]), np.triu(np.full((3, 3), 9.0), 1)])
    (y,) = _run(lambda x: (linalg.exponential(x),), x)
    nilpotent = np.array([[1, 9, 9 + 40.5], [0, 1, 9], [0, 0, 1]])
    want = np.stack([np.eye(3), np.diag(np.exp([1.0, -30.0, 5.0])), nilpotent])
    np.testing.assert_allclose(y, want, rtol=1e-12, atol=1e-12)


def _all_factorizations(x: Node, b: Node) -> tuple[Node, ...]:
    positive = ops.MatMul()(x, linalg.transposed(x))
    lu, _, order = ops.LU()(x).results
    q, r = linalg.qr(x)
    return linalg.cholesky(positive), positive, lu, order, linalg.solve(x, b), q, r


@pytest.mark.slow
@pytest.mark.parametrize("open_sizes", [False, True])
def test_by_panels(open_sizes: bool) -> None:
    n = 70
    x = (RNG.normal(size=(2, n, n)) / n + np.eye(n)).astype(np.float32)
    b = RNG.normal(size=(2, n, 3)).astype(np.float32)
    rows = symbol("n") if open_sizes else n
    types = TensorType(dtype_of(x), (2, rows, rows)), TensorType(dtype_of(b), (2, rows, 3))
    inputs = tuple(Input(f"x{i}", t)() for i, t in enumerate(types))
    model = CompiledModel(build_program(Graph(inputs, _all_factorizations(*inputs)), host_features(), 2), threads=2)
    results = model(x, b)
    assert isinstance(results, tuple)
    factor, positive, lu, order, solved, q, r = results
    _assert_near(factor @ factor.swapaxes(-1, -2), positive)
    lower = np.tril(lu, -1) + np.eye(n, dtype=np.float32)
    _assert_near(lower @ np.triu(lu), np.take_along_axis(x, order[..., None], 1))
    _assert_near(x @ solved, b)
    _assert_near(q @ r, x)
    _assert_orthonormal(q)
