"""ai.onnx.ml without its trees (trees.py): linear models, support vector machines, encoders of numbers, scalers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType

ML = "ai.onnx.ml"
# the most classes whose coupling steps are unrolled
_MAX_COUPLED_CLASSES = 32


def matrix(x: Node, dtype: DType = T.f32) -> Node:
    """[rows, features] of `dtype`; a vector is one row."""
    return ops.cast(ops.expand_dims(x, 0) if len(x.shape) == 1 else x, dtype)


def floats(c: Call, name: str, default: tuple[float, ...] = ()) -> np.ndarray:
    return np.asarray(c.float_list(name) or default, np.float32)


# classes


def labels(c: Call, name: str) -> np.ndarray:
    """A classifier's labels; for strings their indices, which the host maps to the strings."""
    strings = c.attr("classlabels_strings")
    if isinstance(strings, Sequence) and strings:
        return np.arange(len(strings))
    return np.asarray(c.int_list(name), np.int64)


def top_label(scores: Node, names: np.ndarray) -> Node:
    """[rows]: the label of the greatest score of [rows, classes]; the first among equal ones."""
    return ops.Take(0)(const(names), ops.arg_reduce("max", scores, 1))


def label_of(second: Node, names: np.ndarray) -> Node:
    """The second of two labels where `second` is true, else the first."""
    return ops.where(second, const(names[1]), const(names[0]))


def transformed(y: Node, name: str) -> Node:
    """`post_transform` of [rows, classes]."""
    match name:
        case "NONE":
            return y
        case "LOGISTIC":
            return ops.Logistic()(y)
        case "SOFTMAX":
            return ops.Softmax(1)(y)
        case "SOFTMAX_ZERO":
            # softmax, except that scores of 0 stay 0
            maxima = ops.reduce_max(y, 1, keepdims=True)
            is_significant = ops.compare("GT", ops.Abs()(y), 1e-7)
            parts = ops.where(is_significant, ops.Exp()(ops.sub(y, maxima)), ops.scalar(0, y.dtype))
            softmax_parts = ops.where(is_significant, parts, ops.mul(y, ops.Exp()(ops.Neg()(maxima))))
            return ops.div(softmax_parts, ops.reduce_sum(parts, 1, keepdims=True))
    raise Unsupported(f"post_transform {name}")


def both_scores(y: Node, transform: str, probable: bool) -> Node:
    """[rows, 2] of one score [rows, 1]: probabilities of the second class, or margins between them."""
    if transform == "PROBIT":
        raise Unsupported("post_transform PROBIT")
    if transform == "LOGISTIC":
        return ops.Logistic()(ops.concat([ops.Neg()(y), y], 1))
    return ops.concat([ops.sub(1.0, y) if probable else ops.Neg()(y), y], 1)


# linear models and support vectors


def _linear(c: Call) -> Node:
    """[rows, outputs]: x coefficients^T + intercepts."""
    x, bias = matrix(c.x()), floats(c, "intercepts")
    count = c.int("targets", 1) if c.proto.op_type == "LinearRegressor" else max(len(bias), 1)
    weight = floats(c, "coefficients").reshape(count, -1)
    y = ops.MatMul()(x, const(np.ascontiguousarray(weight.T)))
    return ops.add(y, const(bias)) if bias.size else y


@onnx_op("LinearRegressor", domain=ML)
def linear_regressor(c: Call) -> Result:
    return transformed(_linear(c), c.str("post_transform", "NONE"))


@onnx_op("LinearClassifier", domain=ML)
def linear_classifier(c: Call) -> Result:
    names, y, transform = labels(c, "classlabels_ints"), _linear(c), c.str("post_transform", "NONE")
    if y.shape[1] != 1:
        return [top_label(y, names), transformed(y, transform)]
    if len(names) != 2:
        raise Unsupported(f"one score of {len(names)} classes")
    label = label_of(ops.compare("GT", ops.reshape(y, (-1,)), 0.0), names)
    return [label, both_scores(y, transform, True)]


def _kernels(c: Call, x: Node, vectors: np.ndarray) -> Node:
    """[rows, vectors]: the kernel of each row with each of [vectors, features]."""
    kind, params = c.str("kernel_type", "LINEAR"), floats(c, "kernel_params", (0.0, 0.0, 0.0))
    gamma, shift, degree = (float(p) for p in params)
    if kind == "RBF":
        # squares of differences, rather than differences of squares, which cancel
        differences = ops.sub(ops.expand_dims(x, 1), const(vectors))
        return ops.Exp()(ops.mul(ops.reduce_sum(ops.mul(differences, differences), 2), -gamma))
    y = ops.MatMul()(x, const(np.ascontiguousarray(vectors.T)))
    match kind:
        case "LINEAR":
            return y
        case "POLY":
            return ops.pow(ops.add(ops.mul(y, gamma), shift), degree)
        case "SIGMOID":
            return ops.Tanh()(ops.add(ops.mul(y, gamma), shift))
    raise Unsupported(f"kernel {kind!r}")


@onnx_op("SVMRegressor", domain=ML)
def svm_regressor(c: Call) -> Result:
    x, weight, rho = matrix(c.x()), floats(c, "coefficients"), floats(c, "rho")
    if c.str("post_transform", "NONE") != "NONE":
        raise Unsupported("post_transform of a support vector regression")
    supports = c.int("n_supports", 0)
    if supports:
        x = _kernels(c, x, floats(c, "support_vectors").reshape(supports, -1))
    y = ops.add(ops.MatMul()(x, const(weight.reshape(-1, 1))), const(rho[0]))
    return ops.where(ops.compare("GT", y, 0.0), ops.scalar(1.0), ops.scalar(-1.0)) if c.flag("one_class") else y


@onnx_op("SVMClassifier", domain=ML)
def svm_classifier(c: Call) -> Result:
    """One margin for each pair of classes; the winner of each pair gets a vote."""
    names, x, counts = labels(c, "classlabels_ints"), matrix(c.x()), c.int_list("vectors_per_class", ())
    if not sum(counts) or len(counts) != len(names):
        raise Unsupported("a support vector classifier without vectors for each class")
    classes, class_of_vector = len(names), np.repeat(np.arange(len(names)), counts)
    weight = floats(c, "coefficients").reshape(classes - 1, -1)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    columns = np.zeros((weight.shape[1], len(pairs)), np.float32)
    won = np.zeros((len(pairs), classes), np.float32)
    for p, (i, j) in enumerate(pairs):
        columns[class_of_vector == i, p], columns[class_of_vector == j, p] = (
            weight[j - 1, class_of_vector == i],
            weight[i, class_of_vector == j],
        )
        won[p, i], won[p, j] = 1.0, -1.0
    kernels = _kernels(c, x, floats(c, "support_vectors").reshape(weight.shape[1], -1))
    y = ops.add(ops.MatMul()(kernels, const(columns)), const(floats(c, "rho")[: len(pairs)]))
    first = ops.cast(ops.compare("GT", y, 0.0), T.f32)
    votes = ops.add(ops.MatMul()(first, const(won)), const(-np.minimum(won, 0).sum(0)))
    transform = c.str("post_transform", "NONE")
    if c.has_attr("prob_a"):
        a, b = (const(floats(c, f"prob_{p}")[: len(pairs)]) for p in "ab")
        probabilities = ops.clip(ops.sub(1.0, ops.Logistic()(ops.add(ops.mul(y, a), b))), 1e-7, 1 - 1e-7)
        return [top_label(votes, names), transformed(_coupled(probabilities, pairs, classes), transform)]
    margins = both_scores(y, transform, transform != "NONE") if classes == 2 else transformed(y, transform)
    return [top_label(votes, names), margins]


def _coupled(probabilities: Node, pairs: Sequence[tuple[int, int]], classes: int) -> Node:
    """[rows, classes]: the probabilities of classes from those of the first class of each pair, by the second method of
    Wu, Lin and Weng 2004, with libsvm's iterations and stopping rule."""
    if classes > _MAX_COUPLED_CLASSES:
        raise Unsupported(f"probabilities of more than {_MAX_COUPLED_CLASSES} classes")
    rows, count = probabilities.shape[0], len(pairs)
    column = np.full((classes, classes), 2 * count)
    for p, (i, j) in enumerate(pairs):
        column[i, j], column[j, i] = p, count + p
    scores_of_pairs = ops.concat([probabilities, ops.sub(1.0, probabilities), ops.full((rows, 1), 0.0)], 1)
    won = ops.reshape(ops.Take(1)(scores_of_pairs, const(column.reshape(-1))), (rows, classes, classes))
    squares = ops.expand_dims(ops.reduce_sum(ops.mul(won, won), 1), 2)
    coupling = ops.Neg()(ops.mul(won, ops.transpose(won, (0, 2, 1))))
    q = ops.where(const(np.eye(classes, dtype=bool)), squares, coupling)
    start = ops.full((rows, classes), 1 / classes)
    i, is_going, p, q_in_loop = (
        Input(name, t)()
        for name, t in (("i", TensorType(T.i64)), ("go", TensorType(T.boolean)), ("p", start.type), ("q", q.type))
    )
    qp = ops.reduce_sum(ops.mul(q_in_loop, ops.expand_dims(p, 1)), 2)
    total = ops.reduce_sum(ops.mul(p, qp), 1, keepdims=True)
    error = ops.reduce_max(ops.Abs()(ops.sub(qp, total)), 1, keepdims=True)
    active, next_p = ops.compare("GE", error, 0.005 / classes), p
    for t in range(classes):
        line = ops.index_axis(q_in_loop, 1, t)
        diagonal, qp_t = (ops.slice_axis(v, 1, t, t + 1) for v in (line, qp))
        step = ops.div(ops.sub(total, qp_t), diagonal)
        scale = ops.add(step, 1.0)
        total = ops.add(total, ops.mul(step, ops.add(ops.mul(step, diagonal), ops.mul(qp_t, 2.0))))
        total = ops.div(total, ops.mul(scale, scale))
        qp = ops.div(ops.add(qp, ops.mul(step, line)), scale)
        unit = const(np.eye(classes, dtype=np.float32)[t])
        next_p = ops.div(ops.add(next_p, ops.mul(step, unit)), scale)
    goes_on = ops.compare("GT", ops.reduce_max(ops.cast(active, T.i32)), 0)
    state = (i, is_going, p, q_in_loop)
    cond = Graph(state, (ops.and_(ops.compare("LT", i, 100), is_going),))
    body = Graph(state, (ops.add(i, 1), goes_on, ops.where(active, next_p, p), q_in_loop))
    return ops.While(cond, body)(const(0, np.int64), const(True, np.bool_), start, q).results[2]


# numbers into numbers


@onnx_op("Scaler", domain=ML)
def scaler(c: Call) -> Result:
    x = ops.cast(c.x(), T.f32)
    return ops.mul(ops.sub(x, const(floats(c, "offset", (0.0,)))), const(floats(c, "scale", (1.0,))))


@onnx_op("Normalizer", domain=ML)
def normalizer(c: Call) -> Result:
    x, norm = ops.cast(c.x(), T.f32), c.str("norm", "MAX")
    match norm:
        case "MAX":
            row_norms = ops.reduce_max(x, -1, keepdims=True)
        case "L1":
            row_norms = ops.reduce_sum(ops.Abs()(x), -1, keepdims=True)
        case "L2":
            row_norms = ops.Sqrt()(ops.reduce_sum(ops.mul(x, x), -1, keepdims=True))
        case _:
            raise Unsupported(f"norm {norm!r}")
    return ops.where(ops.compare("EQ", row_norms, 0.0), x, ops.div(x, row_norms))


@onnx_op("Binarizer", domain=ML)
def binarizer(c: Call) -> Result:
    return ops.cast(ops.compare("GT", c.x(), c.float("threshold", 0.0)), c.type().dtype)


@onnx_op("Imputer", domain=ML)
def imputer(c: Call) -> Result:
    x = c.x()
    name, kind = ("float", c.float_list) if x.dtype.is_float else ("int64", c.int_list)
    values = const(np.asarray(kind(f"imputed_value_{name}s") or (), x.dtype.numpy))
    replaced = c.float("replaced_value_float", 0.0) if x.dtype.is_float else c.int("replaced_value_int64", 0)
    missing = ops.IsNan()(x) if math.isnan(replaced) else ops.compare("EQ", x, replaced)
    return ops.where(missing, values, x)


@onnx_op("FeatureVectorizer", domain=ML)
def feature_vectorizer(c: Call) -> Result:
    parts = [matrix(x) for x in c.xs()]
    for part, size in zip(parts, c.int_list("inputdimensions"), strict=True):
        if part.shape[1] != size:
            raise Unsupported(f"{part.shape[1]} features where {size} are announced")
    return ops.concat(parts, 1)


@onnx_op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(c: Call) -> Result:
    x, indices = c.x(0), ops.reshape(c.x(1), (-1,))
    return ops.Take(c.rank() - 1 or 1)(ops.expand_dims(x, 0) if c.rank() == 1 else x, indices)


@onnx_op("OneHotEncoder", domain=ML)
def one_hot_encoder(c: Call) -> Result:
    """[*shape, categories]; all 0 for a number that is none of them."""
    if c.has_attr("cats_strings"):
        raise Unsupported("categories that are strings")
    x = ops.expand_dims(ops.cast(c.x(), T.i64), c.rank())
    return ops.cast(ops.compare("EQ", x, const(np.asarray(c.int_list("cats_int64s"), np.int64))), T.f32)


def _entries(c: Call, what: str) -> np.ndarray:
    """LabelEncoder's keys or values."""
    if c.has_attr(f"{what}_strings"):
        raise Unsupported(f"{what} that are strings")
    values = c.attr(f"{what}_tensor")
    if isinstance(values, np.ndarray):
        return values.reshape(-1)
    return floats(c, f"{what}_floats") if c.has_attr(f"{what}_floats") else np.asarray(c.int_list(f"{what}_int64s"))


@onnx_op("LabelEncoder", since=2, domain=ML)
def label_encoder(c: Call) -> Result:
    """Each number's value, found by bisection among the sorted keys; the last of equal keys wins."""
    x, values = c.x(), _entries(c, "values")
    keys = _entries(c, "keys").astype(x.dtype.numpy)
    default_tensor = c.attr("default_tensor")
    default = c.float("default_float", -0.0) if values.dtype.kind == "f" else c.int("default_int64", -1)
    default = (
        default_tensor.reshape(()) if isinstance(default_tensor, np.ndarray) else np.asarray(default, values.dtype)
    )
    last = {k: v for k, v in zip(keys.tolist(), values.tolist(), strict=True) if k == k}
    sorted_keys = np.asarray(sorted(last), keys.dtype)
    encoded = ops.full(x.shape, default.item(), T.dtype_of(values))
    if sorted_keys.size:
        positions, is_known = _bisected(x, sorted_keys)
        table = np.asarray([last[k] for k in sorted_keys.tolist()], values.dtype)
        encoded = ops.where(is_known, ops.Take(0)(const(table), positions), encoded)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        encoded = ops.where(ops.IsNan()(x), const(values[np.isnan(keys)][-1]), encoded)
    return encoded


def _bisected(x: Node, keys: np.ndarray) -> tuple[Node, Node]:
    """(i32: the count of ascending keys below each number, at most len(keys) - 1; bool: the next key equals it)."""
    steps = [1 << i for i in range((len(keys) - 1).bit_length())][::-1]
    # padded with the last key to the reach of the steps
    padded = const(np.append(keys, np.full(sum(steps) + 1 - len(keys), keys[-1])))
    positions = ops.full(x.shape, 0, T.i32)
    for step in steps:
        is_below = ops.compare("LT", ops.Take(0)(padded, ops.add(positions, step - 1)), x)
        positions = ops.add(positions, ops.mul(ops.cast(is_below, T.i32), step))
    positions = ops.minimum(positions, len(keys) - 1)
    return positions, ops.compare("EQ", ops.Take(0)(padded, positions), x)


@onnx_op("ZipMap", domain=ML)
def zip_map(c: Call) -> Result:
    """The matrix whose rows ONNX returns as maps from labels to numbers; its columns are in the order of the labels."""
    return c.x()
