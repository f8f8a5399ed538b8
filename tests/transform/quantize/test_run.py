"""The whole, on small models: what comes back, what it tells, and what is refused. Times are made up."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import ingot
from ingot.cli import app
from ingot.runtime import device
from ingot.support.energy.counters import Counter, EnergyCounters
from ingot.support.errors import ArtifactError, ConstraintError, InputError
from ingot.transform.quantize.bench import Bench, BuiltModel
from ingot.transform.quantize.report import Report
from tests.transform.quantize import nets


@pytest.fixture(autouse=True)
def made_up_times(monkeypatch: pytest.MonkeyPatch):
    """Models are faster the more levels they have."""

    def kinds(built: BuiltModel) -> int:
        return built.program.stages["model"].count("dequantize")

    monkeypatch.setattr(
        Bench, "group_seconds", lambda self, built: {g.name: 4e-3 - 1.5e-3 * (kinds(built) > 0) for g in self.groups}
    )
    monkeypatch.setattr(Bench, "latency", lambda self, built: 9e-3 - 1e-3 * kinds(built))


def model(width: int = 12) -> onnx.ModelProto:
    """relu(x A) B, with weights that are learned to nothing."""
    weights = {"A": nets.normal(1, width, 16), "B": nets.normal(2, 16, 3)}
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("MatMul", ["h", "B"], ["y"], "second"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(w, k) for k, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


X = nets.normal(5, 40, 12)
OPTIONS: dict[str, Any] = {"threads": 1, "batch": 4, "seconds": 100}


def test_a_model_comes_back_with_what_was_promised(tmp_path: Path):
    quantized = ingot.quantize(model(), {"x": X}, at_least=0.998, formats=["int8"], **OPTIONS)
    exact = ingot.compile(model(), threads=1)
    want, got = exact(X), quantized(X)
    cosines = (want * got).sum(1) / np.linalg.norm(want, axis=1) / np.linalg.norm(got, axis=1)
    assert cosines.mean() > 0.997
    report = quantized.report
    assert {r.format for r in report.rows} == {"int8"}
    assert min(report.scores) >= 0.9984  # a fifth of the loss is kept in reserve
    assert report.samples == (28, 12)
    for text in (report.text(), report.to_html(), report.to_json()):
        assert "first" in text
        assert "int8" in text
    quantized.save(tmp_path / "q.ingot")
    loaded = ingot.load(tmp_path / "q.ingot")
    np.testing.assert_array_equal(loaded(X), got)
    receipt = json.loads(loaded.program.meta["quantization"])
    assert [r["format"] for r in receipt["rows"]] == ["int8", "int8"]
    assert receipt["seed"] == 0
    restored = Report.of_receipt(loaded.program.meta["quantization"])
    assert restored.text() == report.text()
    with pytest.raises(ArtifactError, match="receipt of a quantized model"):
        Report.of_receipt('{"rows": [3]}')
    quantized.save_onnx(tmp_path / "q.onnx")
    reloaded = ingot.compile(tmp_path / "q.onnx", threads=1)(X)
    assert np.abs(reloaded - got).mean() < 5e-3 * np.abs(got).max()


def test_the_command_line(tmp_path: Path):
    onnx.save(model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=X)
    arguments = ["--samples", "data.npz", "--batch", "4", "--threads", "1", "--formats", "int8", "--html", "r.html"]
    arguments = [str(tmp_path / a) if a.endswith((".npz", ".html")) else a for a in arguments]
    runner = CliRunner()
    invocation = runner.invoke(
        app, ["quantize", str(tmp_path / "net.onnx"), "--onnx", str(tmp_path / "q.onnx"), *arguments]
    )
    assert invocation.exit_code == 0, invocation.output
    assert (tmp_path / "q.onnx").exists()
    assert "<svg" in (tmp_path / "r.html").read_text()
    result = runner.invoke(app, ["explain", str(tmp_path / "net.ingot")])
    assert re.search(r"cosine [\d.]+ on 28 samples, [\d.]+ on 12 held out", result.output)
    refused = runner.invoke(app, ["quantize", str(tmp_path / "net.onnx"), "--latency-ms", "0.001", *arguments])
    assert refused.exit_code == 2


def test_a_metric_and_labels():
    labels = np.argmax(ingot.compile(model(), threads=1)(X), axis=1)

    def accuracy(outputs: list[np.ndarray], labels: list[np.ndarray]) -> float:
        return float(np.mean([(np.argmax(o, 1) == t).mean() for o, t in zip(outputs, labels, strict=True)]))

    quantized = ingot.quantize(model(), {"x": X}, labels, metric=accuracy, at_least=0.9, formats=["int8"], **OPTIONS)
    assert quantized.report.metric == "accuracy"
    assert quantized.report.float_scores == (1.0, 1.0)


def test_what_cannot_be_kept_is_an_error():
    with pytest.raises(ConstraintError, match=r"1 ms\nthe nearest") as caught:
        ingot.quantize(model(), {"x": X}, at_least=0.99, latency_ms=1, formats=["int8"], **OPTIONS)
    assert caught.value.points


class Still(Counter):
    name = "package-0"

    def joules(self) -> float:
        return 0.0


def test_energy_is_kept_where_there_is_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A call takes 20 mJ in floats, 12 with levels in one product, 4 in both."""
    quantized_counts: list[int] = []

    def joules(self: Bench, built: BuiltModel, counters: EnergyCounters) -> float:
        quantized_counts.append(built.program.stages["model"].count("dequantize"))
        return max(4e-3, 20e-3 - 8e-3 * quantized_counts[-1])

    monkeypatch.setattr(Bench, "joules", joules)
    monkeypatch.setattr(device, "energy_counters", lambda devices: EnergyCounters((Still(),), ()))
    inputs: dict[str, Any] = {"formats": ["int8"], **OPTIONS}
    quantized = ingot.quantize(model(), {"x": X}, at_least=0.9, energy_millijoules=5, **inputs)
    assert quantized.report.joules == pytest.approx(4e-3) and quantized.report.float_joules == pytest.approx(20e-3)
    assert "energy of a call: 4 mJ for 20 mJ" in quantized.report.text()
    assert Report.of_receipt(quantized.report.receipt()).joules == quantized.report.joules
    with pytest.raises(ConstraintError, match=r"1 mJ\nthe nearest"):
        ingot.quantize(model(), {"x": X}, at_least=0.9, energy_millijoules=1, **inputs)
    quantized_counts.clear()
    with pytest.raises(ConstraintError, match=r"0\.001 ms and 5 mJ"):
        ingot.quantize(model(), {"x": X}, latency_ms=1e-3, energy_millijoules=5, **inputs)
    assert not quantized_counts  # what misses another constraint is not measured
    monkeypatch.setattr(
        device, "energy_counters", lambda devices: EnergyCounters((), ("energy_uj is readable by root alone",))
    )
    with pytest.raises(InputError, match=r"a machine with an energy counter, got none \(energy_uj is readable by root"):
        ingot.quantize(model(), {"x": X}, energy_millijoules=5, **inputs)


def test_a_table_repeats_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tmp_path / "measured.json"
    first = ingot.quantize(model(), {"x": X}, formats=["int8"], table=table, **OPTIONS)

    def never(self: Bench, built: BuiltModel) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(Bench, "group_seconds", never)
    monkeypatch.setattr(Bench, "latency", never)
    repeated = ingot.quantize(model(), {"x": X}, formats=["int8"], table=table, **OPTIONS)
    assert repeated.report.rows == first.report.rows
    table.write_text("[1]")
    with pytest.raises(InputError, match="a table of measured times"):
        ingot.quantize(model(), {"x": X}, table=table, **OPTIONS)


def test_a_module_keeps_its_way_of_being_called():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    calls = [(torch.from_numpy(X[i : i + 2]),) for i in range(0, 8, 2)]
    quantized = ingot.quantize(net, calls, formats=["int8"], threads=1)  # read by the first of them
    got = quantized(calls[0][0])
    assert isinstance(got, torch.Tensor)
    assert torch.nn.functional.cosine_similarity(got, net(calls[0][0])).min() > 0.99


def raising(outputs: list[np.ndarray]) -> float:
    raise KeyError("oops")


counter = itertools.count()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metric": raising}, "metric: expected a number, got KeyError: 'oops'"),
        ({"metric": lambda outputs: "good"}, "metric: expected a number, got str"),
        ({"metric": lambda outputs: float("nan")}, "metric: expected a finite number, got nan"),
        ({"metric": lambda outputs: next(counter)}, "expected the same number for the same outputs"),
        ({"metric": lambda outputs: 0}, "metric: expected a number other than 0 for the float model"),
        ({"metric": 3}, "a function of a list of outputs"),
        ({"at_least": "most"}, "at_least: expected a positive number, got most"),
        ({"at_least": 1.5}, "at_least: expected a fraction of the float model's score"),
        ({"energy_millijoules": float("nan")}, "energy_millijoules: expected a positive number"),
        ({"latency_ms": 0}, "latency_ms: expected a positive number"),
        ({"formats": ["int3"]}, r"formats: expected a sequence of some of .* got \['int3'\]"),
        ({"formats": "int8"}, "formats: expected a sequence of some of .* got int8"),
    ],
)
def test_what_is_asked_must_make_sense(options: dict[str, Any], text: str):
    with pytest.raises(InputError, match=text):
        ingot.quantize(model(), {"x": X}, **{"formats": ["int8"], **OPTIONS, **options})


@pytest.mark.parametrize(("kind", "message"), [(TensorProto.FLOAT16, "f16"), (TensorProto.DOUBLE, "f64")])
def test_a_model_of_another_float_type_is_refused(kind: int, message: str):
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    w = numpy_helper.from_array(np.ones((3, 4), dtype), "w")
    x, y = (helper.make_tensor_value_info(name, kind, ["n", size]) for name, size in (("x", 3), ("y", 4)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [x], [y], [w])
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(InputError, match=f"convert it to float32 first: its products are of {message}"):
        ingot.quantize(net, {"x": X[:, :3].astype(dtype)})


def test_a_model_without_products_is_refused():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    relu = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(InputError, match="no product to quantize"):
        ingot.quantize(relu, {"x": X[:, :3]})
