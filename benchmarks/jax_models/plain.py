"""Programs in plain JAX: loops, branches, sorts, transforms, linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .case import Case, Sizes, normal

SIZES: tuple[Sizes, ...] = ({"n": 12}, {"n": 5}, {"n": 40})
ROWS = {"x": {0: "n"}, "n": (2, 64)}

Inputs = Callable[[Sizes, np.random.Generator], tuple[Any, ...]]


def _rows(width: int) -> Inputs:
    return lambda sizes, rng: (normal(rng, sizes.get("n", 12), width),)


def _weights(*shape: int) -> np.ndarray:
    return normal(np.random.default_rng(5), *shape) / np.sqrt(shape[-1])


def scan(w: Any, x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        h, total = carry
        h = jnp.tanh(row @ w + h)
        return (h, total + jnp.sum(h)), h * total

    return jax.lax.scan(step, (jnp.zeros(8), 0.0), x)


def branches(w: Any, x: Any) -> Any:
    y = jax.lax.cond(x.sum() > 0, lambda v: v @ w, lambda v: jnp.sin(v) @ w.T, x)
    return jax.lax.switch(jnp.clip(x[0, 0].astype(jnp.int32), 0, 2), [jnp.exp, jnp.abs, lambda v: -v], y)


def newton(w: Any, x: Any) -> Any:
    """Square roots until no element moves."""

    def going(state: Any) -> Any:
        return (jnp.max(jnp.abs(state[0] - state[1])) > 1e-6) & (state[2] < 60)

    start = jnp.abs(x @ w) + 1.0
    return jax.lax.while_loop(going, lambda s: ((s[0] + start / s[0]) / 2, s[0], s[2] + 1), (start, start * 0, 0))[0]


def sorting(w: Any, x: Any) -> Any:
    y = jnp.cumsum(x @ w, axis=0)
    order = jnp.argsort(y[:, 0])
    values, places = jax.lax.top_k(y, 3)
    return jnp.sort(y, axis=0), jnp.take(y, order, axis=0), values, places, jnp.median(y, axis=1)


def spectrogram(w: Any, x: Any) -> Any:
    frames = jnp.stack([x[:, i * 16 : i * 16 + 64] for i in range(5)], 1) * w
    power = jnp.abs(jnp.fft.rfft(frames)) ** 2
    return jnp.log(power + 1e-6), jnp.fft.irfft(jnp.fft.rfft(x))


def gaussian_process(w: Any, x: Any) -> Any:
    """The posterior's mean and variance, and the evidence."""

    def kernel(a: Any, b: Any) -> Any:
        return jnp.exp(-0.5 * jnp.sum((a[:, None] - b[None]) ** 2, -1))

    factor = jnp.linalg.cholesky(kernel(w, w) + 0.1 * jnp.eye(w.shape[0]))
    y = jnp.sin(w.sum(1))
    alpha = jax.scipy.linalg.cho_solve((factor, True), y)
    cross = kernel(w, x)
    v = jax.scipy.linalg.solve_triangular(factor, cross, lower=True)
    return cross.T @ alpha, 1 - jnp.sum(v * v, 0), -0.5 * y @ alpha - jnp.sum(jnp.log(jnp.diag(factor)))


def linear_algebra(w: Any, x: Any) -> Any:
    a = x.T @ x + jnp.eye(x.shape[1])
    values, vectors = jnp.linalg.eigh(a)
    q, r = jnp.linalg.qr(a)
    s = jnp.linalg.svd(a, compute_uv=False)
    return values, (vectors * values) @ vectors.T, q @ r, s, jnp.linalg.solve(a, w), jnp.linalg.slogdet(a)[1]


def kalman(w: Any, x: Any) -> Any:
    """Means of a filter, one observation after the other."""
    observe = w[:2]

    def step(state: Any, z: Any) -> Any:
        mean, cov = w @ state[0], w @ state[1] @ w.T + 0.1 * jnp.eye(4)
        gain = jnp.linalg.solve(observe @ cov @ observe.T + 0.2 * jnp.eye(2), observe @ cov).T
        mean = mean + gain @ (z - observe @ mean)
        return (mean, cov - gain @ observe @ cov), mean

    return jax.lax.scan(step, (jnp.zeros(4), jnp.eye(4)), x)[1]


def viterbi(w: Any, x: Any) -> Any:
    """The likeliest path of states."""

    def forward(score: Any, row: Any) -> Any:
        paths = score[:, None] + w
        return paths.max(0) + row, paths.argmax(0)

    score, back = jax.lax.scan(forward, x[0], x[1:])
    last = jnp.argmax(score)
    path = jax.lax.scan(lambda s, b: (b[s], s), last, back, reverse=True)[1]
    return score, path, last


def kmeans(w: Any, x: Any) -> Any:
    def step(_: int, centers: Any) -> Any:
        near = jnp.argmin(jnp.sum((x[:, None] - centers[None]) ** 2, -1), 1)
        count = jax.ops.segment_sum(jnp.ones(x.shape[0]), near, 4)
        sums = jax.ops.segment_sum(x, near, 4)
        return jnp.where(count[:, None] > 0, sums / jnp.maximum(count, 1)[:, None], centers)

    return jax.lax.fori_loop(0, 8, step, w)


def runge_kutta(w: Any, x: Any) -> Any:
    """Bodies that attract each other."""

    def slope(s: Any) -> Any:
        p, v = s[:, :3], s[:, 3:]
        d = p[None] - p[:, None]
        pull = d / (jnp.sum(d * d, -1, keepdims=True) + 0.1) ** 1.5
        return jnp.concatenate([v, pull.sum(1) @ w], 1)

    def step(s: Any, _: None) -> Any:
        k1 = slope(s)
        k2 = slope(s + 0.005 * k1)
        k3 = slope(s + 0.005 * k2)
        return s + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + slope(s + 0.01 * k3)), None

    return jax.lax.scan(step, x, None, length=20)[0]


def gradients(w: Any, x: Any) -> Any:
    """A loss, its gradient and a product with its Hessian."""

    def loss(p: Any) -> Any:
        return jnp.mean(jax.nn.logsumexp(jnp.tanh(x @ p), -1) - jax.nn.softplus(x @ p).max(-1))

    value, grad = jax.value_and_grad(loss)(w)
    return value, grad, jax.jvp(jax.grad(loss), (w,), (w,))[1]


def special(w: Any, x: Any) -> Any:
    y = jnp.abs(x @ w) + 0.5
    s = jax.scipy.special
    return s.gammaln(y), s.digamma(y), s.erfinv(jnp.tanh(x)), s.i0e(y), s.betainc(y, y + 1, 0.3), s.zeta(y + 1, 1.5)


def strided(w: Any, x: Any) -> Any:
    """Convolutions of one, two and three axes, dilated, strided, grouped, transposed."""
    one = jax.lax.conv_general_dilated(x[:, None], w[:4, None, :5], (2,), "SAME", rhs_dilation=(2,))
    image = x[:, :64].reshape(-1, 1, 8, 8)
    two = jax.lax.conv_transpose(
        image, w[:9, :1].reshape(3, 3, 1, 1), (2, 2), "VALID", dimension_numbers=("NCHW", "HWIO", "NCHW")
    )
    cube = x[:, :64].reshape(-1, 1, 4, 4, 4)
    three = jax.lax.conv_general_dilated(cube, w[:8, :1].reshape(1, 1, 2, 2, 2), (1, 2, 1), "VALID")
    return one, two, three, jax.lax.reduce_window(two, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    programs: tuple[tuple[Callable[..., Any], Any, Inputs, bool], ...] = (
        (scan, _weights(6, 8), _rows(6), True),
        (branches, _weights(8, 8), _rows(8), True),
        (newton, _weights(6, 8), _rows(6), True),
        (sorting, _weights(6, 8), _rows(6), True),
        (spectrogram, _weights(64), _rows(128), True),
        (gaussian_process, _weights(20, 3), _rows(3), True),
        (linear_algebra, _weights(8, 2), _rows(8), True),
        (kalman, _weights(4, 4), _rows(2), True),
        (viterbi, _weights(5, 5), _rows(5), True),
        (kmeans, _weights(4, 3), _rows(3), True),
        (runge_kutta, np.eye(3, dtype=np.float32), _rows(6), True),
        (gradients, _weights(6, 8), _rows(6), True),
        (special, _weights(6, 8), _rows(6), True),
        (strided, _weights(9, 8), _rows(64), True),
    )
    for fn, weights, inputs, varies in programs:

        def make(fn: Any = fn, weights: Any = weights, inputs: Any = inputs, varies: bool = varies) -> Case:
            axes, sizes = (ROWS, SIZES) if varies else ({}, SIZES[:1])
            return Case(f"plain {fn.__name__}", fn, weights, inputs, sizes, axes)

        yield fn.__name__, make
