"""Builders of distributions with parameters for each element: gamma, Dirichlet, Poisson, binomial.

They sample by rejection or inversion, in a loop that leaves finished elements unchanged. All are computed in f64 from a
key (`ingot.ops.random`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import boolean, f64, i64
from ingot.ops import sampling, special
from ingot.ops.bessel import where
from ingot.ops.core.control import While
from ingot.ops.core.elementwise import Abs, Floor, Sqrt
from ingot.ops.core.functions import Exp, Log, Log1p
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.ops.random import fold_in

_MAX_ROUNDS = 1000  # a bound that no element reaches
_MAX_INVERSION_MEAN = 10.0  # smaller means are sampled by inversion, larger ones by rejection

# (key, *parameters) -> (value, whether it is accepted)
Propose = Callable[..., tuple[Term, Term]]
# (*state) -> the next state, and whether an element is unfinished
Step = Callable[..., tuple[Sequence[Term], Term]]


def gamma(key: Node, shape: Node) -> Node:
    """Gamma of scale 1 and the given shape parameters (Marsaglia and Tsang, "A simple method for generating gamma
    variables", 2000)."""
    alpha = Term(shape).cast(f64)
    small = alpha < 1.0
    d = where(small, alpha + 1.0, alpha) - 1 / 3

    def propose(key: Node, d: Term) -> tuple[Term, Term]:
        x = Term(sampling.normal(fold_in(key, 0), d.shape, f64))
        root = x / (d * 9.0).map(Sqrt()) + 1.0
        v = root * root * root
        positive = root > 0.0
        log_v = where(positive, v, 1.0).map(Log())
        return d * v, positive & (_log_uniform(key, 1, d) < x * x * 0.5 + d - d * v + d * log_v)

    value = _sample_by_rejection(fold_in(key, 0), propose, (d,), (alpha > 0.0) & (alpha < math.inf))
    # a gamma variate of alpha is one of alpha + 1 times u^(1 / alpha)
    lift = (_log_uniform(key, 1, alpha) / where(alpha > 0.0, alpha, 1.0)).map(Exp())
    value = where(small, value * lift, value)
    return where(alpha.equals(0.0) | alpha.equals(math.inf), alpha, value).cast(shape.dtype).node


def dirichlet(key: Node, concentration: Node) -> Node:
    """Dirichlet: numbers that sum to 1 along the last axis."""
    parts = Term(gamma(key, Term(concentration).cast(f64).node))
    return (parts / parts.sum((parts.rank - 1,))).cast(concentration.dtype).node


def poisson(key: Node, mean: Node) -> Node:
    """Poisson of the given means: algorithm PTRS, and inversion for means below 10.

    Hörmann, "The transformed rejection method for generating Poisson random variables" (1993).
    """
    rate = Term(mean).cast(f64)
    large = (rate >= _MAX_INVERSION_MEAN) & (rate < math.inf)

    def propose(key: Node, rate: Term) -> tuple[Term, Term]:
        root = rate.map(Sqrt())
        b = root * 2.53 + 0.931
        a = b * 0.02483 - 0.059
        u, v = (Term(sampling.uniform_open(fold_in(key, i), rate.shape, f64)) for i in range(2))
        u = u - 0.5
        us = 0.5 - u.map(Abs())
        k = ((a * 2.0 / us + b) * u + rate + 0.43).map(Floor())
        scaled = v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b)
        accept = scaled.map(Log()) <= k * rate.map(Log()) - rate - _log_factorial(k)
        quick_accept = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2.0))
        return k, quick_accept | ((k >= 0.0) & ((us >= 0.013) | (v <= us)) & accept)

    def step(k: Term, probability: Term, remaining: Term, rate: Term) -> tuple[Sequence[Term], Term]:
        going = remaining > probability
        k = where(going, k + 1.0, k)
        return (
            k,
            where(going, probability * rate / k, probability),
            where(going, remaining - probability, remaining),
            rate,
        ), going

    proposed = _sample_by_rejection(fold_in(key, 0), propose, (where(large, rate, _MAX_INVERSION_MEAN),), large)
    small_rate = where((rate >= 0.0) & (rate < _MAX_INVERSION_MEAN), rate, 0.0)
    inverted = _sample_by_inversion(key, step, (-small_rate).map(Exp()), (small_rate,))
    value = where(large, proposed, where(rate >= 0.0, inverted, math.nan))
    return where(rate.equals(math.inf), math.inf, value).cast(mean.dtype).node


def binomial(key: Node, count: Node, chance: Node) -> Node:
    """Binomial: the number of successes in `count` trials of probability `chance`, both of one type.

    Algorithm BTRS of Hörmann, "The generation of binomial random variates" (1993); inversion for means below 10.
    """
    n, p = (Term(v).cast(f64) for v in (count, chance))
    is_mirrored = p > 0.5
    p_small = where(is_mirrored, 1.0 - p, p)
    valid = (n >= 0.0) & (p_small >= 0.0) & (n < math.inf)
    large = valid & (n * p_small >= _MAX_INVERSION_MEAN)

    def propose(key: Node, n: Term, p: Term) -> tuple[Term, Term]:
        q = 1.0 - p
        deviation = (n * p * q).map(Sqrt())
        b = deviation * 2.53 + 1.15
        a = b * 0.0248 + p * 0.01 - 0.0873
        u, v = (Term(sampling.uniform_open(fold_in(key, i), n.shape, f64)) for i in range(2))
        u = u - 0.5
        us = 0.5 - u.map(Abs())
        k = ((a * 2.0 / us + b) * u + n * p + 0.5).map(Floor())
        in_range = (k >= 0.0) & (k <= n)
        m, k_in = ((n + 1.0) * p).map(Floor()), where(in_range, k, 0.0)
        likelihood = (
            _log_factorial(m) + _log_factorial(n - m) - _log_factorial(k_in) - _log_factorial(n - k_in)
            + (k_in - m) * (p / q).map(Log())
        )  # fmt: skip
        scaled = v * (2.83 + 5.1 / b) * deviation / (a / (us * us) + b)
        quick_accept = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
        return k, in_range & (quick_accept | (scaled.map(Log()) <= likelihood))

    def step(k: Term, probability: Term, remaining: Term, n: Term, odds: Term) -> tuple[Sequence[Term], Term]:
        going = (remaining > probability) & (k < n)
        k = where(going, k + 1.0, k)
        next_probability = probability * odds * (n - k + 1.0) / where(going, k, 1.0)
        return (
            k,
            where(going, next_probability, probability),
            where(going, remaining - probability, remaining),
            n,
            odds,
        ), going

    proposed = _sample_by_rejection(
        fold_in(key, 0), propose, (where(large, n, 40.0), where(large, p_small, 0.5)), large
    )
    small_n, small_p = (where(valid & (n * p_small < _MAX_INVERSION_MEAN), v, 0.0) for v in (n, p_small))
    p_zero = (small_n * (-small_p).map(Log1p())).map(Exp())
    value = where(large, proposed, _sample_by_inversion(key, step, p_zero, (small_n, small_p / (1.0 - small_p))))
    value = where(is_mirrored, n - value, value)
    return where(valid, value, math.nan).cast(count.dtype).node


def _log_uniform(key: Node, stream: int, like: Term) -> Term:
    return Term(sampling.uniform_open(fold_in(key, stream), like.shape, f64)).map(Log())


def _log_factorial(k: Term) -> Term:
    """log k!; unspecified for negative k, which are never accepted."""
    return Term(special.lgamma((where(k < 0.0, 0.0, k) + 1.0).node))


def _sample_by_rejection(key: Node, propose: Propose, parameters: Sequence[Term], active: Term) -> Term:
    """The first accepted proposal of each active element; NaN for the others."""

    def step(k: Term, key: Term, going: Term, value: Term, *parameters: Term) -> Sequence[Term]:
        proposal, accepted = propose(fold_in(key.node, 0), *parameters)
        value = where(going & accepted, proposal, value)
        going = going & accepted.equals(t.full(accepted.shape, False, boolean))
        return k + 1, Term(fold_in(key.node, 1)), going, value, *parameters

    nan = t.full(active.shape, math.nan, f64)
    return _loop(step, (Term(key), active, nan, *parameters))[3]


def _sample_by_inversion(key: Node, step: Step, probability: Term, parameters: Sequence[Term]) -> Term:
    """The smallest number whose distribution function reaches a uniform sample. probability: that of 0."""

    def counting(k: Term, key: Term, going: Term, *state: Term) -> Sequence[Term]:
        new_state, going = step(*state)
        return k + 1, key, going, *new_state

    target = Term(sampling.uniform(fold_in(key, 1), probability.shape, f64))
    zero = t.full(probability.shape, 0.0, f64)
    going = t.full(probability.shape, True, boolean)
    return _loop(counting, (Term(key), going, zero, probability, target, *parameters))[3]


def _loop(step: Callable[..., Sequence[Term]], state: Sequence[Term]) -> list[Term]:
    """The state (round, key, going, *rest) after iterating `step` while any element is `going`."""
    initial_state = [t.scalar(0, i64), *state]
    inputs = [Term(Input(f"v{i}", s.node.type)()) for i, s in enumerate(initial_state)]
    going = inputs[2].reduce("or", range(inputs[2].rank), keepdims=False) & (inputs[0] < _MAX_ROUNDS)
    nodes = tuple(i.node for i in inputs)
    loop = While(Graph(nodes, (going.node,)), Graph(nodes, tuple(s.node for s in step(*inputs))))
    return [Term(r) for r in loop(*(s.node for s in initial_state)).results]
