"""Buffers of one integer that forward computes sizes with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from ingot.support.errors import ImportModelError
from tests.frontends.torch.agree import close, run


class Framed(nn.Module):
    """As in EnCodec: the padding of a convolution, of its kernel and stride."""

    kernel: Tensor
    stride: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 5, 2)
        self.register_buffer("kernel", torch.tensor(5), persistent=False)
        self.register_buffer("stride", torch.tensor(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        frames = (x.shape[-1] - self.kernel) / self.stride + 1
        extra = (torch.ceil(frames).to(torch.int64) - 1) * self.stride + self.kernel - x.shape[-1]
        if extra > 0:
            x = F.pad(x, (0, int(extra)))
        return self.conv(x)


class Counting(Framed):
    """What is written is data."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.stride.add_(0)
        else:
            self.stride = self.stride + 0
        return super().forward(x)


@pytest.mark.parametrize("length", [11, 12])
def test_sizes_that_buffers_say(length: int) -> None:
    net, x = Framed().eval().requires_grad_(False), torch.randn(2, 2, length)
    model = import_exported(export_module(net, (x,)))
    assert not net._forward_pre_hooks
    close(run(model, x), net(x))


@pytest.mark.parametrize("in_place", [False, True])
def test_what_forward_writes_is_no_number(in_place: bool) -> None:
    with pytest.raises(ImportModelError, match="data-dependent"):
        export_module(Counting(in_place).eval(), (torch.randn(2, 2, 12),))
