"""ai.onnx.ml against ONNX Runtime: trees, linear models, support vectors, encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.frontends.onnx.rows.ml.forest import LEAF, LEQ, Forest
from ingot.ir.interp import interpret
from ingot.support.errors import ImportModelError, UnsupportedOpError

ort = pytest.importorskip("onnxruntime")
ML = "ai.onnx.ml"
RNG = np.random.default_rng(0)
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
EDGES = [-np.inf, -1.0, -0.0, 0.0, 0.5, 1.0, np.inf, np.nan]


def model_of(op: str, inputs: list[np.ndarray], results: int, version: int = 3, **attributes: Any) -> onnx.ModelProto:
    """One node whose rows are a symbol."""
    names, outputs = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(results)]
    shapes = [["n", *a.shape[1:]] if a.ndim > 1 and a.shape[0] != 1 else list(a.shape) for a in inputs]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain=ML, **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), s)
            for n, a, s in zip(names, inputs, shapes, strict=True)
        ],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def ort_results(model: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {f"x{i}": a for i, a in enumerate(inputs)})


def agree(model: onnx.ModelProto, inputs: list[np.ndarray], compiled: bool = False) -> None:
    want = ort_results(model, inputs)
    symbols = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    dynamic = {name: (0, None) for name in symbols}
    if compiled:
        result = ingot.compile(model, dynamic=dynamic, cache=False)(*inputs)
        got = result if isinstance(result, tuple) else (result,)
    else:
        got = interpret(import_onnx(model, dynamic=dynamic), inputs)
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


# trees


def grown(trees: int, depth: int, features: int, modes: tuple[str, ...], targets: int, kind: str) -> dict[str, Any]:
    """Random trees, among whose thresholds are infinities and equal ones; each leaf has a weight for some targets."""
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    tracks: list[int] = []
    attributes: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for t in range(trees):
        remaining = 1
        for i in range(2 ** (depth + 1) - 1):
            if i >= remaining:
                break
            leaf = remaining + 2 > 2**depth or RNG.random() < 0.1
            mode = "LEAF" if leaf else str(RNG.choice(modes))
            record = (t, i, int(RNG.integers(features)), float(RNG.choice(EDGES[:-1])), mode, remaining, remaining + 1)
            for name, value in zip(nodes, record, strict=True):
                nodes[name].append(0 if leaf and name.endswith("enodeids") else value)
            tracks.append(int(RNG.integers(2)))
            remaining += 0 if leaf else 2
            for k in range(targets) if leaf else ():
                for name, value in zip(attributes, (t, i, k, float(RNG.standard_normal())), strict=True):
                    attributes[name].append(value)
    attributes_ = {f"nodes_{k}": v for k, v in nodes.items()} | {f"{kind}_{k}": v for k, v in attributes.items()}
    return attributes_ | {"nodes_missing_value_tracks_true": tracks}


def rows(count: int, features: int, dtype: type = np.float32) -> np.ndarray:
    x = np.where(RNG.random((count, features)) < 0.6, RNG.choice(EDGES, (count, features)), RNG.random((count, 1)))
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regression(aggregate: str, dtype: type) -> None:
    for targets in (1, 3):
        trees = grown(5, 5, 4, MODES, targets, "target")
        for count in (0, 1, 40):
            x = rows(count, 4, dtype)
            model = model_of("TreeEnsembleRegressor", [x], 1, n_targets=targets, aggregate_function=aggregate, **trees)
            agree(model, [x])


def test_thresholds_of_doubles() -> None:
    """Values that f32 would round onto their thresholds."""
    trees = grown(3, 4, 2, MODES, 1, "target")
    values = np.asarray(trees.pop("nodes_values")) + 1e-12
    trees["nodes_values_as_tensor"] = numpy_helper.from_array(values)
    trees["target_weights_as_tensor"] = numpy_helper.from_array(np.asarray(trees.pop("target_weights")))
    x = np.concatenate([rows(20, 2, np.float64), rows(20, 2, np.float64) + 1e-12])
    agree(model_of("TreeEnsembleRegressor", [x], 1, n_targets=1, **trees), [x])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_classes(transform: str) -> None:
    x = rows(30, 4)
    three: dict[str, Any] = grown(4, 4, 4, MODES[:2], 3, "class")
    three["post_transform"] = transform
    agree(model_of("TreeEnsembleClassifier", [x], 2, classlabels_int64s=[7, 5, 9], **three), [x])
    with_base: dict[str, Any] = three | {"base_values": [0.5, -0.25, 0.0]}
    agree(model_of("TreeEnsembleClassifier", [x], 2, classlabels_int64s=[7, 5, 9], **with_base), [x])
    two: dict[str, Any] = grown(4, 4, 4, MODES[:1], 1, "class") | {"post_transform": transform}
    for of in (0, 1):
        for positive in (False, True):
            weights = [abs(w) / 8 if positive else w for w in two["class_weights"]]
            one: dict[str, Any] = two | {"class_ids": [of] * len(weights), "class_weights": weights}
            agree(model_of("TreeEnsembleClassifier", [x], 2, classlabels_int64s=[7, 5], **one), [x])


def test_a_class_for_each_tree() -> None:
    """Trees of one class each, unequally many: [rows, classes, trees] summed along the last."""
    trees = grown(8, 3, 4, MODES[:1], 1, "class")
    trees["class_ids"] = [min(t, 6) % 3 for t in trees["class_treeids"]]
    x = rows(30, 4)
    agree(model_of("TreeEnsembleClassifier", [x], 2, classlabels_int64s=[0, 1, 2], **trees), [x])


def test_classes_that_some_leaves_lack() -> None:
    """The greatest of the scores that there are, also where all are negative."""
    trees = grown(2, 3, 4, MODES[:1], 1, "class")
    trees["class_ids"] = RNG.integers(0, 3, len(trees["class_weights"])).tolist()
    trees["class_weights"] = [-abs(w) for w in trees["class_weights"]]
    x = rows(60, 4)
    agree(model_of("TreeEnsembleClassifier", [x], 2, classlabels_int64s=[0, 1, 2], **trees), [x])


def chain(length: int, **other: Any) -> dict[str, Any]:
    """A tree x <= 0 ? leaf : x <= 1 ? leaf : ... of `length` levels."""
    count = 2 * length + 1
    inner = [i % 2 == 0 and i < count - 1 for i in range(count)]
    return {
        "n_targets": 1,
        "nodes_treeids": [0] * count,
        "nodes_nodeids": list(range(count)),
        "nodes_featureids": [0] * count,
        "nodes_values": [i // 2 * 1.0 for i in range(count)],
        "nodes_modes": ["BRANCH_LEQ" if n else "LEAF" for n in inner],
        "nodes_truenodeids": [i + 1 if n else 0 for i, n in enumerate(inner)],
        "nodes_falsenodeids": [i + 2 if n else 0 for i, n in enumerate(inner)],
        "target_treeids": [0] * (length + 1),
        "target_nodeids": [i for i, n in enumerate(inner) if not n],
        "target_ids": [0] * (length + 1),
        "target_weights": [i * 1.0 for i in range(length + 1)],
    } | other


def test_compiled() -> None:
    """All in one kernel, and trees so deep that they are gone down in a loop."""
    x = rows(37, 4)
    agree(model_of("TreeEnsembleRegressor", [x], 1, n_targets=2, **grown(9, 5, 4, MODES, 2, "target")), [x], True)
    x = np.asarray([[-1], [0.5], [7], [99], [99.5], [1e9], [np.nan]], np.float32)
    agree(model_of("TreeEnsembleRegressor", [x], 1, **chain(100)), [x], True)


def test_trees_that_are_refused() -> None:
    x = rows(2, 1)
    bad: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (UnsupportedOpError, "without end", {"nodes_falsenodeids": [0] * 7}),
        (UnsupportedOpError, "features 0 to 3 of 1", {"nodes_featureids": [3] * 7}),
        (UnsupportedOpError, "a split at NaN", {"nodes_values": [np.nan] * 7}),
        (ImportModelError, "a node that its tree does not have", {"nodes_truenodeids": [9] * 7}),
        (ImportModelError, "two nodes of one number", {"nodes_nodeids": [0] * 7}),
        (ImportModelError, "lengths", {"nodes_modes": ["LEAF"]}),
    ]
    for error, text, change in bad:
        with pytest.raises(error, match=text):
            import_onnx(model_of("TreeEnsembleRegressor", [x], 1, **chain(3, **change)))


# the others


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X, WHOLE = np.round(3 * f32(9, 4), 2), RNG.integers(-3, 4, (9, 4))
SUPPORT = {"support_vectors": f32(24).tolist(), "kernel_params": [0.2, 0.5, 3.0]}
CASES: dict[str, tuple[str, list[np.ndarray], int, dict[str, Any]]] = {
    "scaler": ("Scaler", [WHOLE], 1, {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [0.5, 1.0, 2.0, 0.1]}),
    "normalizer_max": ("Normalizer", [X * (X[0] != X)], 1, {"norm": "MAX"}),
    "normalizer_l1": ("Normalizer", [X * (X[0] != X)], 1, {"norm": "L1"}),
    "normalizer_l2": ("Normalizer", [WHOLE], 1, {"norm": "L2"}),
    "binarizer": ("Binarizer", [X], 1, {"threshold": 0.5}),
    "features": ("FeatureVectorizer", [X, X[:, :2]], 1, {"inputdimensions": [4, 2]}),
    "columns": ("ArrayFeatureExtractor", [X, np.asarray([[0, 3, 1]])], 1, {}),
    "columns_of_a_vector": ("ArrayFeatureExtractor", [X[0], np.asarray([3, 1])], 1, {}),
    "one_hot": ("OneHotEncoder", [X], 1, {"cats_int64s": [-1, 0, 1, 2], "zeros": 1}),
    "imputer": (
        "Imputer",
        [np.where(X > 1, np.float32(np.nan), X)],
        1,
        {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")},
    ),
    "linear": ("LinearRegressor", [X], 1, {"coefficients": f32(8).tolist(), "intercepts": [0.1, 0.2], "targets": 2}),
    "linear_classes": (
        "LinearClassifier",
        [X],
        2,
        {
            "coefficients": f32(12).tolist(),
            "intercepts": [0.1, 0.2, 0.3],
            "classlabels_ints": [5, 6, 7],
            "post_transform": "SOFTMAX",
        },
    ),
    "linear_two_classes": (
        "LinearClassifier",
        [WHOLE],
        2,
        {
            "coefficients": f32(4).tolist(),
            "intercepts": [0.1],
            "classlabels_ints": [5, 6],
            "post_transform": "LOGISTIC",
        },
    ),
    **{
        f"support_{kernel.lower()}": (
            "SVMRegressor",
            [X],
            1,
            SUPPORT | {"coefficients": f32(6).tolist(), "n_supports": 6, "rho": [0.3], "kernel_type": kernel},
        )
        for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID")
    },
    **{
        f"support_{classes}_{what}": (
            "SVMClassifier",
            [X],
            2,
            SUPPORT
            | {
                "coefficients": f32(6 * (classes - 1)).tolist(),
                "rho": f32(classes * (classes - 1) // 2).tolist(),
                "vectors_per_class": [6 // classes] * classes,
                "classlabels_ints": [4, 3, 9][:classes],
                "kernel_type": "RBF",
            }
            | {name: values[: classes * (classes - 1) // 2] for name, values in votes.items()},
        )
        for what, votes in {
            "classes": {},
            "probabilities": {"prob_a": [-1.5, -0.7, -1.1], "prob_b": [0.1, -0.2, 0.3]},
        }.items()
        for classes in (2, 3)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str) -> None:
    op, inputs, results, attributes = CASES[name]
    agree(model_of(op, inputs, results, **attributes), inputs)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 100])
def test_label_encoder(count: int) -> None:
    keys = RNG.choice(np.arange(-200, 200), count, replace=False)
    keys_ = np.append(RNG.integers(-220, 220, 17), [*keys[:2], -(2**40)])
    attributes = {"keys_int64s": keys.tolist(), "values_floats": np.arange(count, dtype=float).tolist()}
    agree(model_of("LabelEncoder", [keys_], 1, 2, default_float=-7.0, **attributes), [keys_])
    numbers = np.append(keys_, [np.nan, np.inf, -np.inf])
    tensors = {
        "keys_tensor": numpy_helper.from_array(np.append(keys, np.nan)),
        "values_tensor": numpy_helper.from_array(np.append(keys * 2.0, 5.0)),
        "default_tensor": numpy_helper.from_array(np.asarray([-1.0])),
    }
    agree(model_of("LabelEncoder", [numbers], 1, 4, **tensors), [numbers])


def test_zip_map_is_its_matrix() -> None:
    graph = import_onnx(model_of("ZipMap", [X[:, :3]], 1, classlabels_int64s=[0, 1, 2]))
    np.testing.assert_array_equal(interpret(graph, [X[:, :3]])[0], X[:, :3])


def test_the_tree_of_each_node() -> None:
    def trees(roots: list[int], yes: list[int], no: list[int]) -> list[int] | None:
        leaf = np.array(yes) == np.arange(len(yes))
        zeros = np.zeros(len(yes))
        mode = np.where(leaf, LEAF, LEQ)
        result = Forest(np.array(roots), zeros, zeros, mode, np.array(yes), np.array(no), zeros).trees()
        return None if result is None else result.tolist()

    # 0 -> 1, 2; 3 -> 4, 5; nothing reaches 6
    assert trees([0, 3], [1, 1, 2, 4, 4, 5, 6], [2, 1, 2, 5, 4, 5, 6]) == [0, 0, 0, 1, 1, 1, -1]
    assert trees([0, 3], [1, 1, 2, 2, 4], [2, 1, 2, 4, 4]) is None  # 2 is a leaf of both
    assert trees([0], [0, 1], [0, 1]) == [0, -1]
    assert trees([0], [1, 0], [1, 0]) == [0, 0]  # a way without an end
