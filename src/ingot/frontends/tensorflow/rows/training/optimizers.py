"""Optimizers' steps on variables, as TensorFlow's kernels have them."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.tensorflow.rows.variables import store
from ingot.frontends.tensorflow.values import Call, Missing, Result, Table, Value, Variable, expect
from ingot.ir.node import Node

row = Table()
_add, _sub, _mul, _div = ops.add, ops.sub, ops.mul, ops.div


def _square(x: Node) -> Node:
    return _mul(x, x)


def _one_minus(x: Node) -> Node:
    return _sub(1.0, x)


def _moving_average(old: Node, new: Node, keep: Node) -> Node:
    """old + (new - old) * (1 - keep)"""
    return _add(old, _mul(_sub(new, old), _one_minus(keep)))


def _descent(c: Call, var: Node, alpha: Node, g: Node) -> list[Node]:
    return [_sub(var, _mul(alpha, g))]


def _momentum(c: Call, var: Node, accum: Node, lr: Node, g: Node, momentum: Node) -> list[Node]:
    accum = _add(_mul(accum, momentum), g)
    step = _add(_mul(g, lr), _mul(_mul(accum, momentum), lr)) if c.flag("use_nesterov") else _mul(accum, lr)
    return [_sub(var, step), accum]


def _keras_momentum(c: Call, var: Node, accum: Node, lr: Node, g: Node, momentum: Node) -> list[Node]:
    accum = _sub(_mul(accum, momentum), _mul(lr, g))
    step = _sub(_mul(accum, momentum), _mul(lr, g)) if c.flag("use_nesterov") else accum
    return [_add(var, step), accum]


def _rate(lr: Node, power1: Node, power2: Node) -> Node:
    return _div(_mul(lr, ops.Sqrt()(_one_minus(power2))), _one_minus(power1))


def _adam(
    c: Call, var: Node, m: Node, v: Node, p1: Node, p2: Node, lr: Node, b1: Node, b2: Node, eps: Node, g: Node
) -> list[Node]:
    m, v = _moving_average(m, g, b1), _moving_average(v, _square(g), b2)
    ahead = _add(_mul(m, b1), _mul(_one_minus(b1), g)) if c.flag("use_nesterov") else m
    return [_sub(var, _div(_mul(ahead, _rate(lr, p1, p2)), _add(ops.Sqrt()(v), eps))), m, v]


def _amsgrad(
    c: Call, var: Node, m: Node, v: Node, max_v: Node, p1: Node, p2: Node, lr: Node, b1: Node, b2: Node, eps: Node,
    g: Node,
) -> list[Node]:  # fmt: skip
    m, v = _moving_average(m, g, b1), _moving_average(v, _square(g), b2)
    max_v = ops.maximum(max_v, v)
    return [_sub(var, _div(_mul(m, _rate(lr, p1, p2)), _add(ops.Sqrt()(max_v), eps))), m, v, max_v]


def _adamax(
    c: Call, var: Node, m: Node, v: Node, p1: Node, lr: Node, b1: Node, b2: Node, eps: Node, g: Node
) -> list[Node]:
    m, v = _moving_average(m, g, b1), ops.maximum(_mul(b2, v), ops.Abs()(g))
    return [_sub(var, _mul(_div(lr, _one_minus(p1)), _div(m, _add(v, eps)))), m, v]


def _adagrad(c: Call, var: Node, accum: Node, lr: Node, g: Node) -> list[Node]:
    accum = _add(accum, _square(g)) if c.flag("update_slots") or not c.has("update_slots") else accum
    return [_sub(var, _mul(_mul(lr, g), ops.Rsqrt()(accum))), accum]


def _adagrad_2(c: Call, var: Node, accum: Node, lr: Node, eps: Node, g: Node) -> list[Node]:
    accum = _add(accum, _square(g)) if c.flag("update_slots") or not c.has("update_slots") else accum
    return [_sub(var, _div(_mul(lr, g), _add(ops.Sqrt()(accum), eps))), accum]


def _rmsprop(
    c: Call, var: Node, ms: Node, mom: Node, lr: Node, rho: Node, momentum: Node, eps: Node, g: Node
) -> list[Node]:
    ms = _moving_average(ms, _square(g), rho)
    mom = _add(_mul(mom, momentum), _mul(_mul(g, lr), ops.Rsqrt()(_add(ms, eps))))
    return [_sub(var, mom), ms, mom]


def _centered_rmsprop(
    c: Call, var: Node, mg: Node, ms: Node, mom: Node, lr: Node, rho: Node, momentum: Node, eps: Node, g: Node
) -> list[Node]:
    ms, mg = _moving_average(ms, _square(g), rho), _moving_average(mg, g, rho)
    mom = _add(_mul(mom, momentum), _div(_mul(lr, g), ops.Sqrt()(_add(_sub(ms, _square(mg)), eps))))
    return [_sub(var, mom), mg, ms, mom]


def _adadelta(c: Call, var: Node, accum: Node, delta_mean: Node, lr: Node, rho: Node, eps: Node, g: Node) -> list[Node]:
    accum = _add(_mul(accum, rho), _mul(_square(g), _one_minus(rho)))
    step = _mul(_mul(ops.Sqrt()(_add(delta_mean, eps)), ops.Rsqrt()(_add(accum, eps))), g)
    return [_sub(var, _mul(step, lr)), accum, _add(_mul(delta_mean, rho), _mul(_square(step), _one_minus(rho)))]


def _ftrl(
    c: Call, var: Node, accum: Node, linear: Node, g: Node, lr: Node, l1: Node, l2: Node, *options: Node
) -> list[Node]:
    """rest: what shrinks weights in the gradient, in V2, then the power of the learning rate."""
    power = ops.Neg()(options[-1])
    regularized = _add(g, _mul(_mul(options[0], 2.0), var)) if len(options) > 1 else g
    new_accum = _add(accum, _square(g))
    grown = ops.pow(new_accum, power)
    linear = _add(linear, _sub(regularized, _mul(_div(_sub(grown, ops.pow(accum, power)), lr), var)))
    curve = _add(_div(grown, lr), _mul(l2, 2.0))
    new_var = _div(_sub(_mul(ops.Sign()(linear), l1), linear), curve)
    return [ops.where(ops.compare("GT", ops.Abs()(linear), l1), new_var, 0.0), new_accum, linear]


# rule, and how many variables it steps
_RULES: dict[str, tuple[Callable[..., list[Node]], int]] = {
    "GradientDescent": (_descent, 1), "Momentum": (_momentum, 2), "KerasMomentum": (_keras_momentum, 2),
    "Adam": (_adam, 3), "AdamWithAmsgrad": (_amsgrad, 4), "AdaMax": (_adamax, 3), "Adagrad": (_adagrad, 2),
    "AdagradV2": (_adagrad_2, 2), "RMSProp": (_rmsprop, 3), "CenteredRMSProp": (_centered_rmsprop, 4),
    "Adadelta": (_adadelta, 3), "Ftrl": (_ftrl, 3), "FtrlV2": (_ftrl, 3),
}  # fmt: skip


@row(*(f"ResourceApply{name}" for name in _RULES), any_kind=True)
def apply(c: Call, *operands: Value) -> Result:
    rule, count = _RULES[c.op.removeprefix("ResourceApply")]
    variables, rest = operands[:count], operands[count:]
    if any(isinstance(v, Missing) for v in operands):
        for v in variables:
            store(c, v, Missing())
        return ()
    values = [c.walk.read(expect(v, Variable, "variable")) for v in variables]
    results = rule(c, *values, *(expect(v, Node, "tensor") for v in rest))
    for variable, value in zip(variables, results, strict=True):
        store(c, variable, value)
    return ()
