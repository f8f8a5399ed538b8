"""Optimizers of `ingot.train`: frozen descriptions, whose rule is written once and compiled into the step.

    ingot.optim.AdamW(lr=3e-4, weight_decay=0.1, groups=(ingot.optim.Group("*.bias", weight_decay=0),))

The formulas, their order of operations and their defaults are PyTorch's, so that a step gives the parameters that
torch.optim gives, up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar, TypeAlias

from ingot.ir.types import f64
from ingot.ops.core.elementwise import Sign, Sqrt
from ingot.ops.nn.terms import Term, scalar
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number, fits

Moments: TypeAlias = "dict[str, Term]"


@dataclass(frozen=True)
class Group:
    """Parameters whose names match a pattern of the shell ("*.bias"), and what is different for them.

    lr: a factor of the learning rate; 0 leaves them as they are. weight_decay: in place of the optimizer's.
    """

    match: str
    lr: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        _check("lr of a group", self.lr)
        if self.weight_decay is not None:
            _check("weight_decay of a group", self.weight_decay)


@dataclass(frozen=True)
class Optimizer:
    """Base. lr: of a step, where the call gives none. groups: the first that matches a parameter's name counts."""

    slots: ClassVar[tuple[str, ...]] = ()  # names of what is kept for each parameter, zeros at first
    lr: float = 1e-3
    weight_decay: float = 0.0
    groups: Sequence[Group] = ()

    def __post_init__(self) -> None:
        _check("lr", self.lr)
        _check("weight_decay", self.weight_decay)
        if other := [g for g in self.groups if not isinstance(g, Group)]:
            raise InputError("groups", expected="ingot.optim.Group(pattern, ...) each", got=repr(other[0]))

    def group_of(self, name: str) -> Group | None:
        return next((g for g in self.groups if fits(name, g.match)), None)

    def apply(self, name: str, p: Term, g: Term, moments: Moments, lr: Term, count: Term) -> tuple[Term, Moments]:
        """The next value of parameter `name` and its moments, from its gradient. count: of updates, from 1 (i64)."""
        group = self.group_of(name)
        decay = self.weight_decay if group is None or group.weight_decay is None else group.weight_decay
        rate = lr if group is None or group.lr == 1 else lr * group.lr
        return self.update(p, g, moments, rate.cast(p.dtype), count, decay)

    def update(self, p: Term, g: Term, moments: Moments, lr: Term, count: Term, decay: float) -> tuple[Term, Moments]:
        raise NotImplementedError(f"{type(self).__name__}.update")


@dataclass(frozen=True)
class SGD(Optimizer):
    """p - lr * v with v = momentum * v + gradient (Sutskever et al. 2013, "On the importance of initialization").

    nesterov: looks ahead along v. weight_decay is added to the gradient.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        check_number("momentum", self.momentum, "a number in [0, 1)", lambda v: 0 <= v < 1)
        if self.nesterov and not self.momentum:
            raise InputError("nesterov", expected="a momentum above 0 with it", got=self.momentum)

    @property
    def slots(self) -> tuple[str, ...]:  # type: ignore[override]  # plain descent keeps nothing
        return ("momentum",) if self.momentum else ()

    def update(self, p: Term, g: Term, moments: Moments, lr: Term, count: Term, decay: float) -> tuple[Term, Moments]:
        g = g + p * decay if decay else g
        if not self.momentum:
            return p - lr * g, {}
        v = moments["momentum"] * self.momentum + g
        return p - lr * (g + v * self.momentum if self.nesterov else v), {"momentum": v}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba 2015, "Adam: a method for stochastic optimization"; weight_decay is added to the gradient."""

    slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _check_betas(self.betas)
        _check("eps", self.eps)

    def update(self, p: Term, g: Term, moments: Moments, lr: Term, count: Term, decay: float) -> tuple[Term, Moments]:
        return self._step(p, g + p * decay if decay else g, moments, lr, count)

    def _step(self, p: Term, g: Term, moments: Moments, lr: Term, count: Term) -> tuple[Term, Moments]:
        first, second = self.betas
        m = moments["exp_avg"] + (g - moments["exp_avg"]) * (1 - first)
        v = moments["exp_avg_sq"] * second + g * g * (1 - second)
        # in f64: 1 - 0.999^t loses four digits of f32 at t = 1
        size = lr.cast(f64) / _bias_correction(first, count)
        scale = _bias_correction(second, count).map(Sqrt())
        root = v.map(Sqrt()) / scale.cast(p.dtype) + self.eps
        return p - size.cast(p.dtype) * (m / root), {"exp_avg": m, "exp_avg_sq": v}


@dataclass(frozen=True)
class AdamW(Adam):
    """Loshchilov and Hutter 2019, "Decoupled weight decay regularization": weight_decay shrinks the parameters."""

    weight_decay: float = 0.01

    def update(self, p: Term, g: Term, moments: Moments, lr: Term, count: Term, decay: float) -> tuple[Term, Moments]:
        return self._step(p * (1 - lr * decay) if decay else p, g, moments, lr, count)


@dataclass(frozen=True)
class Lion(Optimizer):
    """Chen et al. 2023, "Symbolic discovery of optimization algorithms": the sign of a mean; one moment."""

    slots: ClassVar[tuple[str, ...]] = ("exp_avg",)
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _check_betas(self.betas)

    def update(self, p: Term, g: Term, moments: Moments, lr: Term, count: Term, decay: float) -> tuple[Term, Moments]:
        first, second = self.betas
        m = moments["exp_avg"]
        p = p * (1 - lr * decay) if decay else p
        return p - lr * (m * first + g * (1 - first)).map(Sign()), {"exp_avg": m * second + g * (1 - second)}


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "lion": Lion}


def _bias_correction(beta: float, count: Term) -> Term:
    """1 - beta^count: what of a mean that began with zeros is not of these."""
    return 1.0 - scalar(beta, f64) ** count.cast(f64)


def _check(what: str, got: object) -> None:
    check_number(what, got, "a finite number, at least 0", lambda v: 0 <= v < inf)


def _check_betas(betas: object) -> None:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise InputError("betas", expected="two numbers in [0, 1)", got=repr(betas))
    for beta in betas:
        check_number("betas", beta, "two numbers in [0, 1)", lambda v: 0 <= v < 1)


__all__ = ["OPTIMIZERS", "SGD", "Adam", "AdamW", "Group", "Lion", "Optimizer"]
