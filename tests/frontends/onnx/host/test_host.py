"""Strings, encoded images, sequences and optionals: stages of the host between programs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.driver.open import Request, open_model
from ingot.frontends.onnx import hosted
from ingot.support.errors import InputError, UnsupportedOpError

ort = pytest.importorskip("onnxruntime")
F, I64, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[Any],
    initializers: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    infos = [helper.make_empty_tensor_value_info(o) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(nodes, "g", inputs, infos, initializers or [])
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def text(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, S, shape)


def words(*values: str) -> np.ndarray:
    return np.array(values, object)


def check_run(m: onnx.ModelProto, *inputs: Any) -> Any:
    """The compiled model's answer, which is also ONNX Runtime's."""
    names = [v.name for v in m.graph.input]
    got = ingot.compile(m, cache=False)(*inputs)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, dict(zip(names, inputs, strict=True)))
    for a, b in zip(got if len(want) > 1 else [got], want, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    return got


CLASSIFIER = model(
    [
        helper.make_node("StringNormalizer", ["x"], ["low"], case_change_action="LOWER", stopwords=["the"]),
        helper.make_node(
            "TfIdfVectorizer", ["low"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=1,
            ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3], pool_strings=["cat", "dog", "sat", "cat", "sat"],
        ),
        helper.make_node("MatMul", ["counts", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=0, keepdims=1),
        helper.make_node(
            "LabelEncoder", ["best"], ["label"], domain="ai.onnx.ml", keys_int64s=[0, 1], values_strings=["no", "yes"]
        ),
    ],
    [text("x", "n")],
    ["scores", "label"],
    [onnx.numpy_helper.from_array(np.array([[1, 0], [0, 2], [1, 1], [0, 3]], np.float32), "w")],
)  # fmt: skip


_LINEAR = {"coefficients": [1.0, -2.0, 0.5, 1.0, -1.0, 3.0], "intercepts": [0.1, 0.0, -0.1]}
_STUMP = {
    "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0], "nodes_values": [0.0] * 3,
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
    "class_treeids": [0] * 4, "class_nodeids": [1, 1, 2, 2], "class_ids": [0, 2, 0, 1],
    "class_weights": [0.25, 0.75, 0.5, 0.5],
}  # fmt: skip
_MACHINE = {
    "vectors_per_class": [1, 1, 1], "support_vectors": [1.0, 0.0, 0.0, 1.0, -1.0, -1.0], "kernel_type": "LINEAR",
    "kernel_params": [0.0, 0.0, 0.0], "rho": [0.0, 0.1, 0.0], "coefficients": [1.0, -1.0, 1.0, 1.0, -1.0, -1.0],
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("LinearClassifier", _LINEAR), ("TreeEnsembleClassifier", _STUMP), ("SVMClassifier", _MACHINE)],
)
def test_labels_that_are_strings(op: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    """Of a classifier; its scores alone are one program, which can be saved."""
    names = ["no", "über", "yes"]
    node = helper.make_node(
        op, ["x"], ["label", "scores"], domain="ai.onnx.ml", classlabels_strings=names, **attributes
    )
    zipped = helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_strings=names)
    inputs = [helper.make_tensor_value_info("x", F, ["n", 2])]
    m = model([node], inputs, [text("label", "n"), "scores"])
    x = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
    label, scores = ingot.compile(m, cache=False)(x)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    want, expected = session.run(None, {"x": x})
    assert label.tolist() == want.tolist() and len(set(want)) > 1
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-6)
    onnx.save(model([node, zipped], inputs, [text("label", "n"), "maps"]), tmp_path / "m.onnx")
    one = ingot.compile(tmp_path / "m.onnx", outputs=["maps"], cache=False)
    one.save(tmp_path / "m.ingot")
    np.testing.assert_array_equal(ingot.load(tmp_path / "m.ingot")(x), scores)


def test_words_in_a_label_out() -> None:
    m = ingot.compile(CLASSIFIER, cache=False)
    scores, label = m(words("The", "CAT", "sat"))
    np.testing.assert_array_equal(scores, [2, 4])
    assert label.tolist() == ["yes"]
    assert m.plan().split("\n") == [
        "host: StringNormalizer, TfIdfVectorizer",
        "program: counts -> scores, best, 2 nodes",
        "host: LabelEncoder",
    ]
    with pytest.raises(InputError, match="not a single program"):
        m.save("nowhere.ingot")
    with pytest.raises(InputError, match=r"ingot\.compile"):
        open_model(CLASSIFIER, Request())


@pytest.mark.parametrize(
    ("sensitive", "case", "want"),
    [
        (1, "NONE", ["monday", "Tuesday", "É"]),
        (1, "UPPER", ["MONDAY", "TUESDAY", "É"]),
        (0, "NONE", ["Tuesday"]),
        (0, "LOWER", ["tuesday"]),
    ],
)
def test_normalized(sensitive: int, case: str, want: list[str]) -> None:
    node = helper.make_node(
        "StringNormalizer", ["x"], ["y"],
        case_change_action=case, is_case_sensitive=sensitive, stopwords=["Monday", "é"],
    )  # fmt: skip
    m = ingot.compile(model([node], [text("x", "n")], [text("y", "m")]), cache=False)
    assert m(words("monday", "Tuesday", "É", "Monday")).tolist() == want
    assert m(words("Monday")).tolist() == [""]
    with pytest.raises(InputError, match=r"shape \[C\]"):
        m(words("a", "b").reshape(2, 1))


def test_split_joined_matched_and_compared() -> None:
    nodes = [
        helper.make_node("StringConcat", ["x", "suffix"], ["joined"]),
        helper.make_node("StringSplit", ["joined"], ["parts", "counts"], delimiter=","),
        helper.make_node("RegexFullMatch", ["x"], ["hit"], pattern=r"[a-z]+,?.*"),
        helper.make_node("Equal", ["x", "suffix"], ["equal"]),
    ]
    suffix = helper.make_tensor("suffix", S, [1], np.array([b",b"]))
    outputs = [text("parts", "n", "k"), "counts", "hit", "equal"]
    m = model(nodes, [text("x", "n")], outputs, [suffix])
    parts, counts, hit, equal = ingot.compile(m, cache=False)(words("a,c", "", ",b"))
    assert parts.tolist() == [["a", "c", "b"], ["", "b", ""], ["", "b", "b"]]
    assert counts.tolist() == [3, 2, 3]
    assert hit.tolist() == [True, False, False]
    assert equal.tolist() == [False, False, True]


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(a|a)*b", r"(.)\1", r"a(?=b)", "("])
def test_patterns_that_could_take_forever_are_refused(pattern: str) -> None:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    m = ingot.compile(model([node], [text("x", "n")], ["y"]), cache=False)
    with pytest.raises(InputError, match="pattern"):
        m(words("a" * 64))


def test_numbers_as_strings_and_back() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["shown"], to=S),
        helper.make_node("Cast", ["shown"], ["back"], to=F),
        helper.make_node("Add", ["back", "back"], ["y"]),
    ]
    data = helper.make_tensor_value_info("x", F, ["n"])
    m = ingot.compile(model(nodes, [data], [text("shown", "n"), "y"]), cache=False)
    x = np.array([1.5, -0.25, 3, np.inf, np.nan], np.float32)
    label, y = m(x)
    assert label.tolist() == ["1.5", "-0.25", "3", "INF", "NaN"]
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 2])
def test_counts_of_integers(mode: str, skips: int) -> None:
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode=mode, min_gram_length=1, max_gram_length=2, max_skip_count=skips,
        ngram_counts=[0, 4], ngram_indexes=[0, 1, 2, 3, 4, 5, 6], pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
        weights=[0.5, 1, 2, 3, 4, 5, 6],
    )  # fmt: skip
    m = model([node], [helper.make_tensor_value_info("x", I64, [2, 6])], ["y"])
    check_run(m, np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]]))


def test_an_op_that_takes_no_strings_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"CumSum.*of strings"):
        ingot.compile(model([helper.make_node("CumSum", ["x", "a"], ["y"])], [text("x", "n"), text("a")], ["y"]))


NUMERIC = [
    ("Cast", 1, {"to": F}), ("Concat", 2, {"axis": 0}), ("Constant", 0, {"value_float": 1.0}), ("Equal", 2, {}),
    ("Expand", 2, {}), ("Flatten", 1, {}), ("Gather", 2, {}), ("Identity", 1, {}), ("Reshape", 2, {}), ("Shape", 1, {}),
    ("Size", 1, {}), ("Slice", 3, {}), ("Squeeze", 1, {}), ("Tile", 2, {}), ("Transpose", 1, {}), ("Unsqueeze", 2, {}),
    ("Where", 3, {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "count", "attributes"), NUMERIC, ids=[op for op, _, _ in NUMERIC])
def test_what_holds_no_strings_stays_in_the_program(op: str, count: int, attributes: dict[str, Any]) -> None:
    names = [f"x{i}" for i in range(count)]
    inputs = [helper.make_tensor_value_info(n, F, ["n"]) for n in names]
    assert hosted(model([helper.make_node(op, names, ["y"], **attributes)], inputs, ["y"])) is None


def test_strings_are_chosen() -> None:
    condition = helper.make_tensor_value_info("p", TensorProto.BOOL, ["n"])
    m = model([helper.make_node("Where", ["p", "a", "b"], ["y"])], [condition, text("a", "n"), text("b", "n")], ["y"])
    y = ingot.compile(m, cache=False)(np.array([True, False]), words("a", "b"), words("c", "d"))
    assert y.tolist() == ["a", "d"]


@pytest.mark.parametrize("layout", ["RGB", "BGR", "Grayscale"])
def test_images(layout: str) -> None:
    images = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8)
    stream = io.BytesIO()
    images.fromarray(pixels).save(stream, "PNG")
    nodes = [
        helper.make_node("ImageDecoder", ["x"], ["image"], pixel_format=layout),
        helper.make_node("Cast", ["image"], ["y"], to=F),
    ]
    m = ingot.compile(model(nodes, [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n"])], ["y"]), cache=False)
    encoded = np.frombuffer(stream.getvalue(), np.uint8)
    gray = np.asarray(images.fromarray(pixels).convert("L"))[..., None]
    np.testing.assert_array_equal(m(encoded), {"RGB": pixels, "BGR": pixels[..., ::-1]}.get(layout, gray))
    assert m(encoded[:20]).size == 0


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, F, None)


def test_sequences_of_any_length() -> None:
    nodes = [
        helper.make_node("SequenceInsert", ["s", "x"], ["longer"]),
        helper.make_node("ConcatFromSequence", ["longer"], ["joined"], axis=0),
        helper.make_node("SequenceLength", ["s"], ["n"]),
    ]
    x = helper.make_tensor_value_info("x", F, ["k"])
    m = ingot.compile(model(nodes, [sequence("s"), x], [sequence("longer"), "joined", "n"]), cache=False)
    last = np.ones(2, np.float32)
    for parts in ([], [np.zeros(3, np.float32)], [np.zeros(3, np.float32), np.full(1, 5, np.float32)]):
        longer, concatenated, n = m(parts, last)
        assert len(longer) == len(parts) + 1
        assert n == len(parts)
        np.testing.assert_array_equal(concatenated, np.concatenate([*parts, last]))


def test_sequences_joined_in_pairs() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "body",
        [helper.make_tensor_value_info(n, F, None) for n in "ab"],
        [helper.make_tensor_value_info("c", F, None)],
    )
    node = helper.make_node("SequenceMap", ["s", "t"], ["u"], body=body)
    m = ingot.compile(model([node], [sequence("s"), sequence("t")], [sequence("u")]), cache=False)
    for sizes in ((3, 1), (2, 4)):
        s = [np.full(k, k, np.float32) for k in sizes]
        for got, want in zip(m(s, s), s, strict=True):
            np.testing.assert_array_equal(got, 2 * want)


def test_optionals() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, ["n"]))
    data, same_info = helper.make_value_info("x", kind), helper.make_value_info("same", kind)
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["there"]), helper.make_node("Identity", ["x"], ["same"])]
    m = ingot.compile(model(nodes, [data], ["there", same_info]), cache=False)
    is_present, value = m(None)
    assert not is_present
    assert value is None
    is_present, value = m(np.ones(3, np.float32))
    assert is_present
    np.testing.assert_array_equal(value, np.ones(3))
    with pytest.raises(InputError, match="none for x"):
        m()
