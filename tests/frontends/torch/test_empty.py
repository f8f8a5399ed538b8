"""Operators of nothing: an error where PyTorch has one, or else its answer, and for a size that is 0 later on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed

import ingot
from ingot.support.errors import IngotError

Shape = tuple[int, ...]
# the function, and shapes of its argument; the first of them has elements
CASES: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "max": (torch.max, ((3, 4), (0, 4), (3, 0))),
    "max of axis 0": (lambda x: x.max(0).values, ((3, 4), (0, 4), (3, 0))),
    "amin": (lambda x: x.amin(1), ((3, 4), (0, 4), (3, 0))),
    "aminmax": (lambda x: torch.aminmax(x, dim=0).max, ((3, 4), (0, 4), (3, 0))),
    "argmax": (lambda x: x.argmax(1), ((3, 4), (0, 4), (3, 0))),
    "sum": (torch.sum, ((3, 4), (0, 4))),
    "logsumexp": (lambda x: x.logsumexp(0), ((3, 4), (0, 4))),
    "median": (lambda x: x.nanmedian(), ((3, 4), (0, 4))),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), ((3, 4), (0, 4), (3, 0))),
    "adaptive mean": (lambda x: F.adaptive_avg_pool2d(x, 2), ((2, 3, 5, 4), (0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 0, 4))),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, 2), ((2, 3, 5, 4), (0, 3, 5, 4), (2, 3, 5, 0))),
    "pool": (lambda x: F.max_pool2d(x, 2), ((2, 3, 5, 4), (0, 3, 5, 4), (2, 3, 0, 4))),
    **{
        f"{mode} resize": (
            lambda x, mode=mode: F.interpolate(x, size=(3, 7), mode=mode),
            ((2, 3, 5, 4), (0, 3, 5, 4), (2, 3, 0, 4)),
        )
        for mode in ("nearest", "bilinear", "bicubic")
    },
    "resize by a factor": (lambda x: F.interpolate(x, scale_factor=1.7), ((2, 3, 5, 4), (0, 3, 5, 4), (2, 3, 5, 0))),
    "softmax": (lambda x: x.softmax(0), ((3, 4), (0, 4), (3, 0))),
    "sort": (lambda x: x.sort(0).indices, ((3, 4), (0, 4))),
    "roll": (lambda x: x.roll(2, 0), ((3, 4), (0, 4))),
    "last row": (lambda x: x[-1:], ((3, 4), (0, 4))),
}


def _answer(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor | None:
    """None where there is an error."""
    try:
        return function(x)
    except (RuntimeError, IndexError, ValueError, IngotError, BackendCompilerFailed):
        return None


@pytest.mark.parametrize("name", CASES)
def test_of_nothing(name: str) -> None:
    function, shapes = CASES[name]
    compiled = torch.compile(function, backend="ingot", fullgraph=True)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    module: Any = ingot.compile(Module(), (torch.randn(shapes[0]),), dynamic=True, threads=1, cache=False)
    for shape in shapes:
        x = torch.randn(shape)
        want = _answer(function, x)
        for got in (_answer(compiled, x), _answer(module, x)):
            assert (got is None) == (want is None), shape
            if got is not None:
                torch.testing.assert_close(got, want, equal_nan=True)
