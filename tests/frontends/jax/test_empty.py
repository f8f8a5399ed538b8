"""Programs of JAX with axes of open size, called with 0, 1 and more elements under guard pages: XLA's answer, or an
error.

JAX takes an open size for 1 or more, and checks that in the program; the check is left out here, so that what reads
elements of an axis without any has to find that out itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.support.errors import IngotError
from tests.guard import ENDS, End, check_all

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
lax = pytest.importorskip("jax.lax")
pytest.importorskip("jax.export")

SIZES = ({"a": 0, "b": 0}, {"a": 0, "b": 5}, {"a": 5, "b": 0}, {"a": 1, "b": 1}, {"a": 5, "b": 7})
Type = tuple[Any, ...]  # sizes; "i" before them: integers from 0 to 3
X, T, AB, I4, IA = ("a", 3), (3, "a"), ("a", "b"), ("i", 4), ("i", "a")
IMAGE = (1, 2, "a", "b")
PADS = ((0, 0), (0, 0), (1, 1), (1, 1))


def _argmax(x: Any) -> Any:
    """A pair of the largest and its place, folded from -inf and 0."""

    def better(p: Any, q: Any) -> Any:
        (u, i), (v, j) = p, q
        first = (u > v) | ((u == v) & (i < j))
        return jnp.where(u > v, u, v), jnp.where(first, i, j)

    places = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return lax.reduce((x, places), (np.float32(-np.inf), np.int32(0)), better, (0,))


def _take(x: Any, i: Any, axis: int = 0) -> Any:
    return jnp.take(x, i, axis=axis, mode="clip")


def _conv(x: Any, w: Any, strides: tuple[int, int] = (1, 1), **options: Any) -> Any:
    return lax.conv_general_dilated(x, w, strides, ((1, 1), (1, 1)), **options)


def _pool(x: Any, first: float, kind: Any, **options: Any) -> Any:
    return lax.reduce_window(x, np.float32(first), kind, (1, 1, 2, 2), (1, 1, 2, 2), **({"padding": PADS} | options))


def _positive(x: Any) -> Any:
    return x @ x.swapaxes(-1, -2) + 9 * jnp.eye(x.shape[-1])


CASES: dict[str, tuple[Callable[..., Any], Type | tuple[Type, ...]]] = {
    **{
        f"{kind} of {name}": (lambda x, kind=kind, axis=axis: getattr(lax, f"reduce_{kind}")(x, (axis,)), type)
        for kind in ("max", "sum", "prod")
        for name, axis, type in (("rows", 0, X), ("columns", 1, T))
    },
    "argmax": (_argmax, X),
    "softmax": (lambda x: jax.nn.softmax(x, 1), T),
    "variance": (lambda x: jnp.var(x, 0), X),
    "sort": (lambda x: lax.sort(x, dimension=0), X),
    "sort by two": (lambda x, y: lax.sort((x, y), dimension=0, num_keys=2), (("a",), ("a",))),
    "top_k": (lambda x: lax.top_k(x, 1), T),
    "cumsum": (lambda x: lax.cumsum(x, axis=1, reverse=True), T),
    "cummax": (lambda x: lax.cummax(x, axis=0), X),
    # elements by index
    "take": (_take, (X, I4)),
    "take by open": (_take, ((5, 3), IA)),
    "take columns": (partial(_take, axis=1), (T, I4)),
    "take or fill": (lambda x, i: jnp.take(x, i, axis=0, mode="fill", fill_value=7.0), (X, I4)),
    "take along": (lambda x, i: jnp.take_along_axis(x, i, axis=1, mode="clip"), (T, ("i", 3, 2))),
    "two indices": (lambda x, i: x.at[i, i].get(mode="clip"), (AB, I4)),
    "last row": (lambda x: x[-1], X),
    "every second": (lambda x: x[::2], X),
    "dynamic slice": (lambda x, i: lax.dynamic_slice(x, (i[0], 0), (1, 3)), (X, I4)),
    "dynamic update": (lambda x, u, i: lax.dynamic_update_slice(x, u, (i[0], 0)), (X, (1, 3), I4)),
    "scatter": (lambda x, i, u: x.at[i].add(u, mode="drop"), (X, I4, (4, 3))),
    "scatter of open": (lambda x, i, u: x.at[i].max(u, mode="clip"), ((5, 3), IA, X)),
    "segments": (lambda x, i: jax.ops.segment_sum(x, i, 4), (X, IA)),
    "one hot": (lambda i, x: jax.nn.one_hot(i, x.shape[0]), (I4, X)),
    # shapes
    "pad": (lambda x: lax.pad(x, np.float32(2), ((1, 2, 2), (0, 0, 1))), X),
    "pad by edges": (lambda x: jnp.pad(x, ((1, 1), (0, 0)), mode="edge"), X),
    "roll": (lambda x: jnp.roll(x, 2, 0), X),
    "joined": (lambda x, y: lax.concatenate([x, y, x], 0), (X, ("b", 3))),
    "repeat": (lambda x: jnp.repeat(x, 2, axis=0), X),
    "triangle": (jnp.triu, AB),
    "diagonal": (jnp.diag, ("a",)),
    # products and windows
    "product": (lambda x, y: x @ y, (T, ("a", 4))),
    "product of batches": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (("a", 2, "b"), ("a", "b", 2))),
    "attention": (lambda q, k: jax.nn.softmax(q @ k.T, -1) @ k, (("a", 4), ("b", 4))),
    "convolution": (partial(_conv, strides=(2, 2)), (IMAGE, (3, 2, 3, 3))),
    "convolution of dilated": (partial(_conv, lhs_dilation=(2, 2)), (IMAGE, (3, 2, 3, 3))),
    "convolution of channels": (_conv, ((1, "a", 5, 5), (3, "a", 3, 3))),
    "max pool": (lambda x: _pool(x, -np.inf, lax.max), IMAGE),
    "max pool without pads": (lambda x: _pool(x, -np.inf, lax.max, padding="VALID"), IMAGE),
    "sum pool of dilated": (lambda x: _pool(x, 0, lax.add, base_dilation=(1, 1, 2, 2)), IMAGE),
    "gradient of max pool": (jax.grad(lambda x: _pool(x, -np.inf, lax.max).sum()), IMAGE),
    "resize": (lambda x: jax.image.resize(x, (1, 2 * x.shape[1], 6), "linear"), (1, "a", 3)),
    # linear algebra, loops
    "cholesky": (lambda x: lax.linalg.cholesky(_positive(x)), ("a", "a")),
    "solve": (
        lambda x, y: lax.linalg.triangular_solve(_positive(x), y, left_side=True, lower=True),
        (("a", "a"), ("a", 2)),
    ),
    "qr": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), ("a", 4, 3)),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), ("a", 8)),
    "loop": (lambda x: lax.fori_loop(0, x.shape[0], lambda i, s: s + x[i].sum(), jnp.zeros(())), X),
    "condition": (lambda x, i: lax.cond(i[0] > 0, lambda v: v[::-1], lambda v: v * 2, x), (X, I4)),
    "gradient of take": (jax.grad(lambda x, i: (_take(x, i) ** 2).sum()), (X, I4)),
}


def _types(name: str) -> tuple[Type, ...]:
    types = CASES[name][1]
    return types if isinstance(types[0], tuple) else (types,)


@cache
def _text(name: str) -> str:
    """The program, without its checks of sizes."""
    a, b = jax.export.symbolic_shape("a, b")
    arguments = [
        jax.ShapeDtypeStruct([{"a": a, "b": b}.get(d, d) for d in sizes], dtype) for sizes, dtype in _parts(name)
    ]
    exported = jax.export.export(jax.jit(CASES[name][0]), platforms=["tpu"])(*arguments)
    return "\n".join(line for line in str(exported.mlir_module()).splitlines() if "shape_assertion" not in line)


def _parts(name: str) -> Iterator[tuple[Type, type]]:
    for type in _types(name):
        yield (type[1:], np.int32) if type[:1] == ("i",) else (type, np.float32)


@cache
def _calls(name: str) -> list[tuple[list[np.ndarray], list[np.ndarray] | None]]:
    """Arguments, and XLA's results; None where JAX has an error."""
    calls: dict[tuple[Type, ...], Any] = {}
    for sizes in SIZES:
        rng = np.random.default_rng(1)
        shapes = [tuple(sizes[d] if isinstance(d, str) else d for d in dims) for dims, _ in _parts(name)]
        values = [
            rng.integers(0, 4, shape).astype(dtype) if dtype is np.int32 else rng.normal(size=shape).astype(dtype)
            for shape, (_, dtype) in zip(shapes, _parts(name), strict=True)
        ]
        try:
            results = [np.asarray(y) for y in jax.tree.leaves(jax.jit(CASES[name][0])(*values))]
        except (IndexError, TypeError, ValueError, ZeroDivisionError):
            results = None
        calls[tuple(shapes)] = values, results
    return list(calls.values())


def _check(name: str) -> None:
    compiled = ingot.compile(_text(name), threads=1, cache=False)
    for values, want in _calls(name):
        try:
            got = compiled(*values)
        except IngotError:
            assert want is None or any(v.size == 0 for v in values)
            continue
        if want is not None:
            for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
                assert np.shape(g) == w.shape
                np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("end", "interval"), [(ENDS[0], 3), *(pytest.param(end, 1, marks=pytest.mark.slow) for end in ENDS)]
)
def test_sizes_that_may_be_0(end: End, interval: int) -> None:
    """Of all cases, or of every third one."""
    names = [*CASES][::interval]
    for name in names:
        _text(name)  # before the processes are forked
        _calls(name)
    check_all({name: partial(_check, name) for name in names}, [end])
