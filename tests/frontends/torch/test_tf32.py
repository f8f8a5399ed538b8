"""PyTorch's settings for float32 on GPUs, read as a graph is compiled: convolutions take TF32 by default, products
only if it is switched on."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot import ops
from ingot.frontends.torch import importer
from ingot.integrations import torch_compile
from ingot.integrations.torch_compile import _Specialized, import_flat
from ingot.ir.node import Graph
from ingot.passes.core.dtypes.precision import lower_precision
from ingot.passes.model.lower import lower_model_ops
from tests.frontends.torch.test_gpu import traced


def _step(x: Tensor, w: Tensor, pointwise: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Two convolutions, a product, and the gradients of the convolutions."""
    conf = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    y = torch.ops.aten.convolution(x, w, None, *conf)
    z = torch.ops.aten.convolution(y, pointwise, None, *conf)
    product = torch.ops.aten.mm(z.view(70, 6), g.view(70, 6).t())
    backward = torch.ops.aten.convolution_backward
    gy, gp, _ = backward(g, y, pointwise, None, *conf, [True, True, False])
    gx, gw, _ = backward(gy, x, w, None, *conf, [True, True, False])
    return product, gp, gx, gw


SHAPES = (2, 3, 9, 8), (4, 3, 3, 3), (5, 4, 1, 1), (2, 5, 7, 6)


def _settings_of_products(graph: Graph) -> tuple[set[bool | None], set[bool | None]]:
    """`tf32` of the products that convolutions became, and of the others."""
    lowered = lower_model_ops(graph)
    convolutions, others = set[bool | None](), set[bool | None]()
    for n in lowered.nodes():
        if isinstance(n.op, ops.Convolution | ops.DotGeneral):
            is_other = isinstance(n.op, ops.DotGeneral) and n.type.shape == (70, 70)
            (others if is_other else convolutions).add(n.op.tf32)
    return convolutions, others


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_and_their_gradients_keep_the_setting(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    monkeypatch.setattr(importer, "convolutions_take_tf32", lambda: allowed)
    monkeypatch.setattr(importer, "products_take_tf32", lambda: True)  # which become the option
    graph = import_flat(traced(_step, *SHAPES, device="cuda"), {}).graph
    assert _settings_of_products(graph) == ({allowed}, {None})
    assert _settings_of_products(lower_precision(lower_model_ops(graph), "tf32")) == ({allowed}, {True})


def test_convolutions_leave_it_open_where_neither_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("convolutions_take_tf32", "products_take_tf32"):
        monkeypatch.setattr(importer, name, lambda: False)
    assert _settings_of_products(import_flat(traced(_step, *SHAPES, device="cuda"), {}).graph) == ({None}, {None})


def test_tensors_on_the_cpu_have_none() -> None:
    assert _settings_of_products(import_flat(traced(_step, *SHAPES), {}).graph) == ({None}, {None})


def test_transposed_convolutions() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.ops.aten.convolution(x, w, None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1),)

    graph = import_flat(traced(f, (1, 3, 5, 5), (3, 4, 3, 3), device="cuda"), {}).graph
    assert _settings_of_products(graph)[0] == {True}


OLDER_NAMES = """
assert convolutions_take_tf32() and not products_take_tf32()
torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("high")
assert not convolutions_take_tf32() and products_take_tf32()
torch.backends.cuda.matmul.allow_tf32 = False
assert not products_take_tf32()
"""
NEWER_NAMES = """
convolutions, products = torch.backends.cudnn.conv, torch.backends.cuda.matmul
convolutions.fp32_precision, products.fp32_precision = "ieee", "tf32"
assert not convolutions_take_tf32() and products_take_tf32()
convolutions.fp32_precision = products.fp32_precision = "none"
for precision, allowed in (("tf32", True), ("ieee", False)):
    torch.backends.fp32_precision = precision
    assert convolutions_take_tf32() is products_take_tf32() is allowed
"""


@pytest.mark.parametrize("code", [OLDER_NAMES, NEWER_NAMES])
def test_settings(code: str) -> None:
    """In a process of its own: PyTorch does not take back all that setting one of them sets."""
    if code == NEWER_NAMES and not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("before PyTorch 2.9")
    imports = "import torch\nfrom ingot.frontends.torch.convert import convolutions_take_tf32, products_take_tf32\n"
    subprocess.run([sys.executable, "-W", "ignore", "-c", imports + code], check=True)


@pytest.mark.parametrize(("chosen", "expected"), [({}, "tf32"), ({"precision": "bfloat16"}, "bfloat16")])
def test_products_take_the_precision_of_pytorch_unless_one_is_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (9, 0))
    calls: list[dict[str, Any]] = []

    def compiler(model: object, **options: Any) -> Any:
        calls.append(options)
        return lambda *args: args

    x = torch.ones(3)
    for is_allowed in (False, True):
        monkeypatch.setattr(torch_compile, "products_take_tf32", lambda is_allowed=is_allowed: is_allowed)
        graph = traced(lambda x: (x + 1,), (3,), device="cuda")
        graph.graph.find_nodes(op="output")[0].args[0][0].meta["val"] = x
        _Specialized(graph, [x], frozenset(), partial(compiler, **chosen), Lock())([x])
    assert calls == [{"target": "cuda:sm_90a", **chosen}, {"target": "cuda:sm_90a", "precision": expected}]
