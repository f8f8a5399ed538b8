"""SavedModels as graphs, in the interpreter and compiled, beside TensorFlow's results."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.autodiff import value_and_gradients
from ingot.frontends.tensorflow import ImportedModel, import_tensorflow
from ingot.ir.interp import interpret
from ingot.ir.node import Input
from ingot.support.errors import InputError, UnsupportedOpError
from tests.frontends.tensorflow.fixtures import Arrays, Fixture, field, fixture, node

NETS = ("cnn", "rnn", "transformer")
# variables and control flow as TensorFlow 1 writes them
OLD = ("references", "resources", "old_recurrent", "old_branches", "old_loops")
SIGNATURES = ("loop", "branch", "step", "growing", "until", "parts", "train", "sizes", "bags", "rows", "levels")


def _graph_inputs(imported: ImportedModel, inputs: Arrays) -> list[np.ndarray]:
    labels = [n.op.label for n in imported.graph.inputs if isinstance(n.op, Input)]
    return [inputs[label] for label in labels if label not in imported.state]


def _check(imported: ImportedModel, read: Fixture) -> None:
    """All calls, one after another: state goes from one to the next."""
    state = list(imported.state.values())
    names = imported.graph.output_names[len(state) :]
    for inputs, expected in read.calls:
        results = interpret(imported.graph, [*_graph_inputs(imported, inputs), *state])
        state, outputs = list(results[: len(state)]), results[len(state) :]
        for name, got in zip(names, outputs, strict=True):
            assert got.dtype == expected[name].dtype
            np.testing.assert_allclose(got, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", (*NETS, *OLD))
def test_nets(name: str, tmp_path: Path):
    read = fixture(name, tmp_path)
    _check(import_tensorflow(read.path), read)
    assert "tensorflow" not in sys.modules


def test_a_program_of_jax(tmp_path: Path):
    pytest.importorskip("jaxlib")
    read = fixture("program", tmp_path)
    _check(import_tensorflow(read.path), read)


def test_a_size_that_the_run_finds_is_compared(tmp_path: Path):
    """With the number of values, where rows say how many there are."""
    read = fixture("rows", tmp_path)
    ((inputs, expected), *_) = read.calls
    model = ingot.compile(read.path, signature="rows", outputs=["sum"])
    np.testing.assert_allclose(model(**inputs), expected["sum"], rtol=1e-6)
    for last in (5, 7):
        with pytest.raises(InputError, match="sizes that the data determines"):
            model(**inputs | {"splits": np.array([0, 2, 2, last])})


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str, tmp_path: Path):
    read = fixture(name, tmp_path)
    _check(import_tensorflow(read.path, signature=name), read)


@pytest.mark.parametrize("name", NETS)
def test_compiled_nets(name: str, tmp_path: Path):
    read = fixture(name, tmp_path)
    compiled = ingot.compile(read.path)
    names = [spec.name for spec in compiled.outputs]
    for inputs, expected in read.calls:
        results = compiled(**inputs)
        for got, key in zip(results if isinstance(results, tuple) else (results,), names, strict=True):
            np.testing.assert_allclose(got, expected[key], rtol=1e-5, atol=1e-5)


def test_state_goes_from_call_to_call(tmp_path: Path):
    read = fixture("step", tmp_path)
    compiled = ingot.compile(read.path, signature="step")
    for inputs, expected in read.calls:
        np.testing.assert_allclose(compiled(inputs["x"]), expected["mean"], rtol=1e-6)
    assert compiled.state()["count"] == 4


def test_loops_and_branches_are_ops(tmp_path: Path):
    kinds = {}
    for name in ("loop", "branch"):
        graph = import_tensorflow(fixture(name, tmp_path / name).path, signature=name).graph
        kinds[name] = {type(n.op) for n in graph.nodes()}
    for name in ("old_branches", "old_loops"):
        graph = import_tensorflow(fixture(name, tmp_path / name).path).graph
        kinds[name] = {type(n.op) for n in graph.nodes()}
    assert ops.While in kinds["loop"] and ops.Case in kinds["branch"]
    assert ops.While in kinds["old_loops"] and ops.Case in kinds["old_branches"]


def test_sizes_are_named_fixed_and_bounded(tmp_path: Path):
    path = fixture("transformer", tmp_path).path
    # the two inputs meet: their sizes are one
    assert [str(n.type) for n in import_tensorflow(path).graph.inputs] == ["i32[ids_0,ids_1]", "bool[ids_0,ids_1]"]
    named = import_tensorflow(path, dynamic={"ids": {0: "batch", 1: (1, 64)}}).graph
    assert str(named.outputs[0].type) == "f32[batch,ids_1,8]"
    assert named.bounds == (("ids_1", 1, 64),)
    fixed = import_tensorflow(path, dynamic={"ids": {0: 2, 1: 6}}).graph
    assert str(fixed.outputs[0].type) == "f32[2,6,8]"
    with pytest.raises(InputError, match="dynamic dimensions"):
        import_tensorflow(path, dynamic=False)
    with pytest.raises(InputError, match="names no symbol"):
        import_tensorflow(path, dynamic={"length": 3})


def test_strings_are_refused_with_the_cut_that_leaves_them_out(tmp_path: Path):
    read = fixture("words", tmp_path)
    with pytest.raises(UnsupportedOpError) as refused:
        import_tensorflow(read.path)
    assert {op.name for op in refused.value.ops} == {"HashTableV2", "StringLower", "LookupTableFindV2"}
    lookup = next(op.where for op in refused.value.ops if op.name == "LookupTableFindV2") + ":0"
    assert lookup in str(refused.value) and "outputs=['twice']" in str(refused.value)
    ((inputs, expected),) = read.calls
    inner = import_tensorflow(read.path, inputs={"x": None, lookup: ("i64", [None, 2])})
    results = interpret(inner.graph, [inputs["x"], inputs["text"]])
    for name, got in zip(inner.graph.output_names, results, strict=True):
        np.testing.assert_allclose(got, expected[name], rtol=1e-6)
    twice = ingot.compile(read.path, inputs=["x"], outputs=["twice"])
    np.testing.assert_array_equal(twice(inputs["x"]), expected["twice"])


def test_complex_inputs_and_results_are_refused_by_name(tmp_path: Path):
    kind, part, text = field(6, 8), field(6, 1), field(6, 7)
    shape = field(7, field(2, field(1, 3)))
    nodes = [
        node("z", "Placeholder", (), {"dtype": kind, "shape": shape}),
        node("x", "Placeholder", (), {"dtype": part, "shape": shape}),
        node("word", "Placeholder", (), {"dtype": text, "shape": shape}),
        node("size", "ComplexAbs", ("z",), {"T": kind, "Tout": part}),
        node("pair", "Complex", ("x", "x"), {"T": part, "Tout": kind}),
        node("twice", "AddV2", ("x", "x"), {"T": part}),
        node("same", "Identity", ("word",), {"T": text}),
    ]
    path = tmp_path / "graph.pb"
    path.write_bytes(b"".join(nodes))
    with pytest.raises(UnsupportedOpError, match=r"an input of complex numbers at z \(take tf.math.real") as refused:
        import_tensorflow(path, outputs=["size", "twice"])
    assert str(refused.value).endswith("outputs=['twice']")
    with pytest.raises(UnsupportedOpError, match=r"an output of complex numbers at pair \(return tf.math.real"):
        import_tensorflow(path, outputs=["pair"])
    with pytest.raises(UnsupportedOpError, match="an input that is no tensor of numbers at word"):
        import_tensorflow(path, inputs=["word"], outputs=["same"])
    import_tensorflow(path, outputs=["twice"])


def test_signatures_are_named_in_errors(tmp_path: Path):
    path = fixture("loop", tmp_path).path
    with pytest.raises(InputError, match=r"signature: expected one of \['branch', 'loop', 'step'\]"):
        import_tensorflow(path)
    with pytest.raises(InputError, match="a frozen graph has no signatures"):
        import_tensorflow(fixture("ops", tmp_path / "ops").path, signature="serve")


def test_loops_of_no_turns(tmp_path: Path):
    path = fixture("growing", tmp_path).path
    imported = import_tensorflow(path, signature="growing", dynamic={"x_0": 0})
    (sums,) = interpret(imported.graph, [np.zeros((0, 3), np.float32)])
    assert sums.shape == (0, 3)


def test_draws_without_a_seed(tmp_path: Path):
    model = ingot.compile(fixture("draws", tmp_path).path, signature="draws")
    x = np.arange(100, dtype=np.float32)
    drawn = dict(zip((o.name for o in model.outputs), model(x), strict=True))
    np.testing.assert_allclose(drawn["gamma"].mean(0), [2.0, 0.5], rtol=0.1)
    np.testing.assert_allclose(drawn["poisson"].mean(0), [3.0, 40.0], rtol=0.05)
    np.testing.assert_allclose(drawn["truncated"].std(), 0.8796, rtol=0.05)  # of a normal cut at 2
    assert np.abs(drawn["truncated"]).max() < 2.0
    assert (drawn["shuffled"] != x).any()
    np.testing.assert_array_equal(np.sort(drawn["shuffled"]), x)


def test_gradients_through_recurrent_layers(tmp_path: Path):
    """Keras's loops ask for two counters; their bound is an element of the input's shape."""
    imported = import_tensorflow(fixture("rnn", tmp_path).path)
    graph = value_and_gradients(imported.graph, lambda results: ops.reduce_sum(ops.mul(results[0], results[0])), [0])
    rng = np.random.default_rng(0)
    x, direction = (rng.standard_normal((2, 5, 4)).astype(np.float32) for _ in range(2))
    _, slope = interpret(graph, [x])
    upper_loss, lower_loss = (
        float(interpret(graph, [x + step * direction])[0]) for step in (np.float32(0.01), np.float32(-0.01))
    )
    assert float((slope * direction).sum()) == pytest.approx((upper_loss - lower_loss) / 0.02, rel=1e-2)
