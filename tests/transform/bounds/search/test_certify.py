"""Properties proved, refuted by a counterexample that is run, or left open; attacks; the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn
from typer.testing import CliRunner, Result

import ingot
from ingot.cli import app
from ingot.driver.compile import Options
from ingot.driver.open import Request, open_model
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.transform.bounds.graph import Question
from ingot.transform.bounds.rounding import Rounding
from ingot.transform.bounds.search import attack as attacks
from ingot.transform.bounds.search import certify
from ingot.transform.bounds.search.attack import Attack, Goal, attack_program
from ingot.transform.bounds.search.neurons import Cases, neurons_of
from ingot.transform.bounds.search.vnnlib import parse_property
from ingot.transform.bounds.slopes import slopes_of
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


def test_many_boxes_share_their_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each set of rows is compiled once, whatever the number of boxes; and none once the time is over."""
    made: list[str] = []
    for name in ("attack_program", "batched"):
        real = getattr(certify, name)
        monkeypatch.setattr(certify, name, lambda *a, real=real, name=name: made.append(name) or real(*a))
    x = "".join(f"(>= X_{i} 0)(<= X_{i} 1)" for i in range(1, 5))
    rows = [f"(and (>= X_0 {i / 300}) (<= X_0 {(i + 1) / 300}) {x} (<= Y_0 -1e6))" for i in range(300)]
    path = tmp_path / "net.onnx"
    net, point = net_of("relu")
    torch.onnx.export(net, (point,), path, dynamo=False)
    names = "".join(f"(declare-const {v} Real)" for v in (*(f"X_{i}" for i in range(5)), "Y_0", "Y_1", "Y_2"))
    found = parse_property(f"{names}(assert (or {''.join(rows)}))")
    verdict = ingot.certify(path, found)
    assert verdict.answer == "proved" and verdict.boxes == 300 and made == ["attack_program", "batched"]
    verdict = ingot.certify(path, found, seconds=1e-6)
    assert verdict.answer == "unknown" and "boxes are left" in verdict.reason and made.count("batched") == 1


def test_what_is_decided_at_once_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attacks, certify):
        monkeypatch.setattr(module, "compiled_program", None)
    verdict = ingot.certify(_model(tmp_path), parse_property(_property("(>= Y_0 1000)")))
    assert verdict.answer == "proved" and verdict.boxes == 1


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_recurrent_networks_are_attacked(kind: str) -> None:
    """Their loops are unrolled, as those of bounds are."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = getattr(nn, kind)(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(x)[0][:, -1])

    torch.manual_seed(0)
    net, x = Net().eval(), torch.rand(1, 5, 4)
    label = int(net(x).argmax())
    assert not ingot.attack(net, x, label=label, eps=1e-4).success
    found = ingot.attack(net, x, label=label, eps=3.0)
    y = net(torch.from_numpy(found.x)).detach().numpy()
    assert found.success and y.argmax() != label and np.abs(found.x - x.numpy()).max() <= 3 + 1e-6
    np.testing.assert_allclose(found.y, y, rtol=1e-4, atol=1e-5)


def test_attacks_try_all_alternatives() -> None:
    """Of more alternatives than points, those of later runs differ; the one that can be reached is found."""
    x = Input("x", TensorType(f32, (2,)))()
    rows = np.stack([np.ones(2) * (1 if i == 9 else 0) for i in range(12)])
    goal = Goal(rows, np.asarray([-1.9 if i == 9 else -1.0 for i in range(12)]), tuple((i,) for i in range(12)))
    attack = Attack(attack_program(Graph((x,), (x,)), rows, 4, Options(threads=1)), goal, 4)
    low, high = -np.ones(2, np.float32), np.ones(2, np.float32)
    violations = [attack.run(low, high, steps=20, seed=2)[1] for _ in range(3)]
    assert violations[0] > 0 and violations[2] <= 0


def test_what_is_not_decided_is_unknown(tmp_path: Path) -> None:
    """Strict equality at a point: bounds on both sides of it, however small the boxes."""
    path = _model(tmp_path)
    x = np.full((1, 3), 0.25, np.float32)
    value = float(ingot.compile(path)(x)[0, 0])
    text = _property(f"(>= Y_0 {value + abs(value) * 2e-7})", 0.25, 0.25)
    verdict = ingot.certify(path, parse_property(text), numerics=True)
    assert verdict.answer == "unknown" and "single point" in verdict.reason
    y = _results(path)[:, 0]
    bound = float(y.max() + 0.05 * np.ptp(y))
    timed_out = ingot.certify(path, parse_property(_property(f"(>= Y_0 {bound})")), seconds=0.01, method="ibp")
    assert timed_out.answer == "unknown" and "boxes are left" in timed_out.reason


def test_boxes_as_wide_as_their_type(tmp_path: Path) -> None:
    """Widths that overflow in f32 are searched; ends that do are named."""
    net = nn.Linear(3, 2)
    torch.onnx.export(net.eval(), (torch.zeros(1, 3),), tmp_path / "net.onnx", dynamo=False)
    found = ingot.certify(tmp_path / "net.onnx", parse_property(_property("(>= Y_0 1e35)", -3e38, 3e38)))
    assert found.answer == "refuted"
    assert ingot.attack(net, torch.zeros(1, 3), lower=-3e38, upper=3e38, spec=[[1.0, 0.0]]).margin < -1e35
    beyond = ingot.certify(tmp_path / "net.onnx", parse_property(_property("(>= Y_0 1e300)", -1e39, 1)))
    assert beyond.answer == "unknown" and beyond.reason == "a box reaches beyond the range of f32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("(declare-const X_2 Real)", "").replace("X_2", "X_1"),
            "the property's input: expected 3 elements.*got 2",
        ),
        (lambda text: text + "(declare-const Y_2 Real)", "the property's result: expected 2 elements.*got 3"),
    ],
)
def test_a_property_of_another_model(tmp_path: Path, change, message: str) -> None:
    with pytest.raises(ingot.InputError, match=message):
        ingot.certify(_model(tmp_path), parse_property(change(_property("(>= Y_0 1)"))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed: expected a whole number from 0, got -1"),
        ({"seed": "a"}, "seed: expected a whole number"),
        ({"seconds": 0}, "seconds: expected a number above 0"),
        ({"property": None}, "property: expected a VNN-LIB file or a Property, got NoneType"),
        ({"precision": "int8"}, "precision: expected float32 or bfloat16 or float16"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, object], message: str) -> None:
    arguments = {"property": parse_property(_property("(>= Y_0 1000)")), **options}
    with pytest.raises(ingot.InputError, match=message):
        ingot.certify(_model(tmp_path), **arguments)  # type: ignore[arg-type]


def test_arguments_for_models_that_declare_their_inputs(tmp_path: Path) -> None:
    """An array for an ONNX file, as by name."""
    path, x = _model(tmp_path), np.full((1, 3), 0.2, np.float32)
    by_place, by_name = (ingot.bounds(path, v, eps=0.1).lower for v in (x, {"x": x}))
    np.testing.assert_array_equal(by_place, by_name)
    assert ingot.attack(path, x, label=0, eps=0.1, seed=1).x.shape == (1, 3)
    with pytest.raises(ingot.InputError, match="input x: expected"):
        ingot.bounds(path, x[:, :2], eps=0.1)


def test_the_command(tmp_path: Path) -> None:
    path, prop = _model(tmp_path), tmp_path / "property.vnnlib"
    prop.write_text(_property("(>= Y_0 1000)"))

    def run(*args: str) -> Result:
        return CliRunner().invoke(app, ["certify", str(path), "--vnnlib", str(prop), *args])

    done = run("--numerics")
    assert done.exit_code == 0 and done.stdout.startswith("certified"), done.stderr
    prop.write_text(_property("(>= Y_0 -1000)"))
    done = run("--json", "--counterexample", str(tmp_path / "x.npy"))
    results = json.loads(done.stdout)
    assert done.exit_code == 1 and results["answer"] == "refuted" and not results["certified"]
    np.testing.assert_allclose(np.load(tmp_path / "x.npy").reshape(-1), results["counterexample"]["x"])
    prop.write_text("(assert")
    done = run()
    assert done.exit_code == 2 and "balanced parentheses" in done.stderr


@pytest.mark.parametrize("name", ["relu", "images", "attention", "pools"])
def test_an_attack_finds_what_samples_do(name: str) -> None:
    """A box in which random points change the class: the attack does too, and its point is in the box."""
    net, x = net_of(name)
    label = int(net(x).argmax())
    eps = 2.0
    counterexample = ingot.attack(net, x, label=label, eps=eps, seed=1)
    noise = torch.rand((500, *x.shape[1:]), generator=torch.Generator().manual_seed(0)) * 2 - 1
    margins = net(x + noise * eps).detach().double()
    values = margins.numpy()
    least = float((values[:, [label]] - np.delete(values, label, 1)).min())
    assert counterexample.margin <= max(least, 0.0)
    assert (np.abs(counterexample.x - x.numpy()) <= eps * (1 + 1e-6)).all()
    np.testing.assert_allclose(
        net(torch.from_numpy(counterexample.x)).detach().numpy(), counterexample.y, rtol=1e-4, atol=1e-5
    )
    assert counterexample.success == (counterexample.margin <= 0)
    lower, _ = ingot.bounds(net, x, eps=eps, method="ibp")
    assert (lower <= counterexample.y + 1e-5).all()
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_an_attack_in_other_types(dtype: torch.dtype) -> None:
    net, x = net_of("relu")
    found = ingot.attack(net.to(dtype), x.to(dtype), label=0, eps=2.0)
    assert found.success and str(found.x.dtype) == str(found.y.dtype) == str(dtype).removeprefix("torch.")


def _wide(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 10), nn.ReLU(), nn.Linear(10, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2)).eval()


def _least(net: nn.Module, row: list[float], low: float, high: float) -> float:
    """Nearly the least sum over a box of 40 inputs, by descents that slow down."""
    x = torch.rand((128, 40), generator=torch.Generator().manual_seed(0)) * (high - low) + low
    least, factors = np.inf, torch.tensor(row)
    for step in range(800):
        x = x.detach().requires_grad_()
        margins = net.float()(x) @ factors
        least = min(least, float(margins.detach().min()))
        (slope,) = torch.autograd.grad(margins.sum(), x)
        x = (x - 0.05 * 0.994**step * slope).clamp(low, high)
    return least


@pytest.mark.slow
@pytest.mark.parametrize("numerics", [False, True])
def test_neurons_are_split(tmp_path: Path, numerics: bool) -> None:
    """Of 40 inputs, boxes are not split: a margin that linear bounds do not prove, cases do."""
    net = _wide()
    path = tmp_path / "wide.onnx"
    torch.onnx.export(net, (torch.zeros(1, 40),), path, dynamo=False)
    names = "".join(f"(declare-const {v} Real)" for v in (*(f"X_{i}" for i in range(40)), "Y_0", "Y_1"))
    box = "".join(f"(assert (<= X_{i} 1))(assert (>= X_{i} 0))" for i in range(40))
    center = torch.full((1, 40), 0.5)
    _, upper = ingot.bounds(net, center, eps=0.5, slope_steps=30)
    largest, linear = -_least(net, [-1.0, 0.0], 0.0, 1.0), float(upper[0, 0])
    assert largest < linear
    limit = largest + 0.4 * (linear - largest)
    verdict = ingot.certify(path, parse_property(f"{names}{box}(assert (>= Y_0 {limit}))"), numerics=numerics)
    assert verdict.answer == "proved" and verdict.boxes > 2
    text = f"{names}{box}(assert (>= Y_0 {largest - 0.05 * (linear - largest)}))"
    refuted = ingot.certify(path, parse_property(text), numerics=numerics)
    assert refuted.answer == "refuted"


@pytest.mark.slow
def test_neurons_are_split_in_every_box(tmp_path: Path) -> None:
    """Of 40 inputs, halves of a second box prove as little as those of the first."""
    net, path = _wide(), tmp_path / "wide.onnx"
    torch.onnx.export(net, (torch.zeros(1, 40),), path, dynamo=False)
    names = "".join(f"(declare-const {v} Real)" for v in (*(f"X_{i}" for i in range(40)), "Y_0", "Y_1"))
    upper = float(ingot.bounds(net, torch.full((1, 40), 0.5), eps=0.5, slope_steps=30).upper[0, 0])
    limit = upper - 0.3 * (upper + _least(net, [-1.0, 0.0], 0.0, 1.0))
    boxes = [" ".join(f"(<= X_{i} {end}) (>= X_{i} 0)" for i in range(40)) for end in (1, 0.999)]
    alternatives = [f"(and {box} (>= Y_0 {limit}))" for box in boxes]
    verdicts = [
        ingot.certify(path, parse_property(f"{names}(assert (or {' '.join(parts)}))"))
        for parts in (alternatives[:1], alternatives)
    ]
    assert [v.answer for v in verdicts] == ["proved", "proved"]
    assert 2 < verdicts[0].boxes < verdicts[1].boxes <= 2 * verdicts[0].boxes


@pytest.mark.slow
def test_bounds_of_cases_hold() -> None:
    """For each case the points of the box that belong to it, with slopes and multipliers that are random."""
    net = _wide().double()
    options, rng = Options(), np.random.default_rng(0)
    graph = open_model(net.float(), Request((torch.zeros(1, 40),))).graph
    bounded = Question((True,), "crown", None, Rounding()).of(graph)
    neurons = neurons_of(bounded, options)
    assert neurons is not None
    box = [np.full((1, 40), end, np.float32) for end in (0.3, 0.7)]
    slopes = slopes_of(Question((True,), "crown", np.eye(2), Rounding()).of(graph), options)
    _, ends = slopes.run(box, np.full(2, np.inf), 1, np.inf)
    points = torch.from_numpy(rng.uniform(0.3, 0.7, (20000, 40)))
    net.double()
    with torch.no_grad():
        first = net[0](points)
        second = net[2](net[1](first))
        results = net(points).numpy()
    hidden = first.numpy(), second.numpy()
    rows = rng.normal(size=(neurons.count, 1, 2))
    signs = [np.zeros((neurons.count, *v.shape)) for v in ends[::2]]
    for n in range(neurons.count):
        for _ in range(n % 4):
            hinge = int(rng.integers(2))
            signs[hinge][n, 0, rng.integers(ends[2 * hinge].size)] = rng.choice([-1, 1])
    learned = [rng.uniform(0, 1, s.shape) for s in signs] + [rng.exponential(0.3, s.shape) for s in signs]
    lower, *_ = neurons.step.run([*box, *ends, rows, *signs, *learned])
    met = 0
    for n in range(neurons.count):
        belongs = [((s[n, 0] == 0) | (h * s[n, 0] >= 0)).all(1) for s, h in zip(signs, hidden, strict=True)]
        inside = np.logical_and.reduce(belongs)
        if inside.any():
            met += 1
            assert lower[n] <= (results[inside] @ rows[n, 0]).min()
    assert met > neurons.count // 2
    cases = Cases(neurons, box, ends)
    least = _least(net, [1.0, -1.0], 0.3, 0.7)
    linear = float(ingot.bounds(net, torch.full((1, 40), 0.5), eps=0.2, spec=[[1, -1]]).lower[0])
    row = np.array([[1.0, -1.0]])
    assert linear < least - 1e-3
    assert cases.prove(row, linear + 0.6 * (least - linear), np.inf) == "" and cases.bounded > 2
    assert "cases are left" in cases.prove(row, least, 0.0)
    assert "on both sides" in cases.prove(row, least + 1e-4, np.inf)


def _quantized(tmp_path: Path) -> Path:
    """A model of 3 -> 12 -> 2 in QDQ form: weights of 8 bits by channel, values of 8 bits whose range clips some."""
    rng = np.random.default_rng(0)
    arrays = {"xs": np.float32(0.006), "xz": np.uint8(128), "hs": np.float32(0.01), "hz": np.uint8(0)}
    nodes = []
    for name, shape in (("w1", (3, 12)), ("w2", (12, 2))):
        arrays[name] = rng.integers(-127, 128, shape).astype(np.int8)
        arrays[f"{name}s"] = rng.uniform(0.005, 0.01, shape[1]).astype(np.float32)
        arrays[f"{name}z"] = np.zeros(shape[1], np.int8)
        nodes.append(helper.make_node("DequantizeLinear", [name, f"{name}s", f"{name}z"], [f"{name}f"], axis=1))
    for x, y, p in (("x", "xf", "x"), ("r", "rf", "h")):
        nodes += [
            helper.make_node("QuantizeLinear", [x, f"{p}s", f"{p}z"], [f"{y}q"]),
            helper.make_node("DequantizeLinear", [f"{y}q", f"{p}s", f"{p}z"], [y]),
        ]
    nodes += [
        helper.make_node("MatMul", ["xf", "w1f"], ["m"]), helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["rf", "w2f"], ["y"]),
    ]  # fmt: skip
    order = [0, 1, 2, 3, 6, 7, 4, 5, 8]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [nodes[i] for i in order], "net", [value("x", 1, ["batch", 3])], [value("y", 1, ["batch", 2])],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in arrays.items()],
    )  # fmt: skip
    path = tmp_path / "quantized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("numerics", [False, True])
def test_quantized_models(tmp_path: Path, numerics: bool) -> None:
    """Levels of 8 bits: bounds hold for what the program computes in integers, beyond the range too."""
    path = _quantized(tmp_path)
    program = ingot.compile(path)
    for eps in (0.0, 0.1, 0.9):
        x = np.random.default_rng(2).uniform(-eps, eps, (2000, 3)).astype(np.float32)
        y = program(x)
        for method in ("ibp", "crown"):
            lower, upper = ingot.bounds(
                path, np.zeros((1, 3), np.float32), eps=eps, numerics=numerics, method=method, dynamic={"batch": 1}
            )
            assert (lower[0] <= y.min(0)).all() and (y.max(0) <= upper[0]).all()
    assert (upper - lower).max() < 10 * np.ptp(y, 0).max()
