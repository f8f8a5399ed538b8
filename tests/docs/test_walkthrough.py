"""docs/inside/walkthrough.md: each text in it that the compiler made is what the compiler makes.

<!-- made: core -->        the name of a function below
```                        what it returns; pytest --update-golden writes it
graph(...) {
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph
from ingot.ir.show import show
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of, target_of
from ingot.runtime.bind import Binding
from ingot.runtime.describe import plan as show_plan
from ingot.runtime.program import Program

PAGE = Path(__file__).parents[2] / "docs" / "inside" / "walkthrough.md"
MADE = re.compile(r"(<!-- made: (\w+) -->\n```\w*\n)(.*?)(```\n)", re.DOTALL)


def small_model() -> onnx.ModelProto:
    weights = (np.arange(16, dtype=np.float32).reshape(4, 4) % 5 - 2) / 4
    bias, one = np.array([0, 1, 0, -1], np.float32), np.array(1, np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "weights", "bias"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "one"], ["scaled"]),
        helper.make_node("Relu", ["scaled"], ["active"]),
        helper.make_node("Softmax", ["active"], ["y"], axis=-1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])
    constants = [numpy_helper.from_array(v, n) for n, v in (("weights", weights), ("bias", bias), ("one", one))]
    graph = helper.make_graph(nodes, "small", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@cache
def _built(target: str) -> tuple[Program, Trace]:
    trace = Trace()
    return build_program(import_onnx(small_model()), features_of(target), threads=1, trace=trace), trace


def _after(name: str) -> Graph:
    _, trace = _built("cpu:aarch64")
    return next(graph for stage, _, graph in trace.stages if stage == name)


def _kernels(target: str, form: str) -> list[str]:
    features = features_of(target)
    return [target_of(features).source(kernel, features, form) for kernel in _built(target)[1].kernels]


def _innermost(text: str, label: str, branch: str) -> str:
    """The first block that branches back to itself."""
    for results in re.finditer(label, text, re.MULTILINE):
        block = text[results.start() :]
        end = re.search(branch.format(re.escape(results[1])), block, re.MULTILINE)
        if end and len(re.findall(label, block[: end.end()], re.MULTILINE)) == 1:
            return block[: end.end()]
    raise AssertionError("no loop of one block")


def onnx_model() -> str:
    return inspect.getsource(small_model)


def model() -> str:
    return show(import_onnx(small_model()))


def core() -> str:
    return show(_after("lower"))


def simplified() -> str:
    return show(_after("simplify"))


def groups() -> str:
    return show(_after("fuse"))


def kernels() -> str:
    return "\n".join(show_kernel(kernel).strip("\n") + "\n" for kernel in _built("cpu:aarch64")[1].kernels)


def llvm() -> str:
    return _innermost(_kernels("cpu:aarch64", "llvm")[0], r"^(b\d+):$", r"^br i1 .*label %{}\b.*$")


def assembly() -> str:
    return _innermost(_kernels("cpu:aarch64", "asm")[0], r"^(\.LBB\d+_\d+):.*$", r"^\s+(b\.|cbn?z|tbn?z).*{}$")


def c_kernel() -> str:
    return _kernels("c", "c")[1]


def plan() -> str:
    program, _ = _built("cpu:aarch64")
    # but the size of the code, which any change to the driver changes
    return re.sub(r"code \d+ bytes, ", "", show_plan(program, Binding(program, [(3, 4)])))


def result() -> str:
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    run = ingot.compile(small_model(), cache=False)(x)
    (meant,) = interpret(import_onnx(small_model()), [x])
    np.testing.assert_allclose(run, meant, rtol=1e-6)
    return np.array2string(run, precision=4, suppress_small=True)


STAGES: list[Callable[[], str]] = [
    onnx_model, model, core, simplified, groups, kernels, llvm, assembly, c_kernel, plan, result,
]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_the_page_shows_what_is_made(stage: Callable[[], str], request: pytest.FixtureRequest):
    name, output = stage.__name__, stage().strip("\n") + "\n"
    page = PAGE.read_text()
    outputs = {results[2]: results[3] for results in MADE.finditer(page)}
    assert name in outputs, f"{PAGE} has no place for {name}"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(MADE.sub(lambda m: m[1] + (output if m[2] == name else m[3]) + m[4], page))
        return
    assert outputs[name] == output, f"{PAGE} differs; if intended, run with --update-golden"


def test_the_page_shows_nothing_else():
    assert [results[2] for results in MADE.finditer(PAGE.read_text())] == [stage.__name__ for stage in STAGES]
