"""Sizes stay open through functions whose C++ would fix them, and decompositions that fix one say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from ingot.support.errors import InputError
from tests.frontends.torch.agree import Function, close, run

IMAGE, ROWS, SIGNAL = (2, 4, 8, 12), (2, 6, 8), (2, 64)
AXES = {4: {0: "b", 2: "h", 3: "w"}, 3: {0: "b", 1: "n"}, 2: {1: "n"}}
OTHER = {"b": 3, "h": 5, "w": 14, "n": 83}


def _resynthesized(x: Tensor) -> Tensor:
    window = {"window": torch.hann_window(12), "win_length": 12, "normalized": True}
    parts = torch.stft(x, 16, 4, return_complex=True, **window)
    return torch.istft(parts, 16, 4, length=x.shape[1], **window)


def _padded(x: Tensor) -> Tensor:
    parts = F.pad(x, (0, 0, 0, -x.shape[1] % 4)).unflatten(1, (-1, 4))
    return ((parts @ parts.mT).softmax(-1) @ parts).flatten(1, 2)[:, : x.shape[1]]


def _grid(x: Tensor, align_corners: bool) -> Tensor:
    rotation = torch.tensor([[0.8, 0.3, 0.1], [-0.2, 1.1, 0.0]]).expand(x.shape[0], 2, 3)
    return F.affine_grid(rotation, list(x.shape), align_corners=align_corners)


CASES: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "affine_grid": (lambda x: (_grid(x, False), _grid(x, True)), IMAGE),
    "len": (lambda x: (x.reshape(len(x), -1).sum(1), torch.ones(len(x[0]), len(x))), ROWS),
    "whole windows": (lambda x: (F.avg_pool2d(x, x.shape[-2:]), F.max_pool2d(x, (x.shape[2], 2))), IMAGE),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, None)), IMAGE),
    "adaptive halves": (lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, x.shape[3] // 2)), IMAGE),
    "istft": (_resynthesized, SIGNAL),
    "windows": (
        lambda x: [
            make(x.shape[1], periodic=periodic)
            for make in (torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window)
            for periodic in (True, False)
        ],
        SIGNAL,
    ),
    "kaiser": (lambda x: (torch.kaiser_window(x.shape[1]), torch.kaiser_window(x.shape[1], False, 8.0)), SIGNAL),
    "spaces": (lambda x: (torch.linspace(-1, 2, x.shape[1]), torch.logspace(0, 1, x.shape[1])), SIGNAL),
    "a space of doubles": (lambda x: torch.logspace(0, 1, x.shape[1], dtype=torch.float64), SIGNAL),
    "one_hot": (lambda x: F.one_hot(x.argmax(1), x.shape[1]), ROWS),
    "triangles": (lambda x: x[:, torch.triu_indices(x.shape[1], x.shape[1], 1)[0]], ROWS),
    "kron": (lambda x: torch.kron(x[0, :3], x[1]), SIGNAL),
    "vander": (lambda x: (torch.vander(x[0, :5]), torch.vander(x[0], 3, increasing=True)), SIGNAL),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(1)[:1], 1), ROWS),
    "covariances": (lambda x: (torch.cov(x[0].T), torch.corrcoef(x[1].T), torch.cov(x[0, :, 0])), ROWS),
    "multiples": (_padded, ROWS),
    "pdist": (lambda x: F.pdist(x[0]), ROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_other_sizes(name: str) -> None:
    function, shape = CASES[name]
    axes = AXES[len(shape)]
    other = [OTHER[axes[i]] if i in axes else d for i, d in enumerate(shape)]
    net = Function(function).eval()
    model = import_exported(export_module(net, (torch.randn(shape),), {"args": (axes,)}))
    for sizes in (shape, other):
        x = torch.randn(sizes)
        close(run(model, x), net(x))


def _sampled(x: Tensor) -> Tensor:
    places = x.nonzero().float() / 3
    pairs = torch.stack((places, places + 0.1))[None]
    pairs[:, 0].mul_(2)  # torch decomposes what writes through a view
    return F.grid_sample(x[None, None], pairs, align_corners=False)


def test_what_decomposition_answers_either_way_is_no_condition() -> None:
    """Whether a stride is 0 that only the run knows."""
    x = torch.tensor([[0.0, 3.0, 1.0], [0.0, 0.0, 7.0]])
    model = import_exported(export_module(Function(_sampled), (x,)))
    for data in (x, torch.zeros(2, 3), torch.ones(2, 3)):
        close(run(model, data), _sampled(data))


def test_a_size_that_a_decomposition_fixes_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    from ingot.frontends.torch import decompose

    def fixed(x: Tensor, p: float = 2) -> Tensor:
        return x.new_zeros(int(x.shape[0]) * (int(x.shape[0]) - 1) // 2)

    monkeypatch.setitem(decompose.DECOMPOSITIONS, torch.ops.aten._pdist_forward.default, fixed)
    net = Function(F.pdist).eval()
    model = import_exported(export_module(net, (torch.randn(6, 3),), {"args": ({0: "n"},)}))
    assert run(model, torch.randn(6, 3)).shape == (15,)
    with pytest.raises(InputError, match="n"):
        run(model, torch.randn(9, 3))
