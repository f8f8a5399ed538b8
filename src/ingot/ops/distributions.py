"""Distributions with parameters of their own for each element, as builders: gamma, Dirichlet, Poisson, binomial.

Elements propose until their proposal is accepted, or count until they are done: a loop in which those that are done
stay as they are. All in f64, of a key (`ingot.ops.random`).
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

_ROUNDS = 1000  # far more than a number in [0, 1) can make any element take
_COUNTED = 10.0  # a mean below it is counted up to, one above it is proposed to

# (key, parameters) -> (value, whether it is accepted)
Propose = Callable[..., tuple[Term, Term]]
# (state) -> the state after one more step, and whether an element goes on
Step = Callable[..., tuple[Sequence[Term], Term]]


def gamma(key: Node, shape: Node) -> Node:
    """Of the scale 1: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000)."""
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

    value = _accepted(fold_in(key, 0), propose, (d,), (alpha > 0.0) & (alpha < math.inf))
    # of alpha + 1, whose product with this is alpha's
    lift = (_log_uniform(key, 1, alpha) / where(alpha > 0.0, alpha, 1.0)).map(Exp())
    value = where(small, value * lift, value)
    return where(alpha.equals(0.0) | alpha.equals(math.inf), alpha, value).cast(shape.dtype).node


def dirichlet(key: Node, concentration: Node) -> Node:
    """Numbers that sum to 1 along the last axis."""
    parts = Term(gamma(key, Term(concentration).cast(f64).node))
    return (parts / parts.sum((parts.rank - 1,))).cast(concentration.dtype).node


def poisson(key: Node, mean: Node) -> Node:
    """Hörmann, "The transformed rejection method for generating Poisson random variables" (1993), algorithm PTRS; means
    below 10 by inversion."""
    rate = Term(mean).cast(f64)
    large = (rate >= _COUNTED) & (rate < math.inf)

    def propose(key: Node, rate: Term) -> tuple[Term, Term]:
        root = rate.map(Sqrt())
        b = root * 2.53 + 0.931
        a = b * 0.02483 - 0.059
        u, v = (Term(sampling.positive(fold_in(key, i), rate.shape, f64)) for i in range(2))
        u = u - 0.5
        us = 0.5 - u.map(Abs())
        k = ((a * 2.0 / us + b) * u + rate + 0.43).map(Floor())
        scaled = v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b)
        exact = scaled.map(Log()) <= k * rate.map(Log()) - rate - _log_factorial(k)
        plain = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2.0))
        return k, plain | ((k >= 0.0) & ((us >= 0.013) | (v <= us)) & exact)

    def step(k: Term, chance: Term, left: Term, rate: Term) -> tuple[Sequence[Term], Term]:
        going = left > chance
        k = where(going, k + 1.0, k)
        return (k, where(going, chance * rate / k, chance), where(going, left - chance, left), rate), going

    proposed = _accepted(fold_in(key, 0), propose, (where(large, rate, _COUNTED),), large)
    few = where((rate >= 0.0) & (rate < _COUNTED), rate, 0.0)
    counted = _counted(key, step, (-few).map(Exp()), (few,))
    value = where(large, proposed, where(rate >= 0.0, counted, math.nan))
    return where(rate.equals(math.inf), math.inf, value).cast(mean.dtype).node


def binomial(key: Node, count: Node, chance: Node) -> Node:
    """How many of `count` trials succeed: Hörmann, "The generation of binomial random variates" (1993), algorithm BTRS;
    fewer than 10 on the average by inversion. Both of one shape and type."""
    n, p = (Term(v).cast(f64) for v in (count, chance))
    often = p > 0.5
    rare = where(often, 1.0 - p, p)
    valid = (n >= 0.0) & (rare >= 0.0) & (n < math.inf)
    large = valid & (n * rare >= _COUNTED)

    def propose(key: Node, n: Term, p: Term) -> tuple[Term, Term]:
        q = 1.0 - p
        deviation = (n * p * q).map(Sqrt())
        b = deviation * 2.53 + 1.15
        a = b * 0.0248 + p * 0.01 - 0.0873
        u, v = (Term(sampling.positive(fold_in(key, i), n.shape, f64)) for i in range(2))
        u = u - 0.5
        us = 0.5 - u.map(Abs())
        k = ((a * 2.0 / us + b) * u + n * p + 0.5).map(Floor())
        inside = (k >= 0.0) & (k <= n)
        m, k_in = ((n + 1.0) * p).map(Floor()), where(inside, k, 0.0)
        likelihood = (
            _log_factorial(m) + _log_factorial(n - m) - _log_factorial(k_in) - _log_factorial(n - k_in)
            + (k_in - m) * (p / q).map(Log())
        )  # fmt: skip
        scaled = v * (2.83 + 5.1 / b) * deviation / (a / (us * us) + b)
        plain = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
        return k, inside & (plain | (scaled.map(Log()) <= likelihood))

    def step(k: Term, chance: Term, left: Term, n: Term, odds: Term) -> tuple[Sequence[Term], Term]:
        going = (left > chance) & (k < n)
        k = where(going, k + 1.0, k)
        next_chance = chance * odds * (n - k + 1.0) / where(going, k, 1.0)
        return (k, where(going, next_chance, chance), where(going, left - chance, left), n, odds), going

    proposed = _accepted(fold_in(key, 0), propose, (where(large, n, 40.0), where(large, rare, 0.5)), large)
    few, seldom = (where(valid & (n * rare < _COUNTED), v, 0.0) for v in (n, rare))
    none = (few * (-seldom).map(Log1p())).map(Exp())
    value = where(large, proposed, _counted(key, step, none, (few, seldom / (1.0 - seldom))))
    value = where(often, n - value, value)
    return where(valid, value, math.nan).cast(count.dtype).node


def _log_uniform(key: Node, stream: int, like: Term) -> Term:
    return Term(sampling.positive(fold_in(key, stream), like.shape, f64)).map(Log())


def _log_factorial(k: Term) -> Term:
    """Of what is no proposal, at -1 and below, anything."""
    return Term(special.lgamma((where(k < 0.0, 0.0, k) + 1.0).node))


def _accepted(key: Node, propose: Propose, parameters: Sequence[Term], wanted: Term) -> Term:
    """The first proposal that each wanted element accepts; NaN for the others."""

    def step(k: Term, key: Term, going: Term, value: Term, *parameters: Term) -> Sequence[Term]:
        found, accepted = propose(fold_in(key.node, 0), *parameters)
        value = where(going & accepted, found, value)
        going = going & accepted.equals(t.full(accepted.shape, False, boolean))
        return k + 1, Term(fold_in(key.node, 1)), going, value, *parameters

    nothing = t.full(wanted.shape, math.nan, f64)
    return _loop(step, (Term(key), wanted, nothing, *parameters))[3]


def _counted(key: Node, step: Step, chance: Term, parameters: Sequence[Term]) -> Term:
    """The least number whose distribution function reaches a uniform one. chance: of 0."""

    def counting(k: Term, key: Term, going: Term, *state: Term) -> Sequence[Term]:
        state_, going = step(*state)
        return k + 1, key, going, *state_

    drawn = Term(sampling.uniform(fold_in(key, 1), chance.shape, f64))
    zero = t.full(chance.shape, 0.0, f64)
    going = t.full(chance.shape, True, boolean)
    return _loop(counting, (Term(key), going, zero, chance, drawn, *parameters))[3]


def _loop(step: Callable[..., Sequence[Term]], state: Sequence[Term]) -> list[Term]:
    """`step` (round, key, going, *rest) while an element is `going`."""
    first = [t.scalar(0, i64), *state]
    inputs = [Term(Input(f"v{i}", s.node.type)()) for i, s in enumerate(first)]
    going = inputs[2].reduce("or", range(inputs[2].rank), keepdims=False) & (inputs[0] < _ROUNDS)
    nodes = tuple(i.node for i in inputs)
    loop = While(Graph(nodes, (going.node,)), Graph(nodes, tuple(s.node for s in step(*inputs))))
    return [Term(r) for r in loop(*(s.node for s in first)).results]
