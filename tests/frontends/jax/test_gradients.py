"""Gradients that JAX functions bring along, and what they stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

import ingot  # noqa: E402
from ingot.support.errors import ImportModelError, UnsupportedOpError  # noqa: E402


@jax.custom_vjp
def power(x: Any, n: int, y: Any) -> tuple[Any, Any]:
    return x**n * y, jnp.argmax(x)


def _forward(x: Any, n: int, y: Any) -> tuple[Any, Any]:
    return power(x, n, y), (x, y)


def _backward(residuals: Any, g: Any) -> tuple[Any, None, Any]:
    x, y = residuals
    return jnp.clip(g[0], -0.2, 0.3) * x, None, g[0] * jnp.cos(y)  # not what `power` has


power.defvjp(_forward, _backward)


@jax.custom_jvp
def total(x: Any) -> Any:
    return x.sum()


total.defjvp(lambda x, t: (x[0].sum(), 5 * (x[0] * t[0]).sum()))


def loss(x: Any, y: Any) -> Any:
    a, place = power(x, 3, y)
    c = jax.nn.softmax(jax.nn.gelu(a)) * jax.nn.silu(y) + jax.nn.relu(x) + jax.lax.stop_gradient(x * y) * x

    def body(h: Any, t: Any) -> tuple[Any, Any]:
        h, _ = power(h, 2, t)
        return jnp.tanh(h), total(h)

    h, s = jax.lax.scan(body, x, jnp.stack([y, x, c]))
    return jax.scipy.special.logsumexp(c) + h.sum() + s.sum() + place


def test_gradients_are_jax_own() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=5).astype(np.float32) for _ in range(2))
    x[1] = 0  # where relu's own gradient is 0
    want, (of_x, of_y) = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, y)
    for dynamic in (None, {"x": {0: "n"}, "y": {0: "n"}}):
        got, gradients = ingot.value_and_grad(loss, (x, y), dynamic=dynamic)(x, y)
        assert float(got) == pytest.approx(float(want), rel=1e-5)
        np.testing.assert_allclose(gradients["x"], of_x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gradients["y"], of_y, rtol=1e-5, atol=1e-6)

    step = ingot.train(lambda p, y: loss(p["x"], y), None, ingot.optim.SGD(lr=0.1), ({"x": x}, y))
    step(y)
    np.testing.assert_allclose(step.trained()["x"], x - 0.1 * of_x, rtol=1e-5, atol=1e-6)


def test_slopes_at_the_bounds_are_jax_own() -> None:
    """0 of a clamp, half of a maximum and of a minimum."""
    x = np.array([-2, -1, 0, 1, 2, 6, 7], np.float32)

    def bounded(x: Any) -> Any:
        return (jax.lax.clamp(-1.0, x, 1.0) + jnp.clip(x, 0, 2) + jax.nn.relu6(x)).sum()

    _, gradients = ingot.value_and_grad(bounded, (x,))(x)
    np.testing.assert_array_equal(gradients["x"], jax.jit(jax.grad(bounded))(x))


def test_systems_of_equations() -> None:
    """Their factors are constants to JAX; the gradient is that of the equation."""
    a = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32) + 3 * np.eye(4, dtype=np.float32)

    def solved(a: Any) -> Any:
        inverse, system = jnp.linalg.inv(a), jnp.linalg.solve(a, a[..., :2] ** 2)
        volume = jnp.linalg.slogdet(a)[1].sum()  # whose rule calls it again
        return (inverse**2).sum() + jnp.sin(system).sum() + (jnp.linalg.cholesky(a @ a.mT) ** 2).sum() + volume

    _, gradients = ingot.value_and_grad(solved, (a,))(a)
    np.testing.assert_allclose(gradients["a"], jax.jit(jax.grad(solved))(a), rtol=1e-4, atol=1e-5)


def test_solves_with_other_results_and_integers() -> None:
    """`lax.custom_linear_solve`: what it tells beside the solution has no gradient, nor have integers that it reads."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 3)).astype(np.float32) + 3 * np.eye(3, dtype=np.float32), np.ones(3, np.float32)

    def solved(a: Any, b: Any, power: Any) -> Any:
        def matvec(x: Any) -> Any:
            return (a * a) @ x * (power + 1)

        def solve(f: Any, y: Any) -> Any:
            x = jnp.linalg.solve(jax.jacobian(f)(y), y)
            return x, {"left": jnp.abs(f(x) - y).sum() + power, "turns": power}

        x, facts = jax.lax.custom_linear_solve(matvec, jnp.sin(b), solve, solve, has_aux=True)
        root = jax.lax.custom_root(
            lambda x: x**3 - b, b, lambda f, x: jnp.cbrt(x), lambda g, y: y / g(jnp.ones_like(y))
        )
        return (x**2).sum() + facts["left"] + facts["turns"] + (root**2).sum()

    power = np.int32(2)
    want = jax.jit(jax.grad(solved, (0, 1)))(a, b, power)
    _, got = ingot.value_and_grad(solved, (a, b, power), wrt=("a", "b"))(a, b, power)
    np.testing.assert_allclose(got["a"], want[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["b"], want[1], rtol=1e-4, atol=1e-6)


def test_a_solve_without_its_transpose_has_no_gradient() -> None:
    def solved(x: Any) -> Any:
        return jax.lax.custom_linear_solve(lambda v: 2 * v, x, lambda f, y: y / 2).sum()

    with pytest.raises(TypeError, match="transpose_solve required"):
        ingot.value_and_grad(solved, (np.ones(3, np.float32),))


SLOPES = (
    jnp.abs,
    lambda x: jnp.abs(jax.lax.complex(x, x * 0)),
    jnp.arcsinh,
    lambda x: jax.lax.erf_inv(x / 3),
    jax.lax.cummax,
    jax.lax.cumlogsumexp,
    lambda x: jax.lax.igamma(2.0, jnp.abs(x) + 2),
)


def test_slopes_at_ties_and_at_0() -> None:
    x = np.array([-2, -1, -0.0, 0, 1, 2, 2, 0.5], np.float32)
    weights = np.random.default_rng(0).normal(size=8).astype(np.float32)

    def loss(xs: Any) -> Any:
        return sum((f(x) * weights).sum() for f, x in zip(SLOPES, xs, strict=True))

    xs = np.stack([x] * len(SLOPES))
    _, got = ingot.value_and_grad(loss, (xs,))(xs)
    np.testing.assert_allclose(got["xs"], jax.jit(jax.grad(loss))(xs), rtol=1e-5, atol=1e-6)


def test_own_gradients_of_complex_numbers() -> None:
    @jax.custom_vjp
    def rotated(z: Any) -> Any:
        return z * z

    rotated.defvjp(lambda z: (z * z, z), lambda z, g: (g * (3 + 1j) + jnp.conj(z),))
    x = np.random.default_rng(0).normal(size=5).astype(np.float32)

    def loss(x: Any) -> Any:
        return jnp.real(rotated(jax.lax.complex(x, x**2)) * (1 - 2j)).sum()

    _, got = ingot.value_and_grad(loss, (x,))(x)
    np.testing.assert_allclose(got["x"], jax.jit(jax.grad(loss))(x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gradients_through_loops_that_converge() -> None:
    """Singular values, the incomplete beta function, a draw from a gamma distribution: by JAX's formulas."""
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(4, 3)).astype(np.float32), rng.uniform(0.5, 2, 3).astype(np.float32)

    def loss(x: Any, a: Any) -> Any:
        u, s, v = jnp.linalg.svd(x, full_matrices=False)
        drawn = jax.random.gamma(jax.random.PRNGKey(0), a)
        return (u[:, :1] @ v[:1]).sum() + s.prod() + (drawn**2).sum() + jax.lax.betainc(2.0, 1.5, a / 3).sum()

    value, got = ingot.value_and_grad(loss, (x, a))(x, a)
    want, (of_x, of_a) = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, a)
    assert float(value) == pytest.approx(float(want), rel=1e-5)
    np.testing.assert_allclose(got["x"], of_x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["a"], of_a, rtol=1e-4, atol=1e-5)

    with pytest.raises(UnsupportedOpError, match="tells no gradient"):  # JAX has none by the shape either
        ingot.value_and_grad(lambda a: jax.lax.betainc(a, 1.5, 0.5).sum(), (a,))


def test_a_function_with_its_own_gradient_closes_over_arrays() -> None:
    rng = np.random.default_rng(0)
    table, x, y = (rng.normal(size=4).astype(np.float32) for _ in range(3))
    constant = jnp.asarray(table)

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * constant

    scaled.defvjp(lambda x: (x * constant, x), lambda x, g: (g * constant * 3 + x,))

    def loss(x: Any) -> Any:
        scanned, _ = jax.lax.scan(lambda h, _: (scaled(jnp.sin(h)), None), x, None, length=3)
        return (scaled(x) ** 2).sum() + scanned.sum()

    _, got = ingot.value_and_grad(loss, (x,))(x)
    np.testing.assert_allclose(got["x"], jax.jit(jax.grad(loss))(x), rtol=1e-4, atol=1e-5)

    def closed(x: Any, y: Any) -> Any:
        f = jax.custom_vjp(lambda x: x * y)
        f.defvjp(lambda x: (f(x), x), lambda x, g: (g * x,))
        return f(x).sum()

    with pytest.raises(ImportModelError, match="give that value as an argument"):  # the rules' y is gone by then
        ingot.value_and_grad(closed, (x, y))


def test_a_differential_equation() -> None:
    """Its own gradient solves another one, by the same function: in a loop within that gradient."""
    from jax.experimental.ode import odeint

    rng = np.random.default_rng(0)
    y, w = rng.normal(size=3).astype(np.float32), rng.normal(size=(3, 3)).astype(np.float32)

    def loss(y: Any, w: Any) -> Any:
        return (odeint(lambda y, t: jnp.sin(w @ y) + t, y, jnp.asarray([0.0, 1.0]))[-1] ** 2).sum()

    _, got = ingot.value_and_grad(loss, (y, w))(y, w)
    want = jax.jit(jax.grad(loss, (0, 1)))(y, w)
    np.testing.assert_allclose(got["y"], want[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got["w"], want[1], rtol=1e-3, atol=1e-4)
