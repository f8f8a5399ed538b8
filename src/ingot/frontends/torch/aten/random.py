"""Random numbers: PyTorch's distributions, from Ingot's own random bits (`ingot.ops.random`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.complex import on_complex
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Complex,
    Context,
    Operand,
    boolean,
    cast,
    expand,
    node_of,
    scalar_like,
)
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.types import DType
from ingot.ops import distributions, sampling

aten = Table()

# alpha dropout of self-normalizing networks (Klambauer et al. 2017)
_SELU_SATURATION = 1.7580993408473766


def _drawn(c: Context, sampler: sampling.Sampler) -> Node:
    """Standard random numbers of the result's shape, not yet rounded to its type."""
    return sampler(c.key(), c.shape, sampling.compute_dtype(c.dtype))


def _pair(c: Context, sampler: sampling.Sampler, dtype: object, scale: float) -> Node | Complex:
    if not (isinstance(dtype, torch.dtype) and dtype.is_complex):
        return sampler(c.key(), c.shape, c.dtype)
    real, imag = (sampler(c.key(), c.shape, c.dtype) for _ in range(2))
    factor = filled(c.shape, scale, c.dtype)
    return Complex(ops.Mul()(real, factor), ops.Mul()(imag, factor))


@aten("rand.default", "rand.generator", "rand_like.default", "rand_like.generator")
def rand(c: Context, *args: object, dtype: object = None, **named: object) -> Node | Complex:
    return _pair(c, sampling.uniform, dtype, 1.0)


@aten("randn.default", "randn.generator", "randn_like.default", "randn_like.generator")
def randn(c: Context, *args: object, dtype: object = None, **named: object) -> Node | Complex:
    return _pair(c, sampling.normal, dtype, math.sqrt(0.5))


def _integers(c: Context, low: DimLike, high: DimLike) -> Node:
    if isinstance(low, int) and isinstance(high, int) and high <= low:
        raise Unsupported(f"integers from {low} up to {high}: there are none")
    return cast(sampling.integers(c.key(), c.shape, low, high), c.dtype)


@aten("randint.default", "randint.generator")
def randint(c: Context, high: DimLike, size: Sequence[DimLike], **named: object) -> Node:
    return _integers(c, 0, high)


@aten("randint.low", "randint.low_generator")
def randint_low(c: Context, low: DimLike, high: DimLike, size: Sequence[DimLike], **named: object) -> Node:
    return _integers(c, low, high)


@aten("randint_like.default", "randint_like.generator")
def randint_like(c: Context, x: Node, high: DimLike, **named: object) -> Node:
    return _integers(c, 0, high)


@aten("randint_like.low_dtype", "randint_like.low_generator_dtype")
def randint_like_low(c: Context, x: Node, low: DimLike, high: DimLike, **named: object) -> Node:
    return _integers(c, low, high)


def _exclusive_limit(dtype: DType) -> int:
    """The exclusive upper bound of the integers that `random_` draws for a type: all consecutive ones from 0 on."""
    if dtype == boolean:
        return 2
    if dtype.is_float:
        return (1 << {64: 53, 32: 24}.get(dtype.bits, 8 if dtype.name == "bf16" else 11)) + 1
    return dtype.range[1] + 1


@aten("random.default")
def random(c: Context, x: Node, **named: object) -> Node:
    return _integers(c, 0, _exclusive_limit(c.dtype))


@aten("random.to")
def random_to(c: Context, x: Node, to: int, **named: object) -> Node:
    return _integers(c, 0, to)


@aten("random.from")
def random_from(c: Context, x: Node, low: int, to: int | None = None, **named: object) -> Node:
    return _integers(c, low, _exclusive_limit(c.dtype) if to is None else to)


@aten("randperm.default", "randperm.generator")
def randperm(c: Context, n: DimLike, **named: object) -> Node:
    return cast(sampling.permutation(c.key(), n), c.dtype)


def _bernoulli(c: Context, p: Operand) -> Node:
    chance = node_of(p)
    chance = expand(cast(chance, sampling.compute_dtype(chance.dtype)), c.shape)
    return cast(sampling.bernoulli(c.key(), c.shape, chance), c.dtype)


@aten("bernoulli.default")
def bernoulli(c: Context, p: Node, **named: object) -> Node:
    return _bernoulli(c, p)


@aten("bernoulli.p", "bernoulli.Tensor", "bernoulli.float")
def bernoulli_p(c: Context, x: Node, p: Operand = 0.5, **named: object) -> Node:
    return _bernoulli(c, p)


def _affine(c: Context, x: Node, scale: Operand, shift: Operand) -> Node:
    """scale * x + shift."""
    factor, offset = (expand(node_of(v, x.dtype), c.shape) for v in (scale, shift))
    return cast(ops.Add()(ops.Mul()(x, factor), offset), c.dtype)


@aten("uniform.default")
def uniform(c: Context, x: Node, low: Operand = 0.0, high: Operand = 1.0, **named: object) -> Node:
    ends = named.get("from", low), named.get("to", high)
    first, last = (float(v) for v in ends if isinstance(v, int | float))
    return _affine(c, _drawn(c, sampling.uniform), last - first, first)


@aten("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal(c: Context, mean: Operand, std: Operand = 1.0, **named: object) -> Node:
    return _affine(c, _drawn(c, sampling.normal), std, mean)


@aten("normal.float_float")
def normal_of_size(c: Context, mean: Operand, std: Operand, size: Sequence[DimLike], **named: object) -> Node:
    return _affine(c, _drawn(c, sampling.normal), std, mean)


@aten("normal.default", "normal_functional.default")
def normal_like(c: Context, x: Node, mean: Operand = 0.0, std: Operand = 1.0, **named: object) -> Node:
    return _affine(c, _drawn(c, sampling.normal), std, mean)


@aten("log_normal.default")
def log_normal(c: Context, x: Node, mean: float = 1.0, std: float = 2.0, **named: object) -> Node:
    drawn = _drawn(c, sampling.normal)
    scaled_noise = ops.Mul()(drawn, filled(c.shape, std, drawn.dtype))
    return cast(ops.Exp()(ops.Add()(scaled_noise, filled(c.shape, mean, drawn.dtype))), c.dtype)


@aten("exponential.default")
def exponential(c: Context, x: Node, lambd: float = 1.0, **named: object) -> Node:
    drawn = _drawn(c, sampling.exponential)
    return cast(ops.Div()(drawn, filled(c.shape, lambd, drawn.dtype)), c.dtype)


@aten("cauchy.default")
def cauchy(c: Context, x: Node, median: float = 0.0, sigma: float = 1.0, **named: object) -> Node:
    return _affine(c, _drawn(c, sampling.cauchy), sigma, median)


@aten("geometric.default")
def geometric(c: Context, x: Node, p: float, **named: object) -> Node:
    wide = sampling.compute_dtype(c.dtype)
    return cast(sampling.geometric(c.key(), c.shape, ops.full(c.shape, p, wide), wide), c.dtype)


@aten("multinomial.default")
def multinomial(c: Context, weights: Node, count: DimLike, replacement: bool = False, **named: object) -> Node:
    size = weights.shape[-1]
    if not replacement and isinstance(size, int) and isinstance(count, int) and count > size:
        raise Unsupported(f"{count} draws of {size} without replacement")
    draw = sampling.categorical if replacement else sampling.without_replacement
    return draw(c.key(), weights, count)


@aten("poisson.default")
def poisson(c: Context, mean: Node, *args: object) -> Node:
    return distributions.poisson(c.key(), mean)


@aten("_standard_gamma.default")
def standard_gamma(c: Context, shape: Node, *args: object) -> Node:
    return distributions.gamma(c.key(), shape)


@aten("_sample_dirichlet.default")
def dirichlet(c: Context, concentration: Node, *args: object) -> Node:
    return distributions.dirichlet(c.key(), concentration)


@aten("binomial.default")
def binomial(c: Context, count: Node, chance: Node, *args: object) -> Node:
    return distributions.binomial(c.key(), *(expand(cast(v, c.dtype), c.shape) for v in (count, chance)))


# --- dropouts


def dropped(c: Context, x: Node, p: float) -> Node:
    """`x` after dropout in training."""
    return sampling.dropout(c.key(), x, p)[0] if p else x


@aten("dropout.default")
def dropout(c: Context, x: Node, p: float, train: bool) -> Node:
    return dropped(c, x, p) if train else x


@on_complex("dropout.default")
def dropout_of_complex(c: Context, z: Complex, p: float, train: bool) -> Complex:
    factor = dropout(c, filled(z.real.shape, 1, z.real.dtype), p, train)
    return Complex(ops.Mul()(z.real, factor), ops.Mul()(z.imaginary, factor))


@aten("native_dropout.default")
def native_dropout(c: Context, x: Node, p: float, train: bool | None) -> tuple[Node, Node]:
    if train is False:
        return x, filled(x.shape, True, boolean)
    return sampling.dropout(c.key(), x, p)


def _channels(x: Node) -> tuple[DimLike, ...]:
    """The shape of one draw for each channel of each sample."""
    if x.type.rank < 2:
        raise Unsupported(f"a dropout of channels in a tensor of rank {x.type.rank}")
    return (*x.shape[:2], *(1 for _ in x.shape[2:]))


@aten("feature_dropout.default")
def feature_dropout(c: Context, x: Node, p: float, train: bool) -> Node:
    return sampling.dropout(c.key(), x, p, _channels(x))[0] if train and p else x


def _alpha_dropout(c: Context, x: Node, p: float, shape: Sequence[DimLike]) -> Node:
    if p == 1.0:
        return ops.Mul()(x, expand(scalar_like(0, x), x.shape))
    is_kept = cast(sampling.dropout_mask(c.key(), tuple(shape), p), x.dtype)
    a = 1 / math.sqrt((_SELU_SATURATION * _SELU_SATURATION * p + 1) * (1 - p))
    shift = ops.add(ops.mul(ops.sub(is_kept, 1.0), _SELU_SATURATION * a), _SELU_SATURATION * a * p)
    return ops.add(ops.mul(x, ops.mul(is_kept, a)), shift)


@aten("alpha_dropout.default")
def alpha_dropout(c: Context, x: Node, p: float, train: bool) -> Node:
    return _alpha_dropout(c, x, p, x.shape) if train and p else x


@aten("feature_alpha_dropout.default")
def feature_alpha_dropout(c: Context, x: Node, p: float, train: bool) -> Node:
    return _alpha_dropout(c, x, p, _channels(x)) if train and p else x


# --- leaky ReLU with a random slope


def _rrelu(c: Context, x: Node, lower: float, upper: float, training: bool) -> tuple[Node, Node | None]:
    """The result, and its elements' factors; None where all are fixed."""
    if not training:
        return ops.LeakyRelu((lower + upper) / 2)(x), None
    slope = ops.add(
        ops.mul(sampling.uniform(c.key(), x.shape, sampling.compute_dtype(x.dtype)), upper - lower), float(lower)
    )
    negative = ops.compare("LE", x, 0.0)
    factor = ops.where(negative, cast(slope, x.dtype), 1.0)
    return ops.where(negative, ops.mul(x, factor), x), factor


@aten("rrelu.default")
def rrelu(
    c: Context, x: Node, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *rest: object
) -> Node:
    return _rrelu(c, x, lower, upper, training)[0]


@aten("rrelu_with_noise.default")
def rrelu_with_noise(
    c: Context, x: Node, noise: Node, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *rest: object
) -> Node:
    if training:
        raise Unsupported("the op that writes its noise")  # decomposed, it returns that
    return rrelu(c, x, lower, upper)


@aten("rrelu_with_noise_functional.default")
def rrelu_with_noise_functional(
    c: Context, x: Node, noise: Node, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    *rest: object,
) -> tuple[Node, Node]:  # fmt: skip
    y, factor = _rrelu(c, x, lower, upper, training)
    return y, noise if factor is None else factor
