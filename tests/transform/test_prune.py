"""`ingot.prune`: the smallest weights are zeros, in blocks, and the model is what it was with such weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.utils import prune as torch_prune  # noqa: E402

import ingot  # noqa: E402
from ingot import ops  # noqa: E402
from ingot.ir.interp import interpret  # noqa: E402
from ingot.ir.node import Graph, Input, const  # noqa: E402
from ingot.ir.types import TensorType, f32, i8, u8  # noqa: E402
from ingot.pipeline.build import build_native  # noqa: E402
from ingot.runtime.executor import CompiledModel  # noqa: E402
from ingot.support.errors import InputError  # noqa: E402
from tests.schedule.compiled import NATIVE  # noqa: E402

X = np.random.default_rng(0).standard_normal((128, 96)).astype(np.float32)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.Linear(256, 30)).eval()


def without_smallest(w: Tensor, part: float, block: int) -> Tensor:
    """w with the blocks of `block` rows of one column as zeros whose mean magnitudes are the smallest."""
    sizes = torch.stack([rows.abs().mean(0) for rows in w.split(block)])
    mask = torch.ones(sizes.numel())
    mask[sizes.flatten().argsort(stable=True)[: round(part * sizes.numel())]] = 0
    return w * mask.reshape(sizes.shape).repeat_interleave(block, 0)[: len(w)]


def test_blocks_by_magnitude(tmp_path: Path) -> None:
    module, expected = net(), net()
    for layer in expected.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = without_smallest(layer.weight.data, 0.9, 4)
    m = ingot.prune(module, 0.9, block=4, example_inputs=(torch.from_numpy(X),))
    want = expected(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(m(torch.from_numpy(X)).numpy(), want, rtol=1e-5, atol=1e-5)
    assert all(abs(zeros - 0.9) < 0.02 for zeros in m.sparsity.values())
    kernels = [s.kernel for s in m.program.steps]
    assert any("sparse" in name for name in kernels)
    dense = ingot.compile(module, (torch.from_numpy(X),))
    for name, model in (("pruned", m), ("dense", dense)):
        model.save(tmp_path / f"{name}.ingot")
    assert m.program.weights.nbytes < 0.25 * dense.program.weights.nbytes


def test_levels_of_pruned_weights_are_sparse() -> None:
    """Where bytes are multiplied by dot instructions; the sums are exact."""
    rng = np.random.default_rng(4)
    mask = np.repeat(rng.random((64, 384)) < 0.1, 4, 0)
    w = (rng.integers(-127, 128, mask.shape) * mask).astype(np.int8)
    x = Input("x", TensorType(f32, (128, 384)))()
    scale, zero = ops.scalar(0.03), ops.scalar(120, u8)
    levels = ops.Dequantize()(ops.quantize(x, scale, zero), zero, scale)
    weights = ops.Dequantize()(const(w), ops.scalar(0, i8), ops.scalar(0.01))
    graph = Graph((x,), (ops.DotGeneral(((), ()), ((1,), (1,)))(levels, weights),))
    data = [rng.standard_normal((128, 384)).astype(np.float32)]
    program = build_native(graph, 1)
    (got,) = CompiledModel(program, threads=1).run(data)
    np.testing.assert_allclose(np.asarray(got), interpret(graph, data)[0], rtol=1e-5, atol=1e-5)
    if NATIVE.int8_dot == u8:
        assert any("sparse" in s.kernel for s in program.steps) and program.weights.nbytes < 0.25 * w.size


def test_masks_of_torch_are_seen() -> None:
    """A mask is a product of constants until it is folded."""
    module = net()
    torch_prune.ln_structured(module[0], "weight", 0.5, n=2, dim=1)  # type: ignore[index]
    torch_prune.l1_unstructured(module[2], "weight", 0.97)  # type: ignore[index]
    m = ingot.compile(module, (torch.from_numpy(X),))
    want = module(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(m(torch.from_numpy(X)).numpy(), want, rtol=1e-5, atol=1e-5)
    assert any("sparse" in s.kernel for s in m.program.steps)


def test_by_name_and_over_all_layers() -> None:
    x = (torch.from_numpy(X),)
    names = list(ingot.prune(net(), 0.5, example_inputs=x).sparsity)
    one = ingot.prune(net(), {names[0]: 0.8}, block=1, example_inputs=x).sparsity
    assert one[names[0]] == pytest.approx(0.8, abs=1e-3) and one[names[1]] == 0
    over_all = ingot.prune(net(), 0.8, block=1, scope="global", example_inputs=x).sparsity
    sizes = np.array([96 * 256, 256 * 30])
    assert np.average(list(over_all.values()), weights=sizes) == pytest.approx(0.8, abs=1e-3)
    assert over_all[names[0]] < over_all[names[1]]  # whose weights are smaller


def test_what_is_refused() -> None:
    x = (torch.from_numpy(X),)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"sparsity": 1.0}, "less than 1"),
        ({"sparsity": 0.5, "block": 3}, "1, 4, 16"),
        ({"sparsity": {"nothing": 0.5}}, "names of products"),
        ({"sparsity": 0.5, "scope": "all"}, "layer or global"),
    )
    for arguments, message in refused:
        with pytest.raises(InputError, match=message):
            ingot.prune(net(), example_inputs=x, **arguments)
    with pytest.raises(InputError, match="products with constant weights"):
        ingot.prune(nn.ReLU(), 0.5, example_inputs=x)
