"""`ingot.register_op`: one op of the user's in PyTorch, ONNX and JAX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.node import Graph, Input, Node
from ingot.ir.parse import parse
from ingot.ir.show import show
from ingot.ir.types import TensorType, f32
from ingot.ops import custom
from ingot.support.errors import CompileError, ImportModelError, InputError, UnsupportedOpError

X = np.asarray([[-7.5, -0.5, 0.0], [0.5, 2.0, 30.0]], np.float32)


def reference(x: np.ndarray, b: float) -> np.ndarray:
    return (x + np.sqrt(x * x + b)) / 2


def lower(x: Node, b: float) -> Node:
    return ops.mul(ops.add(x, ops.Sqrt()(ops.add(ops.mul(x, x), b))), 0.5)


def same_type(x: TensorType, b: float) -> TensorType:
    return x


RULES: dict[str, Any] = {"infer": same_type, "reference": reference, "lower": lower}


@pytest.fixture(autouse=True)
def no_registrations() -> Iterator[None]:
    """Registrations last as long as the process."""
    yield
    custom.REGISTERED.clear()
    custom.NAMES.clear()


def onnx_model(b: float = 1.0, domain: str = "example") -> Any:
    onnx = pytest.importorskip("onnx")
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18, "{domain}" : 1]> m (float[n,3] x) => (float[n,3] y)'
        f"{{ h = {domain}.Squareplus <b = {b}> (x) y = Neg (h) }}"
    )


def test_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    with pytest.raises(UnsupportedOpError, match="Squareplus"):
        ingot.compile(onnx_model())
    ingot.register_op("example::squareplus", **RULES, onnx=("example", "Squareplus"), samples=[(X,)],
                      sample_attributes={"b": 1.0})  # fmt: skip
    np.testing.assert_allclose(ingot.compile(onnx_model(), threads=1)(X), -reference(X, 1.0), rtol=1e-5)
    # a file is the same, what the op means is not
    onnx.save(onnx_model(), tmp_path / "m.onnx")
    for _ in range(2):
        np.testing.assert_allclose(ingot.compile(tmp_path / "m.onnx", threads=1)(X), -reference(X, 1.0), rtol=1e-5)
    other = {**RULES, "reference": lambda x, b: x * b, "lower": lambda x, b: ops.mul(x, b)}
    ingot.register_op("example::squareplus", **other, onnx=("example", "Squareplus"))
    np.testing.assert_allclose(ingot.compile(tmp_path / "m.onnx", threads=1)(X), -X, rtol=1e-5)


def test_pytorch_with_gradients_and_torch_compile() -> None:
    torch = pytest.importorskip("torch")

    @torch.library.custom_op("ingot_example::squareplus", mutates_args=(), schema="(Tensor x, float b=4.0) -> Tensor")
    def squareplus(x: Any, b: float = 4.0) -> Any:
        return (x + torch.sqrt(x * x + b)) / 2

    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * (1 + x / torch.sqrt(x * x + ctx.b)) / 2, None

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.b = inputs[1]

    squareplus.register_fake(lambda x, b=4.0: torch.empty_like(x))
    squareplus.register_autograd(backward, setup_context=save)  # torch traces no gradient without one

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return squareplus(x).sum() + squareplus(x, 1.0).sum()

    x = torch.from_numpy(X)
    with pytest.raises(UnsupportedOpError, match=r"ingot_example\.squareplus"):
        ingot.compile(Net().eval(), (x,))
    ingot.register_op("squareplus", **RULES, torch="ingot_example::squareplus")
    want = reference(X, 4.0).sum() + reference(X, 1.0).sum()
    np.testing.assert_allclose(ingot.compile(Net().eval(), (x,), threads=1)(x), want, rtol=1e-5)
    gradient = np.asarray(ingot.grad(Net().eval(), (x,), threads=1)(x)["x"])
    wide = X.astype(np.float64)
    slopes = sum((1 + wide / np.sqrt(wide * wide + b)) / 2 for b in (4.0, 1.0))
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(Net().eval(), backend="ingot", options={"threads": 1})
    with torch.no_grad():
        np.testing.assert_allclose(compiled(x), want, rtol=1e-5)


def test_jax_calls_and_primitives() -> None:
    jax = pytest.importorskip("jax")
    from jax.extend.core import Primitive

    def call(x: Any) -> Any:
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("example_squareplus", out)(x, b=np.float32(4.0)) * 2

    primitive = Primitive("squareplus")
    primitive.def_abstract_eval(lambda x, b: jax.core.ShapedArray(x.shape, x.dtype))
    with pytest.raises(ImportModelError, match="example_squareplus"):
        ingot.compile(call, (X,))
    ingot.register_op("call", **RULES, jax="example_squareplus")
    ingot.register_op("primitive", **RULES, jax=primitive)
    np.testing.assert_allclose(ingot.compile(call, (X,), threads=1)(X), 2 * reference(X, 4.0), rtol=1e-5)
    model = ingot.compile(lambda x: primitive.bind(x, b=1.0) + 1, (X,), threads=1)
    np.testing.assert_allclose(model(X), reference(X, 1.0) + 1, rtol=1e-5)


def test_several_results_and_open_sizes() -> None:
    onnx = pytest.importorskip("onnx")
    ingot.register_op(
        "extremes",
        infer=lambda x, axis: [x.with_shape(x.shape[:axis] + x.shape[axis + 1 :])] * 2,
        reference=lambda x, axis: [x.min(axis), x.max(axis)],
        lower=lambda x, axis: [ops.reduce_min(x, axis), ops.reduce_max(x, axis)],
        onnx=("example", "Extremes"),
        samples=[(X,)],
        sample_attributes={"axis": 1},
    )
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "example" : 1]> m (float[n,k] x) => (float[n] a, float[n] b)'
        "{ a, b = example.Extremes <axis = 1> (x) }"
    )
    low, high = ingot.compile(model, threads=1)(X)
    np.testing.assert_array_equal(low, X.min(1))
    np.testing.assert_array_equal(high, X.max(1))


def test_graphs_print_and_parse() -> None:
    ingot.register_op("squareplus", **RULES)
    x = Input("x", TensorType(f32, (2, 3)))()
    graph = Graph((x,), (custom.apply(custom.REGISTERED["squareplus"], [x], {"b": 2.0}),))
    text = show(graph)
    assert "squareplus" in text and show(parse(text)) == text
    custom.REGISTERED.clear()
    with pytest.raises(
        CompileError, match=r"op squareplus: expected a registered op, got none; call ingot\.register_op"
    ):
        graph.outputs[0].op.lower(x)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"lower": None}, "lower: expected a function"),
        ({"lower": lambda x, b: ops.mul(x, 2.0)}, "the lowering: expected the reference's values"),
        ({"lower": lambda x, b: ops.reduce_sum(x)}, r"the lowering: expected what its type rule says, f32\[2,3\]"),
        ({"lower": lambda x, b: 3}, "lower: expected nodes, got int"),
        ({"infer": lambda x, b: "f32"}, "infer: expected tensor types, got str"),
        ({"torch": "squareplus"}, "torch: expected library::op"),
        ({"sample_attributes": {"b": X}}, "attribute b of op: expected numbers"),
    ],
)
def test_rules_that_do_not_fit(changes: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {**RULES, "samples": [(X,)], "sample_attributes": {"b": 4.0}, **changes}
    with pytest.raises((InputError, CompileError), match=told):
        ingot.register_op("op", **given)
    assert not custom.REGISTERED


def test_two_ops_of_one_name_elsewhere() -> None:
    ingot.register_op("a", **RULES, onnx=("example", "Op"))
    ingot.register_op("a", **RULES, onnx=("example", "Op"))
    with pytest.raises(InputError, match="expected one registration, got also a"):
        ingot.register_op("b", **RULES, onnx=("example", "Op"))
