"""JAX functions: their arguments and results, sizes, weights and errors; and that they compute what XLA does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.driver.open import Request, open_model
from ingot.ir.interp import interpret
from ingot.support.errors import ImportModelError, IngotError, InputError, UnsupportedOpError

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
lax = pytest.importorskip("jax.lax")

from ingot.frontends.jax import import_jax  # noqa: E402


def _data(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def _agree(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        w = np.asarray(w)
        assert np.asarray(g).dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def _interpreted(fn: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    imported = import_jax(fn, args, **options)
    return lambda *arguments: imported.unflatten(interpret(imported.graph, imported.flatten(arguments, {})))


def _net(params: dict[str, Any], x: Any, scale: float = 1.0) -> dict[str, Any]:
    h = jnp.tanh(x @ params["w"] + params["b"]) * scale
    return {"probabilities": jax.nn.softmax(h), "best": lax.top_k(h, 2)}


PARAMS = {"w": _data(3, 4), "b": _data(4)}


def test_a_function_compiled_with_weights_and_a_dynamic_batch():
    x = _data(5, 3)
    model = ingot.compile(_net, (PARAMS, x), weights=(0,), dynamic={"x": {0: "batch"}, "batch": (1, 64)})
    for n in (1, 2, 5):
        _agree(model(x[:n]), _net(PARAMS, x[:n]))
    assert [spec.name for spec in model.inputs] == ["x"]
    assert {spec.name for spec in model.outputs} == {"best_0", "best_1", "probabilities"}
    with pytest.raises(InputError):
        model(_data(65, 3))


def test_sizes_that_a_function_was_not_compiled_for():
    """Nothing, and lengths that a slice was not traced for; a bound that was told is kept."""

    def f(params, x, y):
        return x[2:] @ params["w"], (y.sum(), x.shape[0] * y)

    x, y = _data(5, 3), _data(7)
    model = ingot.compile(f, (PARAMS, x, y), weights=(0,), dynamic={"x": {0: "n"}, "y": {0: "m"}, "n": (2, None)})
    for m in (7, 0, 3):
        _agree(model(x, y[:m]), f(PARAMS, x, y[:m]))
    with pytest.raises(InputError, match="n >= 2"):
        model(x[:1], y)
    open_rows = ingot.compile(lambda x: (x * 2).sum(0), (x,), dynamic={"x": {0: "n", 1: "k"}})
    for n, k in ((0, 3), (4, 0), (2, 2)):
        _agree(open_rows(x[:n, :k]), (x[:n, :k] * 2).sum(0))


def test_ways_to_say_a_function():
    x = _data(2, 3)
    expected = _net(PARAMS, x)
    _agree(_interpreted(jax.jit(_net, donate_argnums=1), PARAMS, x)(PARAMS, x), expected)
    for model in (jax.export.export(jax.jit(_net), platforms=["tpu"])(PARAMS, x), jax.jit(_net).lower(PARAMS, x)):
        imported = import_jax(model)
        inputs = imported.flatten((PARAMS, x), {})
        _agree(imported.unflatten(interpret(imported.graph, inputs)), expected)


def test_arguments_that_are_dropped_or_fixed():
    def f(x: Any, unused: Any, mode: str, power: int) -> Any:
        return x**power if mode == "power" else x

    x = _data(4)
    imported = import_jax(f, (x, x, "power", 3))
    assert len(imported.graph.inputs) == 1
    _agree(imported.unflatten(interpret(imported.graph, imported.flatten((x, x, "power", 3), {}))), x**3)
    with pytest.raises(InputError, match="expected 3, as compiled, got 2"):
        imported.flatten((x, x, "power", 2), {})
    with pytest.raises(InputError, match="arguments"):
        imported.flatten((x, x), {})


def test_weights_by_name_and_value():
    x, other = _data(2, 3), {"w": _data(3, 4) * 2, "b": _data(4)}
    _agree(_interpreted(_net, PARAMS, x, weights=("params",))(x), _net(PARAMS, x))
    _agree(_interpreted(_net, PARAMS, x, weights={"params": other})(x), _net(other, x))
    with pytest.raises(InputError, match="weights"):
        import_jax(_net, (PARAMS, x), weights=("nothing",))


def test_sizes_are_checked():
    x = _data(2, 3)
    for dynamic in ({"y": {0: "b"}}, {"x": {7: "b"}}, {"c": 3}):
        with pytest.raises(InputError, match="dynamic"):
            import_jax(_net, (PARAMS, x), dynamic=dynamic)


def _control(x: Any, n: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        c = jnp.tanh(c * 0.5 + v)
        return c, c.sum()

    looped = lax.fori_loop(0, n, lambda i, v: v * 1.5 + i, x[0])
    return lax.scan(step, x[0], x), lax.cond(n > 2, jnp.sin, jnp.cos, x), lax.switch(n, [jnp.sin, jnp.exp], x), looped


def _sorted(x: Any) -> Any:
    return jnp.sort(x, 0), jnp.argsort(x, 1), jnp.sort(x, descending=True), jnp.median(x), jnp.lexsort((x[0], x[1]))


def _indexed(x: Any) -> Any:
    i = jnp.array([1, 3, 1])
    return x[i], x.at[i].add(1.5), x.at[i].mul(3, mode="drop"), jnp.roll(x, 2, 0), x.cumsum(0), lax.cummax(x, 1)


def _pooled(x: Any) -> Any:
    def largest(v: Any) -> Any:
        return lax.reduce_window(v, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")

    return largest(x), jax.grad(lambda v: (largest(v) ** 2).sum())(x)


def _random(key: Any) -> Any:
    return jax.random.normal(key, (3, 4)), jax.random.randint(key, (5,), 0, 100), jax.random.permutation(key, 6)


@pytest.mark.parametrize(("fn", "args"), [
    (_control, (_data(4, 5), np.array(3, np.int32))),
    (_sorted, (_data(4, 5),)),
    (_indexed, (_data(5, 4),)),
    (_pooled, (_data(6, 6),)),
    (_random, (np.array([1, 2], np.uint32),)),
    (lambda x: (jnp.fft.fft(x), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.fft2(x)), (_data(4, 6),)),
    (lambda x: (jax.scipy.special.gammaln(x), jax.scipy.special.erfinv(x / 9), jax.scipy.special.i1e(x)),
     (np.abs(_data(3, 3)) + 0.1,)),
    (lambda z: (jnp.sqrt(z), jnp.log(z) * z, jnp.angle(z), jnp.tanh(z)), (_data(3, 3) + 1j * _data(3, 3),)),
])  # fmt: skip
def test_programs_against_xla(fn: Callable[..., Any], args: tuple[Any, ...]):
    _agree(_interpreted(fn, *args)(*args), fn(*map(jnp.asarray, args)))


@pytest.mark.parametrize(("layouts", "x", "kernel"), [
    (("NCHW", "OIHW", "NCHW"), (2, 4, 9, 8), (6, 4, 3, 2)),
    (("NHWC", "OIHW", "NCHW"), (2, 9, 8, 4), (6, 4, 3, 2)),
    (("CNHW", "IHWO", "CNHW"), (4, 2, 9, 8), (4, 3, 2, 6)),
    (("HWNC", "WHIO", "NHCW"), (9, 8, 2, 4), (2, 3, 4, 6)),
    (("WCHN", "IWOH", "CHWN"), (8, 4, 9, 2), (4, 2, 6, 3)),
])  # fmt: skip
def test_convolutions_of_every_layout(layouts: tuple[str, str, str], x: tuple[int, ...], kernel: tuple[int, ...]):
    # attributes go by JAX's order of the spatial axes, whatever axes of x these are
    def convolved(a: Any, b: Any) -> Any:
        pads = ((1, 2), (0, 1))
        return lax.conv_general_dilated(
            a, b, (2, 1), pads, lhs_dilation=(1, 2), rhs_dilation=(2, 1), dimension_numbers=layouts
        )

    args = _data(*x), _data(*kernel)
    _agree(_interpreted(convolved, *args)(*args), convolved(*args))


def test_what_is_refused_says_where():
    def f(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(ImportModelError, match="callbacks"):
        import_jax(f, (_data(3),))

    def g(x: Any) -> Any:
        return jax.lax.rng_uniform(x[0].astype("float8_e4m3fn"), x[1].astype("float8_e4m3fn"), (3,))

    with pytest.raises(UnsupportedOpError, match=r"stablehlo.rng .*test_jax.py:\d+"):
        import_jax(g, (_data(3),))

    def h(x: Any) -> Any:  # what JAX itself jits has no place of its own but that of its call
        return jnp.linalg.solve(x + 1j, x + 0j)

    with pytest.raises(UnsupportedOpError, match=r"lu in .*test_jax.py:\d+.*of complex numbers"):
        import_jax(h, (_data(3, 3),))


def test_another_tree_is_refused_by_the_paths_of_its_leaves():
    f = import_jax(_net, (PARAMS, _data(5, 3)))
    with pytest.raises(InputError, match=r"no params\['b'\]; params\['c'\], which is not in it"):
        f.flatten(({"w": PARAMS["w"], "c": PARAMS["b"]}, _data(5, 3)), {})
    g = import_jax(lambda pair: pair[0], (([_data(3), None],)))
    with pytest.raises(InputError, match="PyTreeDef"):
        g.flatten(((_data(3), None),), {})


def test_a_size_may_be_named_as_an_argument_is():
    f = _interpreted(lambda a, b: a + b, _data(2, 3), _data(2, 3), dynamic={"a": {0: "b"}, "b": {0: "b"}})
    _agree(f(_data(5, 3), _data(5, 3)), 2 * _data(5, 3))


def test_jit_caches_by_kind_and_runs_inside_jax():
    calls: list[int] = []

    @ingot.jit
    def f(x: Any, y: Any) -> Any:
        calls.append(1)
        return {"sum": x + y, "product": x * y}

    x, y = _data(3), _data(3) + 1
    for _ in range(2):
        _agree(f(x, y), {"sum": x + y, "product": x * y})
    assert len(calls) == 1
    f(x[:2], y=y[:2])
    assert len(calls) == 2
    _agree(jax.jit(lambda x, y: f(x, y)["product"] * 2)(x, y), x * y * 2)


@pytest.mark.parametrize("name", ["inv", "slogdet", "cholesky", "qr", "eigvalsh", "expm", "lstsq"])
def test_linear_algebra(name: str):
    x = _data(5, 5)
    positive = (x @ x.T + np.eye(5)).astype(np.float32)
    result = {"expm": lambda a: jax.scipy.linalg.expm(a / 4), "lstsq": lambda a: jnp.linalg.lstsq(a[:, :3], a)[0]}
    f = result.get(name) or getattr(jnp.linalg, name)
    _agree(_interpreted(f, positive)(positive), f(positive))


@pytest.mark.parametrize("name", ["inv", "det", "qr", "eigvalsh", "svdvals"])
def test_linear_algebra_of_an_open_batch(name: str):
    x, f = _data(2, 4, 4), getattr(jnp.linalg, name)
    g = _interpreted(lambda a: f(a), x, dynamic={"a": {0: "n"}})
    for n in (1, 2, 5):
        y = _data(n, 4, 4)
        _agree(g(y), f(y))


def test_shardings_on_one_device():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))

    def f(key: Any, x: Any) -> Any:  # split, too, is one in the text
        return lax.with_sharding_constraint(x * 2, spread) + 1j, jax.random.key_data(jax.random.split(key, 3))

    for model in (f, jax.jit(f).lower(jax.random.key(0), _data(4, 3))):
        _agree(
            _interpreted(model, jax.random.key(0), _data(4, 3))(jax.random.key(1), _data(4, 3)),
            f(jax.random.key(1), _data(4, 3)),
        )


def test_eigenvectors():
    x = _data(2, 5, 5)
    w, v = _interpreted(lambda a: tuple(jnp.linalg.eigh(a, symmetrize_input=True)), x)(x)
    symmetric = (x + x.swapaxes(-1, -2)) / 2
    np.testing.assert_allclose((v * w[:, None]) @ v.swapaxes(-1, -2), symmetric, atol=1e-5)


def test_calls_of_lapack():
    """What is lowered for CPUs has them in the place of the operations that TPUs have."""

    def f(x: Any) -> Any:
        a = x @ x.T + jnp.eye(4)
        q, r = jnp.linalg.qr(x)
        u, s, vt = jnp.linalg.svd(x, full_matrices=True)
        w, v = jnp.linalg.eigh(a)
        factor = jax.scipy.linalg.cho_factor(a)
        return {
            "lu": jax.scipy.linalg.lu(x), "solve": jnp.linalg.solve(a, x), "qr": (q @ r, abs(r)),
            "svd": ((u * s) @ vt[:4], s, jnp.linalg.svd(x.T, compute_uv=False)), "eigh": ((v * w) @ v.T, w),
            "cholesky": (jnp.linalg.cholesky(a), jax.scipy.linalg.cho_solve(factor, x), jnp.linalg.cholesky(-a)),
            "batch": jnp.linalg.det(jnp.stack([a, a + 1])),
        }  # fmt: skip

    x = _data(4, 6)
    lowered = jax.jit(f).lower(x)
    assert lowered.as_text().count("@lapack_") > 8
    _agree(_interpreted(lowered)(x), lowered.compile()(x))


def test_arguments_of_other_kinds():
    """numpy's f64 is f32 to JAX, and keys of random numbers are integers."""

    def f(w: Any, key: Any, x: Any) -> Any:
        return x @ w + jax.random.uniform(key, (3,))

    w, x, key = np.eye(3) * 2, np.arange(6.0).reshape(2, 3), jax.random.key(3)
    for weights in ((0, 1), (0,)):
        imported = import_jax(f, (w, key, x), weights=weights)
        inputs = (x,) if 1 in weights else (jax.random.key(4), x)
        got = imported.unflatten(interpret(imported.graph, imported.flatten(inputs, {})))
        _agree(got, f(w, inputs[0] if len(inputs) == 2 else key, x))


@pytest.mark.parametrize(("size", "stride"), [(3, 2), (2, 3), (5, 2)])
def test_windows_of_padding_that_depends_on_sizes(size: int, stride: int):
    """JAX writes it with quotients of negative sizes, rounded down."""
    w, steps = _data(size, size, 2, 3), (1, stride, stride, 1)

    def f(x: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        # not of y: JAX's own algebra takes minutes for windows of 2 in steps of 3 upon one another
        return y, lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), steps, "SAME")

    g = _interpreted(f, _data(2, 9, 8, 2), dynamic={"x": {1: "h", 2: "w"}})
    for h, wide in ((9, 8), (1, 1), (6, 13)):
        x = _data(2, h, wide, 2)
        _agree(g(x), f(x))


def test_running_sums_of_open_size():
    def f(x: Any) -> Any:
        return jnp.cumsum(x, 1), lax.cummax(x, axis=0, reverse=True)

    g = _interpreted(f, _data(3, 4), dynamic={"x": {0: "b", 1: "n"}})
    for x in (_data(3, 4), _data(1, 7)):
        _agree(g(x), f(x))


def test_folds_of_windows_of_open_size():
    """Of functions that are no sum or maximum, and of windows that are no running fold."""

    def f(x: Any) -> Any:
        half = (x.shape[0] // 2 + 1, 1)
        return (
            lax.cumlogsumexp(x, axis=1), lax.cumlogsumexp(x, axis=0, reverse=True),
            lax.reduce_window(x, 0.0, lax.add, half, (1, 1), "VALID"),
            lax.reduce_window(x, -jnp.inf, lax.max, (x.shape[0], 2), (1, 1), "SAME"),
        )  # fmt: skip

    g = _interpreted(f, _data(3, 4), dynamic={"x": {0: "b", 1: "n"}})
    for x in (_data(3, 4), _data(1, 7) * 100, _data(8, 1), _data(5, 17) * 100):
        _agree(g(x), f(x))


def test_modules_that_set_their_variables():
    """Keys of random numbers and parameters may be set; statistics are not lost silently."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.rnn, self.norm = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs)), nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.norm(self.rnn(x))

        def scaled(self, x: Any, *, by: float = 2.0) -> Any:
            return self.rnn(x) * by

    net, x = Net(), _data(2, 5, 3)
    _agree(_interpreted(net.scaled, x, dynamic={"x": {0: "n"}})(x[:1]), net.scaled(x[:1]))
    with pytest.raises(ImportModelError, match=r"sets \['norm'\]\['mean'\].*eval"):
        import_jax(net, (x,))
    net.eval()
    _agree(_interpreted(net, x)(x), net(x))


def test_a_file_of_what_was_exported(tmp_path: Path):
    (n,) = jax.export.symbolic_shape("n")
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), PARAMS), jax.ShapeDtypeStruct((n, 3), "f4")
    data = bytes(jax.export.export(jax.jit(_net))(*shapes).serialize())
    path = tmp_path / "net.bin"
    path.write_bytes(data)
    model = ingot.compile(path, threads=1)
    for size in (1, 5):
        x = _data(size, 3)
        _agree(model(PARAMS, x), _net(PARAMS, x))
    rng = np.random.default_rng(0)
    for at in [*range(0, 64, 16), *rng.integers(0, len(data), 2)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :])
        with suppress(IngotError):
            open_model(path, Request())
