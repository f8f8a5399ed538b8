"""Networks of Flax (NNX and Linen), Equinox and Haiku."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .case import Case, Sizes, ids, normal, perturbed

BATCH: tuple[Sizes, ...] = ({"b": 2}, {"b": 1}, {"b": 7})
SEQUENCE: tuple[Sizes, ...] = ({"b": 2, "n": 12}, {"b": 1, "n": 5}, {"b": 3, "n": 31})
AXES = {"x": {0: "b", 1: "n"}, "n": (2, 32)}


def _images(channels: int = 3, size: int = 32) -> Callable[[Sizes, np.random.Generator], tuple[Any, ...]]:
    return lambda sizes, rng: (normal(rng, sizes["b"], size, size, channels),)


def _frames(width: int) -> Callable[[Sizes, np.random.Generator], tuple[Any, ...]]:
    return lambda sizes, rng: (normal(rng, sizes["b"], sizes["n"], width),)


def _tokens(sizes: Sizes, rng: np.random.Generator) -> tuple[Any, ...]:
    return (ids(rng, sizes["b"], sizes["n"]),)


# --- Flax NNX


def _nnx(name: str, module: Any, inputs: Any, sizes: Any, axes: Any) -> Case:
    from flax import nnx

    module.eval()
    definition, state = nnx.split(module)
    return Case(
        f"NNX {name}", lambda weights, x: nnx.merge(definition, weights)(x), perturbed(state), inputs, sizes, axes
    )


def nnx_cnn() -> Case:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.c1 = nnx.Conv(3, 16, (3, 3), rngs=rngs)
            self.b1 = nnx.BatchNorm(16, rngs=rngs)
            self.c2 = nnx.Conv(16, 32, (3, 3), strides=2, feature_group_count=16, rngs=rngs)
            self.b2 = nnx.GroupNorm(32, num_groups=4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.out = nnx.Linear(32, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.avg_pool(nnx.relu(self.b1(self.c1(x))), (2, 2), strides=(2, 2))
            return self.out(self.drop(nnx.silu(self.b2(self.c2(x))).mean((1, 2))))

    return _nnx("CNN", Net(nnx.Rngs(0)), _images(), BATCH, {"x": {0: "b"}})


def nnx_transformer() -> Case:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.table = nnx.Embed(100, 32, rngs=rngs)
            self.norm = nnx.LayerNorm(32, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, 32, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(32, 64, rngs=rngs), nnx.Linear(64, 32, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            mask = nnx.make_causal_mask(x)
            h = self.table(x)
            h = h + self.attention(self.norm(h), mask=mask)
            return self.table.attend(h + self.down(nnx.gelu(self.up(self.norm(h)))))

    return _nnx("transformer", Net(nnx.Rngs(0)), _tokens, SEQUENCE, AXES)


def nnx_lstm() -> Case:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            forward, backward = (nnx.RNN(nnx.OptimizedLSTMCell(20, 16, rngs=rngs)) for _ in range(2))
            self.rnn: Any = nnx.Bidirectional(forward, backward, rngs=rngs)
            self.out = nnx.Linear(32, 5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(self.rnn(x))

    return _nnx("bidirectional LSTM", Net(nnx.Rngs(0)), _frames(20), SEQUENCE, AXES)


# --- Flax Linen


def _linen(name: str, module: Any, inputs: Any, sizes: Any, axes: Any) -> Case:
    (example,) = inputs(sizes[0], np.random.default_rng(0))
    weights = perturbed(module.init(jax.random.key(0), example))
    return Case(f"Linen {name}", lambda weights, x: module.apply(weights, x), weights, inputs, sizes, axes)


def linen_resnet() -> Case:
    from flax import linen as nn

    class Block(nn.Module):
        width: int
        stride: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.Conv(self.width, (3, 3), self.stride, use_bias=False)(x)
            y = nn.relu(nn.BatchNorm(use_running_average=True)(y))
            y = nn.BatchNorm(use_running_average=True)(nn.Conv(self.width, (3, 3), use_bias=False)(y))
            if y.shape != x.shape:
                x = nn.Conv(self.width, (1, 1), self.stride)(x)
            return nn.relu(x + y)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.max_pool(nn.Conv(16, (7, 7), 2)(x), (3, 3), strides=(2, 2), padding="SAME")
            for width, stride in ((16, 1), (32, 2), (64, 2)):
                x = Block(width, stride)(x)
            return nn.Dense(10)(x.mean((1, 2)))

    return _linen("ResNet", Net(), _images(size=64), BATCH, {"x": {0: "b"}})


def linen_mixer() -> Case:
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(32, (8, 8), 8)(x).reshape(x.shape[0], 16, 32)
            for _ in range(2):
                y = nn.LayerNorm()(x).transpose(0, 2, 1)
                x = x + nn.Dense(16)(nn.gelu(nn.Dense(24)(y))).transpose(0, 2, 1)
                x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
            return nn.Dense(10)(x.mean(1))

    return _linen("MLP mixer", Net(), _images(), BATCH, {"x": {0: "b"}})


def linen_gru() -> Case:
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            inner: Any = nn.RNN(nn.SimpleCell(16))(x)
            outer: Any = nn.RNN(nn.GRUCell(24))(inner)
            return nn.Dense(7)(outer)

    return _linen("GRU", Net(), _frames(20), SEQUENCE, AXES)


def linen_convlstm() -> Case:
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.RNN(nn.ConvLSTMCell(6, (3, 3)))(x)

    def inputs(sizes: Sizes, rng: np.random.Generator) -> tuple[Any, ...]:
        return (normal(rng, sizes["b"], 5, 8, 8, 3),)

    return _linen("convolutional LSTM", Net(), inputs, BATCH, {"x": {0: "b"}})


def linen_scanned() -> Case:
    """Layers as one scan over stacked weights."""
    from flax import linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: None) -> tuple[Any, None]:
            y = nn.SelfAttention(4)(nn.RMSNorm()(x))
            return x + nn.Dense(32)(nn.swish(nn.Dense(64)(nn.RMSNorm()(x + y)))), None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            stack = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            return stack()(nn.Embed(100, 32)(x), None)[0]

    return _linen("scanned layers", Net(), _tokens, SEQUENCE, AXES)


# --- Equinox and Haiku


def equinox_cnn() -> Case:
    import equinox as eqx

    keys = jax.random.split(jax.random.key(0), 4)
    net = eqx.nn.Sequential((
        eqx.nn.Conv2d(3, 8, 3, key=keys[0]), eqx.nn.Lambda(jax.nn.gelu), eqx.nn.MaxPool2d(2, 2),
        eqx.nn.ConvTranspose2d(8, 8, 3, stride=2, key=keys[1]), eqx.nn.Lambda(jnp.ravel),
        eqx.nn.LayerNorm(7688), eqx.nn.MLP(7688, 5, 32, 2, key=keys[2]),
    ))  # fmt: skip
    arrays, rest = eqx.partition(net, eqx.is_array)

    def inputs(sizes: Sizes, rng: np.random.Generator) -> tuple[Any, ...]:
        return (normal(rng, sizes["b"], 3, 32, 32),)

    fn = lambda weights, x: jax.vmap(eqx.combine(weights, rest))(x)  # noqa: E731
    return Case("Equinox CNN", fn, perturbed(arrays), inputs, BATCH, {"x": {0: "b"}})


def equinox_gru() -> Case:
    import equinox as eqx

    cell = eqx.nn.GRUCell(20, 16, key=jax.random.key(0))
    arrays, rest = eqx.partition(cell, eqx.is_array)

    def fn(weights: Any, x: Any) -> Any:
        step = eqx.combine(weights, rest)

        def one(xs: Any) -> Any:
            return jax.lax.scan(lambda h, v: (step(v, h),) * 2, jnp.zeros(16), xs)[1]

        return jax.vmap(one)(x)

    return Case("Equinox GRU", fn, perturbed(arrays), _frames(20), SEQUENCE, AXES)


def haiku_net() -> Case:
    import haiku as hk

    def net(x: Any) -> Any:
        h = hk.Linear(32)(x)
        h = h + hk.MultiHeadAttention(4, 8, w_init=hk.initializers.VarianceScaling(1.0), model_size=32)(h, h, h)
        h = hk.LayerNorm(-1, True, True)(h)
        return hk.nets.MLP([64, 10])(hk.Conv1D(16, 3)(h))

    made = hk.without_apply_rng(hk.transform(net))
    (example,) = _frames(20)(SEQUENCE[0], np.random.default_rng(0))
    weights = perturbed(made.init(jax.random.key(0), example))
    return Case("Haiku attention", lambda weights, x: made.apply(weights, x), weights, _frames(20), SEQUENCE, AXES)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    makers = (
        nnx_cnn, nnx_transformer, nnx_lstm, linen_resnet, linen_mixer, linen_gru, linen_convlstm, linen_scanned,
        equinox_cnn, equinox_gru, haiku_net,
    )  # fmt: skip
    for make in makers:
        yield make.__name__, make
