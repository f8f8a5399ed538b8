"""Properties proved, refuted by a counterexample that is run, or left open; attacks; the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import ingot
from ingot.transform.bounds.vnnlib import parse_property
from tests.transform.bounds.test_bounds import net_of


def _model(tmp_path: Path, seed: int = 0) -> Path:
    """[batch, 3] -> relu -> relu -> [batch, 2], with an open batch."""
    rng = np.random.default_rng(seed)
    weights = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in (("w1", (3, 12)), ("b1", (12,)), ("w2", (12, 12)), ("w3", (12, 2)))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"]), helper.make_node("Add", ["m1", "b1"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["r1"]), helper.make_node("MatMul", ["r1", "w2"], ["m2"]),
        helper.make_node("Relu", ["m2"], ["r2"]), helper.make_node("MatMul", ["r2", "w3"], ["y"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x", 1, ["batch", 3])], [value("y", 1, ["batch", 2])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def _property(condition: str, low: float = -1, high: float = 1) -> str:
    names = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "X_2", "Y_0", "Y_1"))
    box = "".join(f"(assert (<= X_{i} {high}))(assert (>= X_{i} {low}))" for i in range(3))
    return f"{names}{box}(assert {condition})"


def _results(path: Path, low: float = -1, high: float = 1) -> np.ndarray:
    """Of random points and of the corners."""
    x = np.random.default_rng(1).uniform(low, high, (4096, 3))
    corners = np.stack(np.meshgrid(*[[low, high]] * 3), -1).reshape(-1, 3)
    return ingot.compile(path)(np.concatenate([x, corners]).astype(np.float32))


@pytest.mark.parametrize("numerics", [False, True])
def test_a_margin_is_proved_and_one_too_many_refuted(tmp_path: Path, numerics: bool) -> None:
    """Above the largest result that is seen the property holds, after splits; below, an input has it."""
    path = _model(tmp_path)
    y = _results(path)[:, 0]
    largest, spread = float(y.max()), float(np.ptp(y))
    proved = ingot.certify(path, parse_property(_property(f"(>= Y_0 {largest + 0.05 * spread})")), numerics=numerics)
    assert proved.answer == "proved" and proved.boxes > 1
    assert ("certified" in str(proved)) == numerics
    refuted = ingot.certify(path, parse_property(_property(f"(>= Y_0 {largest - 1e-3 * spread})")), numerics=numerics)
    assert refuted.answer == "refuted" and refuted.counterexample is not None
    x, y = refuted.counterexample
    assert (np.abs(x) <= 1).all() and y[0, 0] >= largest - 1e-3 * spread
    np.testing.assert_array_equal(ingot.compile(path)(x), y)


@pytest.mark.parametrize("method", ["crown", "crown-ibp", "ibp"])
def test_alternatives_boxes_and_mixed_conditions(tmp_path: Path, method: str) -> None:
    path = _model(tmp_path)
    y = _results(path, 0, 0.25)
    low, high = float(y.min()) - 0.5, float(y.max()) + 0.5
    condition = f"(or (>= Y_0 {high}) (and (<= Y_1 {low}) (<= Y_0 Y_1)) (<= (+ Y_1 X_0) {low - 0.3}))"
    verdict = ingot.certify(path, parse_property(_property(condition, 0, 0.25)), method=method)
    assert verdict.answer == "proved"
    # a point of the second box has it
    x = np.full((1, 3), 0.9, np.float32)
    target = float(ingot.compile(path)(x)[0, 0])
    boxes = " ".join(
        "(and " + " ".join(f"(<= X_{i} {b}) (>= X_{i} {a})" for i in range(3)) + ")"
        for a, b in ((0, 0.1), (0.89, 0.91))
    )
    names = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "X_2", "Y_0", "Y_1"))
    text = f"{names}(assert (or {boxes}))(assert (and (<= Y_0 {target + 0.01}) (>= Y_0 {target - 0.01})))"
    verdict = ingot.certify(path, parse_property(text), method=method)
    assert verdict.answer == "refuted" and verdict.counterexample is not None
    assert (verdict.counterexample[0] >= 0.89 - 1e-6).all()


def test_what_is_not_decided_is_unknown(tmp_path: Path) -> None:
    """Strict equality at a point: bounds on both sides of it, however small the boxes."""
    path = _model(tmp_path)
    x = np.full((1, 3), 0.25, np.float32)
    value = float(ingot.compile(path)(x)[0, 0])
    text = _property(f"(>= Y_0 {value + abs(value) * 2e-7})", 0.25, 0.25)
    verdict = ingot.certify(path, parse_property(text), numerics=True)
    assert verdict.answer == "unknown" and "single point" in verdict.reason
    y = _results(path)[:, 0]
    above = float(y.max() + 0.05 * np.ptp(y))
    late = ingot.certify(path, parse_property(_property(f"(>= Y_0 {above})")), seconds=0.01, method="ibp")
    assert late.answer == "unknown" and "boxes are left" in late.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("X_2", "X_1"), "the property's input: expected 3 elements.*got 2"),
        (lambda text: text + "(declare-const Y_2 Real)", "the property's result: expected 2 elements.*got 3"),
    ],
)
def test_a_property_of_another_model(tmp_path: Path, change, message: str) -> None:
    with pytest.raises(ingot.InputError, match=message):
        ingot.certify(_model(tmp_path), parse_property(change(_property("(>= Y_0 1)"))))


def test_the_command(tmp_path: Path) -> None:
    path, prop = _model(tmp_path), tmp_path / "property.vnnlib"
    prop.write_text(_property("(>= Y_0 1000)"))

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ingot", "certify", str(path), "--vnnlib", str(prop), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    done = run("--numerics")
    assert done.returncode == 0 and done.stdout.startswith("certified"), done.stderr
    prop.write_text(_property("(>= Y_0 -1000)"))
    done = run("--json", "--counterexample", str(tmp_path / "x.npy"))
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["answer"] == "refuted" and not found["certified"]
    np.testing.assert_allclose(np.load(tmp_path / "x.npy").reshape(-1), found["counterexample"]["x"])
    prop.write_text("(assert")
    done = run()
    assert done.returncode == 2 and "balanced parentheses" in done.stderr


@pytest.mark.parametrize("name", ["relu", "images", "attention", "pools"])
def test_an_attack_finds_what_samples_do(name: str) -> None:
    """A box in which random points change the class: the attack does too, and its point is in the box."""
    net, x = net_of(name)
    label = int(net(x).argmax())
    eps = 2.0
    found = ingot.attack(net, x, label=label, eps=eps, seed=1)
    noise = torch.rand((500, *x.shape[1:]), generator=torch.Generator().manual_seed(0)) * 2 - 1
    margins = net(x + noise * eps).detach().double()
    values = margins.numpy()
    least = float((values[:, [label]] - np.delete(values, label, 1)).min())
    assert found.margin <= max(least, 0.0)
    assert (np.abs(found.x - x.numpy()) <= eps * (1 + 1e-6)).all()
    np.testing.assert_allclose(net(torch.from_numpy(found.x)).detach().numpy(), found.y, rtol=1e-4, atol=1e-5)
    assert found.success == (found.margin <= 0)
    lower, _ = ingot.bounds(net, x, eps=eps, method="ibp")
    assert (lower <= found.y + 1e-5).all()
    harmless = ingot.attack(net, x, label=label, eps=0.0, steps=2)
    assert not harmless.success and harmless.margin > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.1}, "either a label or a spec"),
        ({"eps": 0.1, "label": 3}, "label: expected a class from 0 to 2"),
        ({"eps": 0.1, "label": 0, "steps": 0}, "steps: expected a number of at least 1"),
        ({"eps": -0.1, "label": 0}, "eps: expected numbers of at least 0"),
        ({"eps": 0.1, "spec": [[1, 2]]}, "spec: expected rows of 3 factors"),
    ],
)
def test_bad_attacks(options: dict[str, object], message: str) -> None:
    net, x = net_of("relu")
    with pytest.raises(ingot.InputError, match=message):
        ingot.attack(net, x, **options)  # type: ignore[arg-type]
