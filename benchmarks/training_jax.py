"""The networks of `training.py` as JAX functions of PyTorch's parameters, and a jitted step of AdamW.

Running statistics of batch norms, which no loss depends on, are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from torch import Tensor, nn

Parameters = dict[str, jax.Array]
Network = Callable[[Parameters, jax.Array], jax.Array]


def _linear(p: Parameters, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def mlp(p: Parameters, x: jax.Array) -> jax.Array:
    return _linear(p, "2", jax.nn.relu(_linear(p, "0", x)))


def cnn(p: Parameters, x: jax.Array) -> jax.Array:
    for i in (0, 4, 8):
        x = lax.conv_general_dilated(x, p[f"{i}.weight"], (1, 1), "SAME") + p[f"{i}.bias"][:, None, None]
        mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        scale, shift = (p[f"{i + 1}.{n}"][:, None, None] for n in ("weight", "bias"))
        x = jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-5) * scale + shift)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return _linear(p, "13", x.reshape(len(x), -1))


def lstm(p: Parameters, x: jax.Array) -> jax.Array:
    rows = x.swapaxes(0, 1)
    for layer in range(2):
        w, r, b, c = (p[f"lstm.{n}_l{layer}"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        inputs, zeros = rows @ w.T + b + c, jnp.zeros((rows.shape[1], r.shape[1]))

        def turn(state: tuple[jax.Array, jax.Array], row: jax.Array, r: jax.Array = r) -> tuple:
            h, cell = state
            i, f, g, o = jnp.split(row + h @ r.T, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (h, cell), h

        _, rows = lax.scan(turn, (zeros, zeros), inputs)
    return _linear(p, "out", rows[-1])


def transformer(causal: bool) -> Network:
    def norm(p: Parameters, name: str, x: jax.Array) -> jax.Array:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def attended(p: Parameters, name: str, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        joint = x @ p[f"{name}.in_proj_weight"].T + p[f"{name}.in_proj_bias"]
        q, k, v = (y.reshape(batch, length, 4, -1).swapaxes(1, 2) for y in jnp.split(joint, 3, -1))
        scores = q @ k.swapaxes(2, 3) / np.sqrt(width // 4)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        heads = jax.nn.softmax(scores) @ v
        return _linear(p, f"{name}.out_proj", heads.swapaxes(1, 2).reshape(x.shape))

    def fed(p: Parameters, name: str, x: jax.Array) -> jax.Array:
        return _linear(p, f"{name}.linear2", jax.nn.gelu(_linear(p, f"{name}.linear1", x), approximate=False))

    def network(p: Parameters, ids: jax.Array) -> jax.Array:
        x = p["embed.weight"][ids] + p["place"]
        for i in range(4):
            name = f"layers.layers.{i}"
            if causal:  # norms in front
                x = x + attended(p, f"{name}.self_attn", norm(p, f"{name}.norm1", x))
                x = x + fed(p, name, norm(p, f"{name}.norm2", x))
            else:
                x = norm(p, f"{name}.norm1", x + attended(p, f"{name}.self_attn", x))
                x = norm(p, f"{name}.norm2", x + fed(p, name, x))
        return _linear(p, "out", x).swapaxes(1, 2)

    return network


def _convolved(p: Parameters, name: str, x: jax.Array, stride: int = 1) -> jax.Array:
    """Images channels last."""
    w = p[f"{name}.weight"]
    pad, groups = w.shape[2] // 2, x.shape[-1] // w.shape[1]
    layouts = ("NHWC", "OIHW", "NHWC")
    return lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=layouts, feature_group_count=groups
    )


def _normalized(p: Parameters, name: str, x: jax.Array) -> jax.Array:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def resnet18(p: Parameters, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(_normalized(p, "bn1", _convolved(p, "conv1", x.transpose(0, 2, 3, 1), 2)))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)])
    for name in (f"layer{i}.{j}" for i in range(1, 5) for j in range(2)):
        short, stride = x, 1
        if f"{name}.downsample.0.weight" in p:
            stride = 2
            short = _normalized(p, f"{name}.downsample.1", _convolved(p, f"{name}.downsample.0", x, 2))
        x = jax.nn.relu(_normalized(p, f"{name}.bn1", _convolved(p, f"{name}.conv1", x, stride)))
        x = jax.nn.relu(_normalized(p, f"{name}.bn2", _convolved(p, f"{name}.conv2", x)) + short)
    return _linear(p, "fc", x.mean((1, 2)))


def mobilenetv2(p: Parameters, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, conv: str, norm: str, stride: int = 1) -> jax.Array:
        return jnp.clip(_normalized(p, norm, _convolved(p, conv, x, stride)), 0, 6)

    x = layer(x.transpose(0, 2, 3, 1), "conv_stem", "bn1", 2)
    x = layer(x, "blocks.0.0.conv_dw", "blocks.0.0.bn1")
    x = _normalized(p, "blocks.0.0.bn2", _convolved(p, "blocks.0.0.conv_pw", x))
    for stage, (depth, stride) in enumerate(((2, 2), (3, 2), (4, 2), (3, 1), (3, 2), (1, 1)), 1):
        for name in (f"blocks.{stage}.{i}" for i in range(depth)):
            inner = layer(x, f"{name}.conv_pw", f"{name}.bn1")
            inner = layer(inner, f"{name}.conv_dw", f"{name}.bn2", stride if name.endswith(".0") else 1)
            y = _normalized(p, f"{name}.bn3", _convolved(p, f"{name}.conv_pwl", inner))
            x = x + y if x.shape == y.shape else y
    return _linear(p, "classifier", layer(x, "conv_head", "bn2").mean((1, 2)))


NETWORKS: dict[str, Network] = {
    "mlp": mlp, "cnn": cnn, "lstm": lstm, "bert-mini": transformer(False), "gpt-mini": transformer(True),
    "resnet18": resnet18, "mobilenetv2": mobilenetv2,
}  # fmt: skip


def step_of(name: str, net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object] | None:
    """A step on this batch from the module's parameters; None for a network that is not written here."""
    if name not in NETWORKS:
        return None
    network, images, classes = NETWORKS[name], jnp.asarray(x.numpy()), jnp.asarray(y.numpy())

    def loss(p: Parameters) -> jax.Array:
        scores = jax.nn.log_softmax(network(p, images), 1)
        return -jnp.take_along_axis(scores, jnp.expand_dims(classes, 1), 1).mean()

    @jax.jit
    def update(p: Parameters, m: Parameters, v: Parameters, n: jax.Array) -> tuple:
        value, g = jax.value_and_grad(loss)(p)
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in p}
        v = {k: 0.999 * v[k] + 0.001 * g[k] * g[k] for k in p}
        left = 1 - 0.9**n, 1 - 0.999**n
        moved = {k: p[k] * (1 - 1e-5) - 1e-3 * (m[k] / left[0]) / (jnp.sqrt(v[k] / left[1]) + 1e-8) for k in p}
        return value, moved, m, v, n + 1

    first = {k: jnp.asarray(a.detach().numpy()) for k, a in net.named_parameters()}
    zeros = {k: jnp.zeros_like(a) for k, a in first.items()}
    state = [first, zeros, zeros, jnp.asarray(1.0)]

    def step() -> object:
        value, *state[:] = update(*state)
        return value.block_until_ready()

    return step
