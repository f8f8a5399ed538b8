"""The activation functions of recurrent cells by ONNX name: in numpy for references, in terms for lowerings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot.ops.core.elementwise import Abs
from ingot.ops.core.functions import Expm1, Log1p
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term, Value

# (name, alpha, beta): the ONNX name in lower case; alpha and beta are 0 if the function has none
Activation = tuple[str, float, float]

SIGMOID: Activation = ("sigmoid", 0.0, 0.0)

TANH: Activation = ("tanh", 0.0, 0.0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_NUMPY: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(x)),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(0, x),
}

TERMS: dict[str, Callable[[Term, float, float], Value]] = {
    "sigmoid": lambda x, a, b: t.logistic(x),
    "tanh": lambda x, a, b: t.tanh(x),
    "relu": lambda x, a, b: t.maximum(x, 0),
    "affine": lambda x, a, b: x * a + b,
    "leakyrelu": lambda x, a, b: t.where(x >= 0, x, x * a),
    "thresholdedrelu": lambda x, a, b: t.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: t.tanh(x * b) * a,
    "hardsigmoid": lambda x, a, b: t.clamp(0, x * a + b, 1),
    "elu": lambda x, a, b: t.where(x >= 0, x, x.map(Expm1()) * a),
    "softsign": lambda x, a, b: x / (x.map(Abs()) + 1),
    # max(x, 0) + log(1 + e^-|x|): no overflow
    "softplus": lambda x, a, b: t.term(t.maximum(x, 0)) + t.exp(-x.map(Abs())).map(Log1p()),
}


def apply_numpy(activation: Activation, x: np.ndarray) -> np.ndarray:
    """activation(x) in numpy."""
    name, alpha, beta = activation
    return _NUMPY[name](x, alpha, beta)


def apply_term(activation: Activation, x: Term) -> Term:
    """activation(x) as a term."""
    name, alpha, beta = activation
    return t.term(TERMS[name](x, alpha, beta))
