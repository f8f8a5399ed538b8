"""Programs of the kinds that users write, against XLA: control flow, segments, sorting, convolutions, sums, algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot.ir.interp import interpret

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
lax = pytest.importorskip("jax.lax")
jsp = pytest.importorskip("jax.scipy")

from ingot.frontends.jax import import_jax  # noqa: E402

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
KEY = np.array([1, 2], np.uint32)
SEGMENTS = np.array([0, 0, 1, 3, 3, 3], np.int32)


def f(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def n(limit: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, limit, shape).astype(np.int32)


def definite(size: int) -> np.ndarray:
    a = f(size, size)
    return a @ a.T + size * np.eye(size, dtype=np.float32)


@jax.custom_vjp
def gentle(x: Any) -> Any:
    return jnp.sin(x)


gentle.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g, -0.1, 0.1) * jnp.cos(x),))


def scanned(x: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        return {"a": c["a"] * 0.9 + v, "n": c["n"] + 1}, (c["a"].sum(), v * c["n"])

    return lax.scan(step, {"a": jnp.zeros(3), "n": jnp.int32(0)}, x)


def conditional(p: Any, x: Any) -> Any:
    return lax.cond(p > 0, lambda v: {"y": v * 2, "z": v.sum()}, lambda v: {"y": v - 1, "z": v.max()}, x)


def recurrence(a: Any, b: Any) -> Any:
    return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b), axis=1)


def updated(x: Any, i: Any) -> Any:
    return (
        x.at[i].set(1.0), x.at[i].add(2.0), x.at[i, 1].multiply(3.0), x.at[i].max(0.5), x.at[-1].apply(jnp.sin),
        x.at[i].get(mode="fill", fill_value=-1.0), x.at[::2].divide(2.0), x.at[9].set(3.0, mode="drop"),
    )  # fmt: skip


def read(x: Any, i: Any) -> Any:
    return (
        x[i], x[i, i], x[:, i], x[i][:, None], x[..., None, 0], x[::-1, 1:2], jnp.take(x, i, 0, mode="wrap"),
        jnp.take_along_axis(x, jnp.argsort(x, 1), 1), lax.dynamic_slice(x, (i[1], 0), (2, 3)),
        lax.dynamic_update_slice(x, x[:1, :2] * 0, (i[1], i[2])),
    )  # fmt: skip


def windows(x: Any) -> Any:
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 3), (1, 2, 2), "SAME")
    pads = ((0, 0), (1, 1), (2, 0))
    return pooled, lax.reduce_window(x, 0.0, lax.add, (1, 3, 3), (1, 1, 1), pads, window_dilation=(1, 2, 1))


def grouped(x: Any, w: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers, feature_group_count=2)


def weighted(x: Any, w: Any) -> Any:
    return jax.grad(lambda v: (grouped(x, v) ** 2).sum())(w)


def cumulated(x: Any) -> Any:
    kinds = (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)
    return [k(x, 1) for k in kinds], [k(x, 0, reverse=True) for k in kinds]


def segmented(x: Any, s: Any) -> Any:
    kinds = (jax.ops.segment_sum, jax.ops.segment_max, jax.ops.segment_min, jax.ops.segment_prod)
    return [k(x, s, num_segments=5) for k in kinds]


def pair_reduction(x: Any) -> Any:
    return lax.reduce((x, x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,))


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "a scan that carries a tree": (scanned, (f(5, 3),)),
    "a scan from the end": (lambda x: lax.scan(lambda c, v: (c + v, c), jnp.zeros(3), x, reverse=True), (f(5, 3),)),
    "a scan over nothing": (lambda x: lax.scan(lambda c, _: (c * 0.5 + 1, c), x, None, length=4), (f(3),)),
    "a scan under vmap": (jax.vmap(lambda x: lax.scan(lambda c, v: (c + v, c), 0.0, x)), (f(3, 5),)),
    "custom_vjp": (jax.grad(lambda x: gentle(x).sum()), (f(4, 3),)),
    "fori_loop": (lambda x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + x[i], jnp.zeros(3)), (f(5, 3),)),
    "branches that give trees": (conditional, (f(), f(4))),
    "associative_scan": (recurrence, (f(3, 9), f(3, 9))),
    "associative_scan of matrices": (lambda x: lax.associative_scan(jnp.matmul, x), (f(5, 3, 3),)),
    "hessian": (jax.hessian(lambda x: (jnp.sin(x) * x[::-1]).sum()), (f(4),)),
    "checkpoint": (jax.grad(lambda x: jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(x).sum()), (f(4),)),
    "segments": (segmented, (f(6, 2), SEGMENTS)),
    "top_k": (lambda x: (lax.top_k(x, 3), lax.approx_max_k(x, 3), lax.approx_min_k(x, 2)), (f(4, 64),)),
    "sort by two keys": (lambda a, b, c: lax.sort((a, b, c), num_keys=2), (n(3, 20), n(3, 20), f(20))),
    "sort along the first axis": (lambda a, b: lax.sort((a, b), dimension=0), (n(3, 9, 2), f(9, 2))),
    "searchsorted": (lambda a, v: (jnp.searchsorted(a, v), jnp.digitize(v, a)), (np.sort(f(9)), f(5))),
    "quantiles": (lambda x: (jnp.median(x, 0), jnp.percentile(x, 30.0, axis=1), jnp.histogram(x, 5)[0]), (f(6, 5),)),
    "cumulated": (cumulated, (f(4, 5),)),
    "windows": (windows, (f(2, 6, 7),)),
    "convolutions in groups": (grouped, (f(2, 7, 6, 4), f(3, 3, 2, 6))),
    "gradients of weights": (weighted, (f(2, 7, 6, 4), f(3, 3, 2, 6))),
    "patches": (lambda x: lax.conv_general_dilated_patches(x, (2, 3), (1, 2), "VALID"), (f(2, 3, 6, 7),)),
    "einsum with an ellipsis": (lambda a, b: jnp.einsum("b...d,hd->b...h", a, b), (f(2, 3, 4, 5), f(6, 5))),
    "einsum of three": (lambda a, b, c: jnp.einsum("abc,cd,de->abe", a, b, c), (f(2, 3, 4), f(4, 5), f(5, 2))),
    "einsum of a diagonal": (lambda a: jnp.einsum("ii->i", a), (f(4, 4),)),
    "solve": (lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.cholesky(a)), (definite(5), f(5, 2))),
    "inverse": (lambda a: (jnp.linalg.inv(a), jnp.linalg.slogdet(a)), (definite(4),)),
    "expm": (lambda a: jsp.linalg.expm(a * 0.1), (f(3, 3),)),
    "conjugate gradients": (lambda a, b: jsp.sparse.linalg.cg(lambda v: a @ v, b)[0], (definite(4), f(4))),
    "transforms": (lambda x: (jnp.abs(jnp.fft.rfft(x)), jnp.fft.irfft(jnp.fft.rfft(x) * 2, n=9)), (f(9),)),
    "filters": (lambda a, b: jsp.signal.fftconvolve(a, b, mode="same"), (f(12), f(5))),
    "random numbers": (lambda k: (jax.random.exponential(k, (5,)), jax.random.poisson(k, 3.0, (5,))), (KEY,)),
    "updates": (updated, (np.abs(f(5, 3)) + 0.1, np.array([0, 3, 3], np.int32))),
    "indices": (read, (f(4, 4), np.array([0, 2, 1], np.int32))),
    "several reduced at once": (pair_reduction, (f(4, 5),)),
    "images": (lambda x: jax.image.resize(x, (7, 9, 3), "cubic"), (f(5, 6, 3),)),
    "attention": (lambda x: jax.nn.dot_product_attention(x, x, x, is_causal=True), (f(2, 6, 2, 4),)),
    "experts": (lambda a, b: lax.ragged_dot(a, b, jnp.array([2, 3, 1], jnp.int32)), (f(6, 4), f(3, 4, 5))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_programs_against_xla(name: str):
    fn, args = CASES[name]
    imported = import_jax(fn, args)
    got = imported.unflatten(interpret(imported.graph, imported.flatten(args, {})))
    want = fn(*map(jnp.asarray, args))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.asarray(g).dtype == np.asarray(w).dtype
        np.testing.assert_allclose(g, np.asarray(w), rtol=1e-5, atol=2e-5)
