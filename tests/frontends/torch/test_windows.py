"""Convolutions whose paddings, strides and dilations are sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from tests.frontends.torch.agree import Function, close, run

CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "padding": lambda x, w: F.conv1d(x, w, padding=x.shape[-1] // 2),
    "padding by the kernel": lambda x, w: F.conv1d(x, w, w.new_ones(4), padding=w.shape[-1] // 2, stride=2),
    "same": lambda x, w: F.conv1d(x, w, padding="same"),
    "stride": lambda x, w: F.conv1d(x, w[..., :3], stride=x.shape[-1] // 4),
    "stride of the kernel": lambda x, w: F.conv1d(x[0], w, stride=w.shape[-1]),
    "dilation": lambda x, w: F.conv1d(x, w[..., :2], dilation=x.shape[-1] // 4, stride=2, padding=1),
    "transposed": lambda x, w: F.conv_transpose1d(
        x, w[:2, :, :3], stride=2, padding=x.shape[-1] // 4, output_padding=1
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_as_windows(name: str) -> None:
    """An infinity is read where the definition reads it, and nowhere else."""
    torch.manual_seed(0)
    net = Function(CASES[name])
    dynamic = {"args": ({2: "n"}, {2: "k"})}
    model = import_exported(export_module(net, (torch.randn(2, 2, 12), torch.randn(4, 2, 5)), dynamic))
    for n, k in ((12, 5), (9, 7), (17, 3)):
        x, w = torch.randn(2, 2, n), torch.randn(4, 2, k)
        x[0, 0, 5] = float("inf")
        close(run(model, x, w), net(x, w))
