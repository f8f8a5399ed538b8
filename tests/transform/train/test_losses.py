"""Losses by name beside torch's: values and gradients, by the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot.autodiff import gradients
from ingot.autodiff.rules import RULES
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, dtype_of
from ingot.passes.model.lower import lower_model_ops
from ingot.transform.train.losses import LOSSES, METRICS

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

Pair = tuple[np.ndarray, np.ndarray]
rng = np.random.default_rng(0)
SCORES, OTHERS = rng.standard_normal((5, 4, 3)) * 3, rng.standard_normal((5, 4, 3))
PARTS = np.exp(OTHERS) / np.exp(OTHERS).sum(1, keepdims=True)
CLASSES = rng.integers(0, 4, (5, 3))
CLASSES[1, 2] = -100
LOG = np.log(PARTS)
CASES: dict[str, tuple[Pair, Callable[..., Tensor]]] = {
    "cross_entropy": ((SCORES, CLASSES), F.cross_entropy),
    "cross_entropy of parts": ((SCORES, PARTS), F.cross_entropy),
    "cross_entropy of a row": ((SCORES[0, :, 0], np.asarray(2)), F.cross_entropy),
    "nll": ((LOG, CLASSES), F.nll_loss),
    "mse": ((SCORES, OTHERS), F.mse_loss),
    "l1": ((SCORES, OTHERS), F.l1_loss),
    "huber": ((SCORES, OTHERS), F.huber_loss),
    "bce_with_logits": ((SCORES * 20, PARTS), F.binary_cross_entropy_with_logits),
    "kl_div": ((LOG, PARTS * (PARTS > 0.1)), lambda a, b: F.kl_div(a, b, reduction="batchmean")),
}


@pytest.mark.parametrize("name", CASES)
def test_losses(name: str) -> None:
    (output, target), theirs = CASES[name]
    loss = LOSSES[name.split(" ")[0]]
    x, y = (Input(label, TensorType(dtype_of(a), a.shape))() for label, a in (("x", output), ("y", target)))
    loss.check(name, x.type, y.type)
    value = lower_model_ops(Graph((x, y), (loss.value(x, y),)), frozenset(RULES)).outputs[0]
    got, gradient = interpret(Graph((x, y), (value, *gradients(value, [x]))), [output, target])
    leaf = torch.tensor(output, requires_grad=True)
    want = theirs(leaf, torch.tensor(target))
    want.backward()
    np.testing.assert_allclose(got, want.item(), rtol=1e-9)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-12)


def test_a_class_that_there_is_not_gives_nan() -> None:
    x, y = Input("x", TensorType(dtype_of(SCORES), (5, 4)))(), Input("y", TensorType(dtype_of(CLASSES), (5,)))()
    graph = Graph((x, y), (LOSSES["cross_entropy"].value(x, y), METRICS["accuracy"].value(x, y)))
    loss, accuracy = interpret(graph, [SCORES[:, :, 0], np.asarray([0, 1, -100, 3, 0])])
    best = SCORES[:, :, 0].argmax(1)
    assert np.isfinite(loss) and accuracy == np.float32(np.mean((best == [0, 1, -100, 3, 0])[[0, 1, 3, 4]]))
    assert np.isnan(interpret(graph, [SCORES[:, :, 0], np.asarray([0, 1, 4, 3, 0])])[0])
