"""`ingot.register_op`: one op of the user's in PyTorch, ONNX and JAX."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
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
from ingot.runtime.cpu import host_functions
from ingot.support.errors import (
    ArtifactError,
    CompileError,
    ImportModelError,
    InputError,
    UnsupportedOpError,
    VerifyError,
)

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
    host_functions.FUNCTIONS.clear()


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
    compiled = torch.compile(Net().eval(), backend="ingot", options={"threads": 1}, fullgraph=True)
    with torch.no_grad():
        np.testing.assert_allclose(compiled(x), want, rtol=1e-5)


def test_jax_calls_and_primitives() -> None:
    jax = pytest.importorskip("jax")
    from jax.extend.core import Primitive

    def call(x: Any) -> Any:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("example_squareplus", result)(x, b=np.float32(4.0)) * 2

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
    ("changes", "message"),
    [
        ({"lower": None}, "expected one of lower, host and c, got none"),
        ({"lower": 3}, "lower: expected a function"),
        ({"lower": lambda x, b: ops.mul(x, 2.0)}, "the lowering: expected the reference's values"),
        ({"lower": lambda x, b: ops.reduce_sum(x)}, r"the lowering: expected what its type rule says, f32\[2,3\]"),
        ({"lower": lambda x, b: 3}, "lower: expected nodes, got int"),
        ({"infer": lambda x, b: "f32"}, "infer: expected tensor types, got str"),
        ({"torch": "squareplus"}, "torch: expected library::op"),
        ({"sample_attributes": {"b": X}}, "attribute b of op: expected numbers"),
    ],
)
def test_rules_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    inputs: dict[str, Any] = {**RULES, "samples": [(X,)], "sample_attributes": {"b": 4.0}, **changes}
    with pytest.raises((InputError, CompileError), match=message):
        ingot.register_op("op", **inputs)
    assert not custom.REGISTERED


def scaled(x: np.ndarray, b: float) -> np.ndarray:
    return (x[::-1] * b).astype(np.float32)


def host_rules(**changes: Any) -> dict[str, Any]:
    rules = {"infer": same_type, "reference": scaled, "host": lambda x, b: np.ascontiguousarray(scaled(x, b))}
    return {**rules, "onnx": ("example", "Squareplus"), **changes}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_function_of_python(threads: int, tmp_path: Path) -> None:
    """Between kernels, with an open size, in the middle of a program and again from a file."""
    ingot.register_op("reversed", **host_rules(), samples=[(X,)], sample_attributes={"b": 3.0})
    model = ingot.compile(onnx_model(3.0), threads=threads)
    model.save(tmp_path / "m.ingot")
    for compiled in (model, ingot.load(tmp_path / "m.ingot", threads=threads)):
        for n in (2, 5, 1):
            x = np.random.default_rng(n).standard_normal((n, 3), np.float32)
            np.testing.assert_allclose(compiled(x), -scaled(x, 3.0), rtol=1e-6)
    host_functions.FUNCTIONS.clear()
    with pytest.raises(ArtifactError, match=r"the program calls reversed: expected a registered function"):
        ingot.load(tmp_path / "m.ingot")


def test_a_function_of_c(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    (tmp_path / "f.c").write_text(
        "#include <stdint.h>\n"
        "void reversed(const void *const *in, void *const *out, const int64_t *sizes, const double *attributes) {\n"
        "  const float *x = in[0]; float *y = out[0];\n"
        "  for (int64_t i = 0; i < sizes[0]; i++) for (int64_t j = 0; j < sizes[1]; j++)\n"
        "    y[i * sizes[1] + j] = x[(sizes[0] - 1 - i) * sizes[1] + j] * (float)attributes[0];\n}\n"
    )
    library = tmp_path / "f.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, tmp_path / "f.c"], check=True, timeout=60)
    function = ctypes.CDLL(str(library)).reversed
    ingot.register_op("reversed", **host_rules(host=None, c=function), samples=[(X,)], sample_attributes={"b": 3.0})
    model = ingot.compile(onnx_model(3.0), threads=1)
    np.testing.assert_allclose(model(X), -scaled(X, 3.0), rtol=1e-6)


def test_what_a_function_of_python_raises_ends_the_call() -> None:
    answers: list[Any] = [ValueError("oops"), np.zeros((1, 3), np.float32)]

    def host(x: np.ndarray, b: float) -> Any:
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 0
        answer = answers.pop(0) if answers else X
        if isinstance(answer, Exception):
            raise answer
        return answer

    ingot.register_op("op", **host_rules(host=host))
    model = ingot.compile(onnx_model(), threads=1)
    with pytest.raises(ValueError, match="oops"):
        model(X)
    with pytest.raises(CompileError, match="op: its results"):
        model(X)
    np.testing.assert_array_equal(model(X), -X)
    assert "call of op" in model.explain(X)


def test_functions_have_no_gradient_and_no_other_target() -> None:
    ingot.register_op("op", **host_rules())
    with pytest.raises(UnsupportedOpError, match="host_call"):
        ingot.attribute(onnx_model(), X, target=0)
    occluded = ingot.attribute(onnx_model(2.0), X, target=0, method="occlusion", threads=1)
    assert np.isfinite(occluded).all()
    with pytest.raises((UnsupportedOpError, CompileError), match="call of op"):
        ingot.compile(onnx_model(), target="c", dynamic={"n": 2})
    for inputs, message in (
        ({"host": None}, "expected one of lower, host and c, got none"),
        ({"lower": lower}, "expected one of lower, host and c, got lower, host"),
        ({"samples": [(X,)], "sample_attributes": {"b": 1.0}, "reference": reference}, "op: the function"),
    ):
        with pytest.raises(InputError, match=message):
            ingot.register_op("op", **host_rules(**inputs))


def test_a_file_cannot_have_a_function_read_beyond_its_arrays(tmp_path: Path) -> None:
    ingot.register_op("op", **host_rules())
    program = ingot.compile(onnx_model(), dynamic={"n": 2}, threads=1).program
    steps = [replace(s, dims=(200, *s.dims[1:])) if s.host is not None else s for s in program.steps]
    with pytest.raises(VerifyError, match="an offset into the"):
        replace(program, steps=tuple(steps)).check()
    wrong = [replace(s, dims=s.dims[1:]) if s.host is not None else s for s in program.steps]
    with pytest.raises(VerifyError, match="2 tensors and their 4 sizes"):
        replace(program, steps=tuple(wrong)).check()


def test_two_ops_of_one_name_elsewhere() -> None:
    ingot.register_op("a", **RULES, onnx=("example", "Op"))
    ingot.register_op("a", **RULES, onnx=("example", "Op"))
    with pytest.raises(InputError, match="expected one registration, got also a"):
        ingot.register_op("b", **RULES, onnx=("example", "Op"))
