"""What `ingot.compile` returns is one class, with the same attributes and methods whatever the model is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.support.errors import InputError

F, I, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _model(op: str, *inputs: tuple[str, int, list[int | str]], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, [name for name, _, _ in inputs], ["y"], **attributes)
    values = [helper.make_tensor_value_info(*declared) for declared in inputs]
    graph = helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _plain() -> tuple[Any, tuple[Any, ...]]:
    return ingot.compile(_model("Relu", ("x", F, ["n", 3])), cache=False, threads=1), (X,)


def _by_values() -> tuple[Any, tuple[Any, ...]]:
    m = _model("ReduceSum", ("x", F, [2, 3]), ("axes", I, [1]), keepdims=0)
    return ingot.compile(m, cache=False, threads=1), (X, np.array([1]))


def _staged() -> tuple[Any, tuple[Any, ...]]:
    m = _model("StringNormalizer", ("x", S, ["n"]), case_change_action="UPPER")
    return ingot.compile(m, cache=False, threads=1), (np.array(["a", "b"]),)


def _torch() -> tuple[Any, tuple[Any, ...]]:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    return ingot.compile(torch.nn.ReLU(), (x,), cache=False, threads=1), (x,)


def _foreign() -> tuple[Any, tuple[Any, ...]]:
    m = _model("Relu", ("x", F, ["n", 3]))
    return ingot.compile(m, target="cpu:aarch64", cache=False, threads=1), (X,)


RESULTS = [_plain, _by_values, _staged, _torch, _foreign]


def _outcome(ask: Callable[[], object]) -> object:
    """What is asked for, or the reason why not."""
    try:
        return ask()
    except ingot.IngotError as reason:
        assert len(str(reason)) > 20
        return reason


@pytest.mark.parametrize("make", RESULTS)
def test_every_result_has_the_same_attributes(make: Callable[[], tuple[Any, tuple[Any, ...]]], tmp_path: Path) -> None:
    model, args = make()
    assert type(model) is ingot.CompiledModel
    assert [spec.name for spec in model.inputs] and [spec.name for spec in model.outputs] and model.threads == 1
    assert all(spec.name in str(spec) for spec in (*model.inputs, *model.outputs))
    assert "CompiledModel(" in repr(model)
    calls: list[Callable[[], object]] = [
        lambda: model(*args), lambda: model.explain(*args), lambda: model.profile(*args),
        lambda: model.for_inputs(*args), lambda: model.program, lambda: model.plan(), lambda: model.dump("plan"),
        lambda: model.save(tmp_path / "m.ingot"), lambda: model.state(), lambda: model.set_state({}),
        lambda: model.seed(1), lambda: model.arena_bytes,
    ]  # fmt: skip
    facts = [_outcome(call) for call in calls]
    if make is _plain:
        assert not any(isinstance(t, Exception) for t in facts)
    with pytest.raises(TypeError, match="cannot be copied"):
        model.__reduce__()


def test_a_model_of_several_programs_says_why_it_is_not_a_single_one(tmp_path: Path) -> None:
    model, args = _by_values()
    assert not model.is_one_program and [str(s) for s in model.inputs] == ["x: f32[2, 3]", "axes: i64[1]"]
    with pytest.raises(InputError, match=r"the values of axes decide.*for_inputs.*--constant axes"):
        model.save(tmp_path / "m.ingot")
    with pytest.raises(InputError, match="the shape of y"):
        _ = model.outputs[0].shape
    assert "reduce" in model.explain(*args)
    one = model.for_inputs(*args)
    one.save(tmp_path / "m.ingot")
    np.testing.assert_array_equal(ingot.load(tmp_path / "m.ingot")(X), model(*args))


def test_the_public_names() -> None:
    names = [name for name in dir(ingot) if not name.startswith("__")]
    modules = {name for name in names if type(getattr(ingot, name)).__name__ == "module"}
    assert set(names) - modules == {name for name in ingot.__all__ if not name.startswith("__")}
    assert all(getattr(ingot, name).__name__ == f"ingot.{name}" for name in modules) and {"ops", "optim"} <= modules
    assert issubclass(ingot.ConstraintError, ingot.InputError) and not hasattr(ingot, "os")


@pytest.mark.parametrize("size", [3, 9 << 20], ids=["small", "recycled memory"])
def test_a_torch_model_without_inputs_returns_tensors(size: int) -> None:
    torch = pytest.importorskip("torch")

    class Table(torch.nn.Module):
        def forward(self) -> Any:
            return torch.arange(size, dtype=torch.float32), torch.ones(2)

    model = ingot.compile(Table(), (), cache=False, threads=1)
    for result, expected in zip(model(), Table()(), strict=True):
        assert isinstance(result, torch.Tensor) and torch.equal(result, expected)
    assert all(isinstance(y, np.ndarray) for y in ingot.compile(_constant(), cache=False, threads=1).run([]))


def _constant() -> onnx.ModelProto:
    return _model("Constant", value_floats=[1.0, 2.0])
